"""Every algorithm trains on a game of Procgen, from the shipped file, on two nodes of a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugins.installed import PLUGINS, install_plugin, run
from tests.slurm.lab import NODES, Lab

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_plugin(PLUGINS / "clusterenv-procgen", tmp_path_factory.mktemp("venv"))


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "a3c", "impala"])
def test_it_trains_on_two_nodes(lab: Lab, python: Path, tmp_path: Path, algorithm: str) -> None:
    words = ["--config", "procgen-laptop", "--num-envs", "4", "--total-steps", "768", "--run-dir", "run"]
    words += ["--launcher", "slurm", "--workers", "2", "--slurm.shared-folder", str(tmp_path / "runs")]
    words += ["--slurm.exclusive"]  # a node for each

    run(python, "-m", "clusterenv", "train", algorithm, *words, cwd=tmp_path, timeout_s=300)

    results = json.loads((tmp_path / "run" / "benchmark_metrics.json").read_text())
    assert results["steps"] >= 768
    hosts = {worker["host"] for worker in results["workers"]}
    assert len(hosts) == 2
    assert hosts <= set(NODES)
    assert not lab.worker_pids()
