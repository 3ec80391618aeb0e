"""Play episodes with the agent of a checkpoint: `clusterenv evaluate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ConfigError
from clusterenv.learners import agent_class
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.films import Films
from clusterenv.learners.json_option import JsonObject
from clusterenv.learners.procgen_levels import Levels, score_range, with_levels
from clusterenv.learners.run_folder import CHECKPOINT_FILE

MAX_ENVS = 32
EVALUATION_FILE = "evaluation.json"
"""In the folder of a run: what `--save` keeps there, by levels."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Play episodes with a trained agent and report their returns."""

    checkpoint: Path
    """The checkpoint.pt of a run, or the run's folder."""
    env_id: str | None = None
    """Environment to play, with the spaces of the run's; none: that of the run."""
    env_kwargs: JsonObject | None = None
    """Arguments of the environment, such as '{"size": 9}'; none: those of the run."""
    levels: tuple[Levels, ...] = ()
    """Of Procgen, one after the other: "train", those of the run; "held-out", all above these; "all"."""
    num_episodes: int = 20
    """Episodes to play."""
    deterministic: bool = False
    """Take the most likely action instead of a sample."""
    render: bool = False
    """Show the episodes in a window, one at a time."""
    video: Path | None = None
    """Folder for a film (mp4) of each episode, played one at a time; with levels, a folder in it for each of
    them. None: no films."""
    seed: int = 0
    """Seed of environments and actions."""
    save: bool = False
    """Keep the result beside the checkpoint, in evaluation.json, where `clusterenv compare` finds it."""

    def __post_init__(self) -> None:
        """Check every value."""
        if self.num_episodes < 1:
            raise ConfigError("num_episodes", self.num_episodes, "a whole number from 1")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError("seed", self.seed, "a whole number from 0 to 2**63-1")
        if self.render and self.video is not None:
            raise ConfigError("video", str(self.video), "None with render, which shows the same pictures")

    @property
    def checkpoint_file(self) -> Path:
        """The checkpoint, also if its run's folder was given."""
        return self.checkpoint / CHECKPOINT_FILE if self.checkpoint.is_dir() else self.checkpoint


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The episodes that were played, and with what."""

    levels: str
    """As asked for; "" if nothing was said of levels."""
    env_id: str
    env_kwargs: dict[str, Any]
    trained_steps: int
    """Environment steps after which the checkpoint was written."""
    deterministic: bool
    seed: int
    returns: list[float]

    def text(self) -> str:
        """The returns in a line for people, normalised too where Procgen has published a range."""
        returns = np.array(self.returns)
        line = (
            f"{len(returns)} episodes: mean return {returns.mean():.1f}, deviation {returns.std():.1f}, "
            f"least {returns.min():.1f}, greatest {returns.max():.1f}"
        )
        try:
            bounds = score_range(self.env_id, self.env_kwargs)
        except ImportError:
            bounds = None
        if bounds is not None:
            line += f", normalised score {(returns.mean() - bounds[0]) / (bounds[1] - bounds[0]):.3f}"
        return f"{self.levels} levels, {line}" if self.levels else line


def evaluate(config: EvaluateConfig) -> list[float]:
    """The returns of the episodes played; of several levels, one after the other."""
    return [value for one in evaluations(config) for value in one.returns]


def evaluations(config: EvaluateConfig) -> Iterator[Evaluation]:
    """What was played on each of the levels asked for, each as soon as it is done.

    Raises:
        ConfigError: if there is no such checkpoint, or it does not fit the environment.
    """
    checkpoint = Checkpoint.load(config.checkpoint_file)
    env_id = config.env_id or checkpoint.env_id
    given = config.env_kwargs
    if given is None:
        given = checkpoint.config.get("env_kwargs", {}) if env_id == checkpoint.env_id else {}
    for levels in config.levels or (None,):
        env_kwargs, playing = given, config
        if levels is not None:
            env_kwargs = with_levels(env_id, given, levels)
            playing = replace(config, video=config.video and config.video / levels)
        yield Evaluation(
            levels=levels or "",
            env_id=env_id,
            env_kwargs=dict(env_kwargs),
            trained_steps=checkpoint.steps,
            deterministic=config.deterministic,
            seed=config.seed,
            returns=_play(playing, checkpoint, env_id, env_kwargs),
        )


def _play(
    config: EvaluateConfig, checkpoint: Checkpoint, env_id: str, env_kwargs: dict[str, Any]
) -> list[float]:
    """The returns of the episodes.

    How many episodes each environment plays is fixed beforehand; the first to end would be mostly short ones.
    """
    torch.manual_seed(config.seed)
    with _environments(config, env_id, env_kwargs) as (env, films):
        agent = _agent(checkpoint, env, env_id)
        to_play = np.full(env.num_envs, config.num_episodes // env.num_envs)
        to_play[: config.num_episodes % env.num_envs] += 1
        played: list[float] = []
        returns = np.zeros(env.num_envs)
        resets = env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP  # takes a step, with no reward
        ended = np.zeros(env.num_envs, np.bool_)
        obs, _ = env.reset(seed=config.seed)
        _film(films, env)
        while to_play.any():
            obs, rewards, terminated, truncated, _ = env.step(_actions(agent, obs, env, config.deterministic))
            _film(films, env)
            returns += np.where(ended, 0.0, rewards)
            now_ended = (terminated | truncated) & ~ended
            for row in np.flatnonzero(now_ended):
                if to_play[row]:
                    to_play[row] -= 1
                    played.append(float(returns[row]))
                returns[row] = 0.0
                if films is not None:
                    films.end_episode()
            ended = now_ended & resets
    return played


@contextmanager
def _environments(
    config: EvaluateConfig, env_id: str, env_kwargs: dict[str, Any]
) -> Iterator[tuple[ClusterEnv, Films | None]]:
    """Environments in this process, and the films to be made of the one that there is then."""
    watched = config.render or config.video is not None
    if watched:
        env_kwargs = env_kwargs | {"render_mode": "human" if config.render else "rgb_array"}
    options = {
        "env_name": env_id,
        "env_kwargs": env_kwargs,
        "envs_per_node": 1 if watched else min(config.num_episodes, MAX_ENVS),
    }
    with ClusterEnv(options, LocalConfig(serial=True)) as env:
        films: AbstractContextManager[Films | None] = nullcontext()
        if config.video is not None:
            films = Films(config.video, float(env.metadata.get("render_fps") or 30))
        with films as open_films:
            yield env, open_films


def _agent(checkpoint: Checkpoint, env: ClusterEnv, env_id: str) -> Any:  # noqa: ANN401 - of its algorithm
    agent = agent_class(checkpoint.algorithm)(
        env.single_observation_space, env.single_action_space, **checkpoint.agent_options
    )
    try:
        agent.load_state_dict(checkpoint.agent)
    except RuntimeError as error:
        expected = f"an environment with the spaces of {checkpoint.env_id}, on which the agent was trained"
        raise ConfigError("env_id", env_id, expected) from error
    return agent


def _actions(agent: Any, obs: Any, env: ClusterEnv, deterministic: bool) -> Any:  # noqa: ANN401 - any space
    with torch.no_grad():
        actions = agent.choose(obs, deterministic=deterministic).numpy()
    space = env.single_action_space
    return np.clip(actions, space.low, space.high) if isinstance(space, gym.spaces.Box) else actions


def _film(films: Films | None, env: ClusterEnv) -> None:
    if films is not None:
        films.add(env.render()[0])


def save(path: Path, evaluation: Evaluation) -> None:
    """The file at `path` holds the evaluation, under its levels, beside those of other levels.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        known = {}  # half a file of a process that was killed
    known[evaluation.levels] = asdict(evaluation)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError("save", str(path), f"a file that can be written ({error.strerror})") from error


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status."""
    config = tyro.cli(EvaluateConfig, prog="clusterenv evaluate", args=list(argv))
    for evaluation in evaluations(config):
        sys.stdout.write(f"{evaluation.text()}\n")
        sys.stdout.flush()
        if config.save:
            save(config.checkpoint_file.with_name(EVALUATION_FILE), evaluation)
    return 0
