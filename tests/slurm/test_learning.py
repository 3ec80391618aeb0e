"""PPO learns CartPole over four real nodes: as one job, and as steps of the head's own allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import Record
from tests.slurm.lab import NODES, Lab

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(500)]
ROOT = Path(__file__).parents[2]
GOAL = 475.0
WITHIN_S = 400.0


@pytest.mark.parametrize("mode", ["sbatch", "srun"])
def test_ppo_learns_cartpole_over_four_nodes(
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    record: Record,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    words = [sys.executable, "-m", "clusterenv", "train", "ppo", "--env-id", "CartPole-v1"]
    words += ["--envs-per-worker", "16", "--stop-at-return", str(GOAL), "--run-dir", str(run)]
    words += ["--launcher", "slurm", "--workers", str(len(NODES)), "--slurm.mode", mode]
    words += ["--slurm.shared-folder", str(tmp_path / "runs")]
    output = tmp_path / "output.txt"
    if mode == "srun":
        options = (f"--nodes={len(NODES)}", "--ntasks-per-node=1", "--cpus-per-task=2")
        lab.run(" ".join(words), *options, output=output, within_s=WITHIN_S)
    else:
        with output.open("w") as file:
            subprocess.run(words, stdout=file, stderr=file, timeout=WITHIN_S, check=False)
    summary = run / "summary.json"
    assert summary.exists(), output.read_text()
    result = json.loads(summary.read_text())
    record("solved after", f"{result['steps']} steps, {result['seconds']:.0f} s")
    assert result["episode_return"] >= GOAL
    assert len(result["syncs_by_worker"]) == len(NODES)
    assert not lab.worker_pids()
