"""Workers started by hand, with the printed lines, on other hosts."""

from __future__ import annotations

import os
import shlex
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusterenv import ClusterEnv
from clusterenv.errors import SetupTimeout
from clusterenv.launcher_config import ManualConfig
from tests.envs import Count
from tests.slurm.lab import Lab, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


def test_workers_started_by_the_printed_lines_serve_the_run(
    lab: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = ManualConfig(nodes=2, shared_folder=tmp_path, cpus_per_node=1)
    env = ClusterEnv([partial(Count, 7) for _ in range(4)], config)
    shown: list[str] = []

    def lines() -> list[str]:
        shown.append(capfd.readouterr().err)
        return [line for line in "".join(shown).splitlines() if "clusterenv worker" in line]

    launching = threading.Thread(target=env.launch)
    launching.start()
    until(lambda: len(lines()) == 2, 40, "the lines are printed")
    python_path = f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}"
    workers = [
        lab.execute(host, *shlex.split(line), env={"PYTHONPATH": python_path})
        for host, line in zip(("login", "node3"), lines(), strict=True)
    ]
    launching.join(timeout=60)
    with env:
        env.reset(seed=0)
        assert env.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [1] * 4
        assert [worker["host"] for worker in env.stats()["workers"]] == ["login", "node3"]
    for worker in workers:
        output, _ = worker.communicate(timeout=20)
        assert worker.returncode == 0, output
    assert list(tmp_path.iterdir()) == []


def test_wait_for_workers_started_by_hand_has_a_limit(tmp_path: Path) -> None:
    config = ManualConfig(nodes=1, shared_folder=tmp_path, queue_timeout_s=1.0)
    env = ClusterEnv([partial(Count, 7)], config, connect_timeout_s=0.5)
    with pytest.raises(SetupTimeout, match=r"worker 0 .*queue_timeout_s = 1 s: to be started by hand"):
        env.launch()
