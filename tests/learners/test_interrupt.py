"""Ctrl-C during training: a usable checkpoint, exit status 130, and nothing left running."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from clusterenv.learners.evaluate import EvaluateConfig, evaluate
from tests.processes import alive, wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]


def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "clusterenv", "train", "ppo", "--env-id", "CartPole-v1", "--total-steps"]
    command += ["100000000", "--workers", "2", "--envs-per-worker", "4", "--run-dir", str(folder)]
    metrics = folder / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), 60)
        started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 130, err
    assert err == ""
    assert "worker 1:" in out
    assert len(started) >= 2
    wait_until(lambda: not alive(started), 10)
    assert len(evaluate(EvaluateConfig(checkpoint=folder / "checkpoint.pt", num_episodes=2))) == 2
