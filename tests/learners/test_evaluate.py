"""Playing episodes with the agent of a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners import evaluate as evaluation
from clusterenv.learners import main
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.evaluate import EvaluateConfig, evaluate
from clusterenv.learners.networks import Agent
from clusterenv.learners.ppo import parse


def saved(folder: Path, env_id: str) -> tuple[Path, Agent]:
    """A checkpoint of an untrained agent, and the agent."""
    env = gym.make(env_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        agent = Agent(env.observation_space, env.action_space, hidden=(4,))
    path = folder / "checkpoint.pt"
    Checkpoint(
        algorithm="ppo",
        env_id=env_id,
        steps=0,
        agent=agent.state_dict(),
        agent_options={"hidden": (4,)},
        optimizer={},
        config={},
    ).save(path)
    return path, agent


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_deterministic_episodes_are_those_of_a_plain_loop(tmp_path: Path, env_id: str) -> None:
    path, agent = saved(tmp_path, env_id)

    returns = evaluate(EvaluateConfig(checkpoint=path, num_episodes=3, deterministic=True, seed=5))

    expected = []
    for seed in (5, 6, 7):
        env = gym.make(env_id)
        obs, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            with torch.no_grad():
                action = agent.distribution(torch.from_numpy(obs)[None]).mode[0].numpy()
            if isinstance(env.action_space, gym.spaces.Box):
                action = np.clip(action, env.action_space.low, env.action_space.high)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        expected.append(total)
    np.testing.assert_allclose(sorted(returns), sorted(expected), rtol=1e-5)


def test_number_of_episodes_is_kept_when_environments_play_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved(tmp_path, "CartPole-v1")
    monkeypatch.setattr(evaluation, "MAX_ENVS", 3)

    assert len(evaluate(EvaluateConfig(checkpoint=path, num_episodes=7))) == 7


def test_episodes_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "CartPole-v1")

    first, second, other = (
        evaluate(EvaluateConfig(checkpoint=path, num_episodes=8, seed=seed)) for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


def test_arguments_of_the_environment_are_those_of_the_run_unless_others_are_given(tmp_path: Path) -> None:
    path, run = tmp_path / "run" / "checkpoint.pt", {"max_episode_steps": 7}
    line = ["--env-id", "CartPole-v1", "--workers", "1", "--serial", "--envs-per-worker", "2"]
    line += ["--num-steps", "16", "--total-steps", "64", "--checkpoint-every", "32"]

    assert main("ppo", [*line, "--env-kwargs", json.dumps(run), "--run-dir", str(path.parent)]) == 0

    assert Checkpoint.load(path).config["env_kwargs"] == run
    assert evaluate(EvaluateConfig(checkpoint=path, num_episodes=2)) == [7.0, 7.0]
    other = {"max_episode_steps": 3}
    assert evaluate(EvaluateConfig(checkpoint=path, num_episodes=2, env_kwargs=other)) == [3.0, 3.0]
    assert parse(["--resume", str(path.parent)])[0].env_kwargs == run


def test_command_reports_the_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = saved(tmp_path, "Pendulum-v1")

    assert evaluation.main(["--checkpoint", str(path), "--num-episodes", "2"]) == 0

    assert capsys.readouterr().out.startswith("2 episodes: mean return -")


def test_value_that_cannot_work_is_named() -> None:
    with pytest.raises(ConfigError, match="num_episodes is 0; expected a whole number from 1"):
        EvaluateConfig(checkpoint=Path("x"), num_episodes=0)
    with pytest.raises(ConfigError, match="seed is -1"):
        EvaluateConfig(checkpoint=Path("x"), seed=-1)


def test_folder_of_a_run_stands_for_its_checkpoint_and_results_are_kept_beside_it(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "CartPole-v1")
    path.with_name("evaluation.json").write_text('{"trai')  # a process was killed in the midst of it

    for seed in ("1", "2"):
        words = ["--checkpoint", str(tmp_path), "--num-episodes", "2", "--seed", seed, "--save"]
        assert evaluation.main(words) == 0

    kept = json.loads(path.with_name("evaluation.json").read_text())
    assert list(kept) == [""]
    assert (kept[""]["seed"], len(kept[""]["returns"]), kept[""]["env_id"]) == (2, 2, "CartPole-v1")


def test_another_environment_may_be_played_if_its_spaces_are_the_same(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, "CartPole-v1")

    assert len(evaluate(EvaluateConfig(checkpoint=path, env_id="CartPole-v0", num_episodes=2))) == 2
    with pytest.raises(ConfigError, match=r"env_id is 'Acrobot-v1'; .* the spaces of CartPole-v1"):
        evaluate(EvaluateConfig(checkpoint=path, env_id="Acrobot-v1", num_episodes=2))


def test_films_show_each_episode_from_its_start_to_its_end(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path, _ = saved(tmp_path, "CartPole-v1")
    folder = tmp_path / "films"
    words = {"num_episodes": 2, "deterministic": True, "seed": 5}

    lengths = evaluate(EvaluateConfig(checkpoint=path, video=folder, **words))  # a reward of 1 for each step

    films = [imageio_ffmpeg.count_frames_and_secs(str(film))[0] for film in sorted(folder.iterdir())]
    assert [film.name for film in sorted(folder.iterdir())] == ["episode-0000.mp4", "episode-0001.mp4"]
    assert films == [length + 1 for length in lengths]


def test_films_of_several_levels_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="films need imageio-ffmpeg")
    path, _ = saved(tmp_path, "CartPole-v1")
    monkeypatch.setattr(evaluation, "with_levels", lambda _env_id, kwargs, _levels: kwargs)
    kwargs = {"max_episode_steps": 3}

    evaluate(
        EvaluateConfig(
            checkpoint=path,
            env_kwargs=kwargs,
            levels=("train", "held-out"),
            num_episodes=2,
            video=tmp_path / "films",
        )
    )

    films = sorted(str(film.relative_to(tmp_path)) for film in (tmp_path / "films").rglob("*.mp4"))
    assert films == [
        f"films/{levels}/episode-000{n}.mp4" for levels in ("held-out", "train") for n in range(2)
    ]


def test_films_without_their_package_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved(tmp_path, "CartPole-v1")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)

    with pytest.raises(ConfigError, match=r'pip install "clusterenv-rl\[video\]"'):
        evaluate(EvaluateConfig(checkpoint=path, video=tmp_path / "films"))
    with pytest.raises(ConfigError, match="expected None with render"):
        EvaluateConfig(checkpoint=path, video=tmp_path, render=True)
