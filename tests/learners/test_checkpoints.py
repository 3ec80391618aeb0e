"""Checkpoints: whole or not at all, and never run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.networks import Agent
from tests.learners.disks import full_disk


def checkpoint_of(agent: Agent) -> Checkpoint:
    return Checkpoint(
        algorithm="ppo",
        env_id="CartPole-v1",
        steps=7,
        agent=agent.state_dict(),
        agent_options={"hidden": (4,), "normalize_obs": True},
        optimizer={},
        config={"lr": 1e-3, "run_dir": None},
    )


@pytest.fixture
def agent() -> Agent:
    return Agent(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), hidden=(4,), normalize_obs=True)


def test_checkpoint_brings_the_agent_back(tmp_path: Path, agent: Agent) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint_of(agent).save(path)

    loaded = Checkpoint.load(path)
    again = Agent(agent.observation_space, spaces.Discrete(2), **loaded.agent_options)
    again.load_state_dict(loaded.agent)

    assert all(
        torch.equal(a, b) for a, b in zip(agent.state_dict().values(), loaded.agent.values(), strict=True)
    )
    assert (loaded.steps, loaded.env_id, loaded.config) == (7, "CartPole-v1", {"lr": 1e-3, "run_dir": None})
    assert list(tmp_path.iterdir()) == [path]


def test_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path, agent: Agent) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint_of(agent).save(path)
    old = path.read_bytes()

    with full_disk(), pytest.raises(OSError, match="File too large"):
        checkpoint_of(agent).save(path)

    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"checkpoint is .*nothing.pt'; expected the checkpoint.pt of a run"
    ):
        Checkpoint.load(tmp_path / "nothing.pt")


def test_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_text("algorithm: ppo\n")

    with pytest.raises(ConfigError, match="expected a file that `clusterenv train` wrote"):
        Checkpoint.load(path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"agent": Bomb()}, "checkpoint.pt")

    with pytest.raises(ConfigError, match="expected a file that `clusterenv train` wrote"):
        Checkpoint.load(Path("checkpoint.pt"))

    assert not Path("exploded").exists()


def test_other_format_is_refused(tmp_path: Path, agent: Agent) -> None:
    content = {"format": 99} | {
        name: getattr(checkpoint_of(agent), name)
        for name in ("algorithm", "env_id", "steps", "agent", "agent_options", "optimizer", "config")
    }
    torch.save(content, tmp_path / "checkpoint.pt")

    with pytest.raises(ConfigError, match="expected format 2, not 99"):
        Checkpoint.load(tmp_path / "checkpoint.pt")
