"""A run that goes on from a milestone: bit for bit the run that never stopped, whatever stopped it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clusterenv.errors import ConfigError
from clusterenv.learners import dqn, ppo, sac
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.ppo import parse, train
from clusterenv.learners.resuming import GlobalGenerators, milestone, reset_seed, restore, state_of
from tests.learners.disks import full_disk

SMALL = (
    *("--env-id", "CartPole-v1", "--workers", "1", "--envs-per-worker", "4", "--serial"),
    *(
        "--num-steps",
        "16",
        "--normalize-obs",
        "--scale-rewards",
        "--checkpoint-every",
        "256",
        "--epochs",
        "2",
    ),
)
TOTAL = ("--total-steps", "1024")
CLOCKS = ("seconds", "steps_per_s", "learner_cpu_s", "learner_cpu_percent")
MEMORY = ("learner_memory_bytes", "learner_memory_peak_bytes", "memory_peak_bytes")
COUNTS = ("syncs", "workers", "weight_bytes_sent", "check_bytes_sent", "broadcast_bytes")
"""A run that goes on sends its weights once more."""


def run(folder: Path, *flags: str) -> None:
    train(*parse([*SMALL, "--run-dir", str(folder), *flags]))


def stopped(folder: Path, update: int, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """A run that is interrupted in the midst of an update."""
    made = []

    def interrupted(*arguments: Any) -> Any:
        made.append(1)
        if len(made) > update:
            raise KeyboardInterrupt
        return original(*arguments)

    original = ppo.update
    with monkeypatch.context() as patch:
        patch.setattr(ppo, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(folder, *TOTAL, *flags)


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if name not in CLOCKS + MEMORY + COUNTS} for row in rows
    ]


def assert_equal_runs(one: Path, other: Path) -> None:
    first, second = Checkpoint.load(one / "checkpoint.pt"), Checkpoint.load(other / "checkpoint.pt")
    assert first.steps == second.steps
    assert all(torch.equal(tensor, second.agent[name]) for name, tensor in first.agent.items())
    moments = [checkpoint.optimizer["state"] for checkpoint in (first, second)]
    assert moments[0].keys() == moments[1].keys()
    for number, state in moments[0].items():
        assert all(torch.equal(value, moments[1][number][name]) for name, value in state.items())
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize(
    "sync", [("--sync", "every"), ("--kl-threshold", "inf", "--max-lag", "6")], ids=["every", "adaptive"]
)
def test_run_that_goes_on_comes_to_the_numbers_of_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: tuple[str, ...]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, *TOTAL, *sync)
    stopped(broken, 11, monkeypatch, *sync)
    assert len(metrics(broken)) == 11

    train(*parse(["--resume", str(broken)]))

    assert len(metrics(whole)) == 16
    assert_equal_runs(whole, broken)
    resumed = json.loads((broken / "summary.json").read_text())
    assert resumed["updates"] == 16
    assert resumed["episodes"] == json.loads((whole / "summary.json").read_text())["episodes"]


REPLAYED = (
    *("--workers", "1", "--envs-per-worker", "2", "--serial", "--hidden", "8", "--num-steps", "4"),
    *("--learning-starts", "64", "--batch-size", "16", "--checkpoint-every", "128", "--n-steps", "2"),
    *("--total-steps", "512"),
)
OFF_POLICY = {
    "dqn": (dqn, "CartPole-v1", ("--replay-ratio", "1.3", "--replay-capacity", "200")),
    "sac": (sac, "Pendulum-v1", ("--replay-ratio", "1.3", "--replay-capacity", "100")),
    "sac, a file of its own": (sac, "Pendulum-v1", ("--replay-ratio", "1.3", "--replay-capacity", "5000")),
}


@pytest.mark.parametrize("case", OFF_POLICY)
def test_run_that_replays_goes_on_to_the_numbers_of_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    algorithm, env_id, flags = OFF_POLICY[case]

    def begun(name: str) -> None:
        file = ("--replay-file", str(tmp_path / f"{name}-rows")) if "file" in case else ()
        place = ("--env-id", env_id, "--run-dir", str(tmp_path / name))
        algorithm.train(*algorithm.parse([*REPLAYED, *flags, *place, *file]))

    begun("whole")
    original, made = algorithm.Sampler.batches, []

    def interrupted(*arguments: Any) -> Any:
        made.append(1)
        if len(made) > 45:  # 8 steps each: after the milestone at 256, and near the one at 384
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(algorithm.Sampler, "batches", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begun("broken")
    assert milestone(tmp_path / "broken", case[:3]).steps == 256

    algorithm.train(*algorithm.parse(["--resume", str(tmp_path / "broken")]))

    assert len(metrics(tmp_path / "whole")) == 64
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")
    ends = [milestone(tmp_path / name, case[:3]).training for name in ("whole", "broken")]
    assert ends[0]["sampler"] == ends[1]["sampler"]
    assert ends[0]["replay"]["end"] == ends[1]["replay"]["end"] > 400


def test_weights_that_a_worker_lags_behind_are_pulled_at_a_milestone(tmp_path: Path) -> None:
    run(tmp_path / "run", *TOTAL, "--sync", "never")

    reasons = json.loads((tmp_path / "run" / "summary.json").read_text())["syncs_by_worker"][0]
    assert reasons == {"first": 1, "forced": 3}  # the fourth milestone is the end


def test_run_killed_while_it_writes_goes_on_from_the_milestone_before(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, *TOTAL)
    code = (
        "import os, signal, sys\n"
        "from clusterenv.learners import main\n"
        "synced, fsync = [], os.fsync\n"
        "def kill_at_the_fourth(handle):\n"  # each milestone writes two files
        "    synced.append(handle)\n"
        "    if len(synced) == 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    fsync(handle)\n"
        "os.fsync = kill_at_the_fourth\n"
        "main('ppo', sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, *SMALL, *TOTAL, "--run-dir", str(killed)]
    done = subprocess.run(command, check=False, timeout=100, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    assert list(killed.glob(".resume.pt.*"))
    assert milestone(killed, "ppo").steps == 256

    train(*parse(["--resume", str(killed)]))

    assert_equal_runs(whole, killed)
    assert not list(killed.glob(".*"))


def test_full_disk_leaves_the_milestone_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    stopped(folder, 5, monkeypatch)
    before = (folder / "resume.pt").read_bytes()

    with full_disk(), pytest.raises(OSError, match="File too large"):
        milestone(folder, "ppo").save(folder / "resume.pt")

    assert (folder / "resume.pt").read_bytes() == before
    assert milestone(folder, "ppo").steps == 256


def test_line_that_was_not_written_to_its_end_is_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    stopped(folder, 5, monkeypatch)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 320, "upda')
    time.sleep(1.0)  # TensorBoard reads its files in the order of the seconds in which they were begun

    train(*parse(["--resume", str(folder)]))

    assert [row["steps"] for row in metrics(folder)] == [64 * update for update in range(1, 17)]
    curves = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in curves.Scalars("run/updates")] == [64 * u for u in range(1, 17)]


def test_options_of_the_run_are_the_defaults_and_others_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    stopped(folder, 5, monkeypatch, "--hidden", "8", "9")

    config, _ = parse(["--resume", str(folder), "--total-steps", "4096"])

    assert (config.env_id, config.hidden, config.total_steps) == ("CartPole-v1", (8, 9), 4096)
    assert (config.resume, config.run_dir, config.serial) == (folder, None, True)


def test_what_cannot_be_gone_on_with_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="expected the folder of a run that has come to a milestone"):
        parse(["--resume", str(folder)])
    stopped(folder, 5, monkeypatch)

    with pytest.raises(ConfigError, match="env_id is 'Acrobot-v1'; expected CartPole-v1"):
        parse(["--resume", str(folder), "--env-id", "Acrobot-v1"])
    with pytest.raises(ConfigError, match="expected a run of a2c, not of ppo"):
        milestone(folder, "a2c")
    with pytest.raises(ConfigError, match="expected the state of scale"):
        restore({"scale": RewardScale(1, 0.9)}, {})


def test_generators_of_the_process_are_brought_back() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), np.random.random(), float(torch.rand(()))

    parts = {"generators": GlobalGenerators(), "shuffling": torch.Generator().manual_seed(3)}
    state = state_of(parts)
    first = draws(), torch.rand(3, generator=parts["shuffling"]).tolist()
    restore(parts, state)

    assert (draws(), torch.rand(3, generator=parts["shuffling"]).tolist()) == first


def test_seeds_of_resets_follow_from_seed_and_step() -> None:
    assert reset_seed(7, 0) == 7
    seeds = {reset_seed(seed, steps) for seed in range(20) for steps in range(1000, 50_000, 1000)}
    assert len(seeds) == 20 * 49
    assert all(0 <= seed < 1 << 30 for seed in seeds)
    assert reset_seed((1 << 63) - 1, 5) < 1 << 30
