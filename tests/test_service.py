"""The process around a worker."""

from __future__ import annotations

import os
import signal
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.service import beat_interval_s
from tests.envs import Count


@pytest.fixture
def short() -> Path:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", ["t", "t" * 120])
def test_killed_worker_leaves_nothing_in_tmpdir(
    name: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp = short / name
    temp.mkdir()
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    with ClusterEnv([partial(Count, 9)] * 2, LocalConfig(nodes=2), on_worker_loss="drop") as env:
        env.reset(seed=0)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        while "valid" not in env.step(np.zeros(2, np.int64))[4]:
            pass
    assert list(temp.iterdir()) == []


def test_heartbeats_are_frequent_in_small_runs_and_some_in_a_lease_in_large_ones() -> None:
    assert beat_interval_s(10.0, 4) == 1.0
    assert beat_interval_s(1.0, 4) == 0.2
    assert beat_interval_s(10.0, 1000) == 2.0
    assert beat_interval_s(10.0, 100_000) == 2.5
    assert beat_interval_s(60.0, 5000) == 10.0
