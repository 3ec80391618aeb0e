"""Memory stays flat over many steps, whatever the infos are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import gc
import json

import numpy as np
import psutil

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count


class Changing(Count):
    told = 0

    def _info(self, k):
        self.told += 1
        key = f"key {self.told}"
        return {key: self.told, "array": np.zeros(3), "deep": {key: str(self.told)}}


def memory():
    gc.collect()
    return {process.pid: process.memory_info().rss for process in processes}


with ClusterEnv([Changing] * 10, LocalConfig(nodes=1, cpus_per_node=1), autoreset_mode="SameStep") as env:
    env.reset(seed=0)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    actions = np.zeros(10, np.int64)
    for _ in range(1_000):
        env.step(actions)
    before = memory()
    steps = 0
    for _ in range(10_000):
        obs, reward, terminated, truncated, info = env.step(actions)
        steps += int(np.sum(info.get("valid", np.ones(10))))
    assert any(key.startswith("key 1") for key in info)
    after = memory()
print(json.dumps({"steps": steps, "grown": [after[pid] - before[pid] for pid in before]}))
"""


@pytest.mark.process
@pytest.mark.timeout(300)
def test_head_and_worker_do_not_grow_over_100_000_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'registry'}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 100_000
    assert len(told["grown"]) >= 4  # head, worker, forkserver and runner at least
    assert max(told["grown"]) < 1_000_000, told
