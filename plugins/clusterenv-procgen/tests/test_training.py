"""The shipped configurations of the learners train on Procgen: each algorithm, in one process."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "a3c", "impala"])
def test_shipped_configuration_trains(algorithm: str, tmp_path: Path) -> None:
    module = import_module(f"clusterenv.learners.{algorithm}")
    words = "--config procgen-laptop --workers 1 --serial --n-envs 4 --n-steps 8"
    short = ("--total-timesteps", "64", "--num-threads", "1")

    summary = module.train(*module.parse([*words.split(), *short, "--run-dir", str(tmp_path / "run")]))

    results = json.loads((tmp_path / "run" / "benchmark_metrics.json").read_text())
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary.steps == results["steps"] == row["steps"] >= 64
    assert results["config"]["network"] == "impala"
    assert 0 < row["entropy"] <= 2.71  # of 15 actions
    assert {"explained_variance", "policy_loss", "value_loss"} <= row.keys()
