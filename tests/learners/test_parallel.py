"""Several learners of one run: the same update as one with all rows, and what happens when one is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from clusterenv.cli import main
from clusterenv.errors import ConfigError
from clusterenv.learners import a2c, impala, parallel, ppo
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.parallel import LearnerLost, Seat
from clusterenv.learners.parallel_launch import own_seat
from clusterenv.learners.training import shuffled
from tests.learners import parallel_child as child
from tests.processes import alive, wait_until

CARTPOLE = ["--env-id", "CartPole-v1", "--serial", "--envs-per-worker", "4", "--num-steps", "16"]


def single_learner() -> dict[str, torch.Tensor]:
    """The agent of one learner whose minibatches are those of both of `parallel_child` together."""
    agent, config = child.agent_of(), child.ppo_config()
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    scale = RewardScale(2 * child.ENVS, config.gamma)
    joined = side_by_side(child.rollouts())
    both = ppo.make_samples(agent, joined, config, scale)
    owners = torch.as_tensor(np.arange(2 * child.ENVS) // child.ENVS).expand(child.STEPS, -1)
    owner = owners[torch.as_tensor(joined.valid)]
    for minibatch in minibatches_of_both(both, owner, config.num_minibatches, config.epochs, seed=3):
        step(agent, optimizer, ppo.ppo_loss(agent, minibatch, config)[0])
    agent.observe(joined.obs, joined.valid)
    a2c.update(agent, optimizer, joined, child.a2c_config(), scale)
    config = child.impala_config()
    batch = impala.make_samples(agent, child.prox_agent().without_critic(), joined, config, scale)
    for minibatch in minibatches_of_both(batch, owner, config.num_minibatches, config.passes, seed=4):
        step(agent, optimizer, impala.impala_loss(agent, minibatch, config)[0])
    return agent.state_dict() | {name: torch.tensor(value) for name, value in scale.state_dict().items()}


def minibatches_of_both(
    samples: Any, owner: torch.Tensor, num_minibatches: int, passes: int, *, seed: int
) -> Iterator[Any]:
    """The minibatches that two learners make of their rows, each of both together."""
    kind, names = type(samples), [item.name for item in dataclasses.fields(samples)]
    parts = [kind(*(getattr(samples, name)[owner == rank] for name in names)) for rank in range(2)]
    generators = [torch.Generator().manual_seed(seed) for _ in parts]
    for _ in range(passes):
        halves = [
            shuffled(part, num_minibatches, generator)
            for part, generator in zip(parts, generators, strict=True)
        ]
        for one, other in zip(*halves, strict=True):
            yield kind(*(torch.cat([getattr(one, name), getattr(other, name)]) for name in names))


def step(agent: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


def side_by_side(rollouts: list) -> object:
    """The rollouts as one with all environments."""
    envs = sum(rollout.rewards.shape[1] for rollout in rollouts)
    values = {}
    for name in rollouts[0].__dataclass_fields__:
        parts = [getattr(rollout, name) for rollout in rollouts]
        if name == "final_index":
            parts = [part + np.array([0, number * child.ENVS]) for number, part in enumerate(parts)]
            values[name] = np.concatenate(parts)
        elif name in ("last_obs", "final_obs", "final_values", "last_values", "workers", "kl", "row_kl"):
            values[name] = np.concatenate(parts)
        elif name == "env_ids":
            values[name] = np.arange(envs)
        elif isinstance(parts[0], np.ndarray):
            values[name] = np.concatenate(parts, axis=1)
        else:
            values[name] = parts[0]
    return type(rollouts[0])(**values)


def child_process(rank: int, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.learners.parallel_child", str(rank), str(folder), *more]
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(command, env=environ, cwd=Path(__file__).parents[2])


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_two_learners_make_the_update_of_one_with_all_rows_and_notice_when_one_is_killed(
    tmp_path: Path,
) -> None:
    with child_process(0, tmp_path) as first, child_process(1, tmp_path) as second:
        wait_until((tmp_path / "waits").exists, 90)
        second.kill()
        assert first.wait(timeout=30) == 3

    agents = [torch.load(tmp_path / f"agent-{rank}.pt") for rank in range(2)]
    expected = single_learner()
    for name, value in expected.items():
        assert torch.equal(agents[0][name], agents[1][name]), name
        torch.testing.assert_close(agents[0][name], value, rtol=2e-5, atol=2e-6, msg=lambda m: f"{name}: {m}")  # noqa: B023
    assert (tmp_path / "lost-0").read_text() == "learner 1 of 2 has ended; see its output"


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_learner_that_hangs_is_named_by_those_that_wait_for_it(tmp_path: Path) -> None:
    with (
        child_process(0, tmp_path, "1") as first,
        child_process(1, tmp_path, "1") as hanging,
        child_process(2, tmp_path, "1") as third,
    ):
        wait_until((tmp_path / "waits").exists, 90)
        assert [first.wait(timeout=30), third.wait(timeout=30)] == [3, 3]
        hanging.kill()

    for rank in (0, 2):
        said = (tmp_path / f"lost-{rank}").read_text()
        assert said.startswith("learner 1 of 3 did not come within "), said
        assert "--learner-timeout lets the others wait longer" in said


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_command_trains_with_two_learners_goes_on_and_ends_all_when_one_dies(tmp_path: Path) -> None:
    words = [*CARTPOLE, "--learners", "2", "--workers", "2", "--run-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "clusterenv", "train", "ppo"]
    done = subprocess.run(
        [*command, *words, "--total-steps", "512", "--checkpoint-every", "256"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [128, 256, 384, 512]
    assert len(rows[-1]["workers"]) == 2
    assert rows[-1]["episodes"] > 0
    assert Checkpoint.load(tmp_path / "run" / "checkpoint.pt").steps == 512

    going_on = ["--resume", str(tmp_path / "run"), "--total-steps", "100000000"]
    with subprocess.Popen([*command, *going_on], stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_until(lambda: process.poll() is not None or metrics.read_text().count("\n") > len(rows), 120)
        learners = psutil.Process(process.pid).children()
        learners[1].send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "clusterenv: learner 1 of 2 has ended with killed by SIGKILL, and with it the others\n" in err
    wait_until(lambda: not alive([learner.pid for learner in learners]), 10)
    assert Checkpoint.load(tmp_path / "run" / "checkpoint.pt").steps > 512


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_command_trains_impala_with_two_learners_and_names_the_one_that_hangs(tmp_path: Path) -> None:
    options = [
        "--learners",
        "2",
        "--workers",
        "2",
        "--learner-timeout",
        "5s",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    command = [sys.executable, "-m", "clusterenv", "train", "impala", *CARTPOLE, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, 120)
        learners = psutil.Process(process.pid).children()
        learners[1].send_signal(signal.SIGSTOP)
        _, err = process.communicate(timeout=100)

    assert process.returncode == 1
    assert "clusterenv: learner 1 of 2 did not come within 5 s to what all do together" in err
    assert "clusterenv: learner 1 of 2 did not do what the others waited for, and all were ended\n" in err
    wait_until(lambda: not alive([learner.pid for learner in learners]), 10)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert rows[1]["steps"] == 2 * 2 * 4 * 16 * 2
    assert len(rows[1]["workers"]) == 2


def test_learners_that_do_not_come_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "RENDEZVOUS_S", 0.2)

    seat = Seat(1, 3, tmp_path / "shared")

    said = r"learners 0, 2 of 3 did not come to .* within 0 s; all learners"
    with pytest.raises(LearnerLost, match=said), seat.joined():
        pass


def test_seat_of_a_task_is_told_by_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}

    seat = own_seat(4, step)

    assert seat == Seat(3, 4, tmp_path / ".clusterenv" / "runs" / "learners-17.0.")
    assert own_seat(2, {}) is None
    with pytest.raises(ConfigError, match="learners is 2; expected 4, as many as this Slurm step has tasks"):
        own_seat(2, step)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ppo", "--learners", "2", "--workers", "3"], "workers is 3; expected a multiple of learners = 2"),
        (
            ["sac", "--learners", "2"],
            "learners is 2; expected 1, since only ppo, a2c and impala take several",
        ),
        (
            ["a3c", "--learners", "2"],
            "learners is 2; expected 1 of a3c, each of whose updates is of one fragment, so that there is "
            "nothing to average; give it more workers, or take impala",
        ),
        (["ppo", "--learner-timeout", "0s"], "learner_timeout is 0.0; expected a time above 0 in seconds"),
        (["ppo", "--learners", "0"], "learners is 0; expected a whole number from 1"),
    ],
)
def test_learners_that_cannot_work_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--env-id", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == f"clusterenv: {said}\n"


def test_several_learners_are_not_trained_in_one_process(tmp_path: Path) -> None:
    config = ppo.PPOConfig(env_id="CartPole-v1", learners=2, run_dir=tmp_path)

    with pytest.raises(ConfigError, match="learners is 2; expected 1 in `train`; `clusterenv train ppo"):
        ppo.train(config)
