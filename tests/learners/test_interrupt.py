"""Training that is told to end, or loses what it writes to: what is left, the exit status, and no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from clusterenv.learners.evaluate import EvaluateConfig, evaluate
from tests.processes import alive, wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

TRAIN = ("-m", "clusterenv", "train", "ppo", "--env-id", "CartPole-v1", "--envs-per-worker", "4")


@contextmanager
def training(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A run that has made its first update, and the processes that it has started."""
    command = [
        sys.executable,
        *TRAIN,
        "--total-steps",
        "100000000",
        "--workers",
        "2",
        "--run-dir",
        str(folder),
    ]
    metrics = folder / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), 60)
        yield process, [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def check_ending(folder: Path, started: list[int]) -> None:
    """No process is left, and the checkpoint can be used."""
    assert len(started) >= 2
    wait_until(lambda: not alive(started), 10)
    assert len(evaluate(EvaluateConfig(checkpoint=folder / "checkpoint.pt", num_episodes=2))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_a_checkpoint_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with training(tmp_path / "run") as (process, started):
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + number, err
    assert err == ""
    assert "worker 1:" in out
    check_ending(tmp_path / "run", started)


def test_several_ctrl_c_end_as_one_does(tmp_path: Path) -> None:
    def interrupt_again() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    with training(tmp_path / "run") as (process, started):
        wait_until(interrupt_again, 30)
        _, err = process.communicate(timeout=30)

    assert process.returncode == 130, err
    assert err == ""
    check_ending(tmp_path / "run", started)


def test_run_whose_reader_goes_trains_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, *TRAIN, "--total-steps", "500", "--workers", "1", "--serial", "--run-dir"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, str(tmp_path)], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "summary.json").exists()
    assert (tmp_path / "checkpoint.pt").exists()


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys, resource; from clusterenv.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY)); sys.exit(main())"
    )
    command = [sys.executable, "-c", code, *TRAIN[2:], "--serial", "--workers", "1", "--num-steps", "4"]
    done = subprocess.run(
        [*command, "--epochs", "1", "--run-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr == f"clusterenv: {tmp_path}/checkpoint.pt cannot be written: File too large\n"
