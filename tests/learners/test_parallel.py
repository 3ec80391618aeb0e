"""Several learners of one run: the same update as one with all rows, and what happens when one is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from clusterenv.cli import main
from clusterenv.errors import ConfigError
from clusterenv.learners import a2c, parallel, ppo
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
    parts = [
        ppo.Samples(*(getattr(both, name)[owner == rank] for name in ppo.Samples.__slots__))
        for rank in range(2)
    ]
    generators = [torch.Generator().manual_seed(3) for _ in parts]
    for _ in range(config.epochs):
        halves = [
            shuffled(part, config.num_minibatches, generator)
            for part, generator in zip(parts, generators, strict=True)
        ]
        for one, other in zip(*halves, strict=True):
            minibatch = ppo.Samples(
                *(torch.cat([getattr(one, name), getattr(other, name)]) for name in ppo.Samples.__slots__)
            )
            loss, _ = ppo.ppo_loss(agent, minibatch, config)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
            optimizer.step()
    agent.observe(joined.obs, joined.valid)
    a2c.update(agent, optimizer, joined, child.a2c_config(), scale)
    return agent.state_dict() | {name: torch.tensor(value) for name, value in scale.state_dict().items()}


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


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_two_learners_make_the_update_of_one_with_all_rows_and_notice_when_one_is_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.learners.parallel_child"]
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    root = Path(__file__).parents[2]
    with (
        subprocess.Popen([*command, "0", str(tmp_path)], env=environ, cwd=root) as first,
        subprocess.Popen([*command, "1", str(tmp_path)], env=environ, cwd=root) as second,
    ):
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
        (["sac", "--learners", "2"], "learners is 2; expected 1, since only ppo and a2c take several"),
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
