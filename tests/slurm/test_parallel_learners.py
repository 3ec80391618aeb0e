"""Two learners of one run: as the tasks of a Slurm step on two nodes, and here with workers in jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.lab import Lab

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("learners", ["on two nodes", "here"])
def test_two_learners_train_with_a_worker_each(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learners: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    words = [sys.executable, "-m", "clusterenv", "train", "ppo", "--env-id", "CartPole-v1"]
    words += ["--learners", "2", "--workers", "2", "--envs-per-worker", "4", "--num-steps", "16"]
    words += ["--total-steps", "1024", "--run-dir", str(run)]
    output = tmp_path / "output.txt"
    if learners == "on two nodes":
        options = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2")
        lab.run(f"srun {' '.join(words)}", *options, output=output, within_s=200)
    else:
        with output.open("w") as file:
            subprocess.run(
                [*words, "--launcher", "slurm"], stdout=file, stderr=file, timeout=200, check=False
            )

    summary = run / "summary.json"
    assert summary.exists(), output.read_text()
    assert json.loads(summary.read_text())["steps"] == 1024
    results = json.loads((run / "benchmark_metrics.json").read_text())
    hosts = [worker["host"] for worker in results["workers"]]
    assert len(set(hosts)) == 2, hosts
    assert "steps/s), 8 updates" in output.read_text()
    assert not list(tmp_path.glob(".clusterenv/runs/learners-*"))
    assert not lab.worker_pids()
