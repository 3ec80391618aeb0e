"""Play episodes with the agent of a checkpoint: `clusterenv evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ConfigError
from clusterenv.learners import agent_class
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.json_option import JsonObject

MAX_ENVS = 32


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Play episodes with a trained agent and report their returns."""

    checkpoint: Path
    """The checkpoint.pt of a run folder."""
    env_kwargs: JsonObject | None = None
    """Arguments of the environment, such as '{"size": 9}'; none: those of the run."""
    num_episodes: int = 20
    """Episodes to play."""
    deterministic: bool = False
    """Take the most likely action instead of a sample."""
    seed: int = 0
    """Seed of environments and actions."""

    def __post_init__(self) -> None:
        """Check every value."""
        if self.num_episodes < 1:
            raise ConfigError("num_episodes", self.num_episodes, "a whole number from 1")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError("seed", self.seed, "a whole number from 0 to 2**63-1")


def evaluate(config: EvaluateConfig) -> list[float]:
    """The returns of the episodes played.

    How many episodes each environment plays is fixed beforehand; the first to end would be mostly short ones.
    """
    checkpoint = Checkpoint.load(config.checkpoint)
    num_envs = min(config.num_episodes, MAX_ENVS)
    to_play = np.full(num_envs, config.num_episodes // num_envs)
    to_play[: config.num_episodes % num_envs] += 1
    env_kwargs = config.env_kwargs
    options = {
        "env_name": checkpoint.env_id,
        "env_kwargs": checkpoint.config.get("env_kwargs", {}) if env_kwargs is None else env_kwargs,
        "envs_per_node": num_envs,
    }
    torch.manual_seed(config.seed)
    played: list[float] = []
    with ClusterEnv(options, LocalConfig(serial=True), autoreset_mode="SameStep") as env:
        space = env.single_action_space
        agent = agent_class(checkpoint.algorithm)(
            env.single_observation_space, space, **checkpoint.agent_options
        )
        agent.load_state_dict(checkpoint.agent)
        obs, _ = env.reset(seed=config.seed)
        returns = np.zeros(num_envs)
        while to_play.any():
            with torch.no_grad():
                actions = agent.choose(obs, deterministic=config.deterministic).numpy()
            if isinstance(space, gym.spaces.Box):
                actions = np.clip(actions, space.low, space.high)
            obs, rewards, terminated, truncated, _ = env.step(actions)
            returns += rewards
            for row in np.flatnonzero(terminated | truncated):
                if to_play[row]:
                    to_play[row] -= 1
                    played.append(float(returns[row]))
                returns[row] = 0.0
    return played


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status."""
    config = tyro.cli(EvaluateConfig, prog="clusterenv evaluate", args=list(argv))
    returns = np.array(evaluate(config))
    sys.stdout.write(
        f"{len(returns)} episodes: mean return {returns.mean():.1f}, deviation {returns.std():.1f}, "
        f"least {returns.min():.1f}, greatest {returns.max():.1f}\n"
    )
    return 0
