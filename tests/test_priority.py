"""Workers beside the learner leave it the cores while they stream, and only then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.priority import AUTOGROUP, YIELDING
from tests.envs import Count
from tests.processes import wait_until
from tests.test_aaps import Coin

TWO = LocalConfig(nodes=2, cpus_per_node=1)


def processes_of(env: ClusterEnv) -> list[psutil.Process]:
    """Workers, their forkservers and runners."""
    workers = [psutil.Process(worker["pid"]) for worker in env.stats()["workers"]]
    return [*workers, *(child for worker in workers for child in worker.children(recursive=True))]


def came_back(worker: dict[str, Any]) -> bool:
    return worker["restarts"] == 1 and worker["state"] == "ready"


def niceness_of_session(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


@pytest.mark.process
def test_workers_give_way_from_their_first_stream_on_and_what_they_start_later_too() -> None:
    own = psutil.Process().nice()
    with ClusterEnv([Count] * 2, TWO, seed=0) as env:
        env.rollout(Coin(), 4)
        assert {process.nice() for process in processes_of(env)} == {own}
        with env.stream(Coin(), 4) as stream:
            stream.take()
            assert {process.nice() for process in processes_of(env)} == {YIELDING}
            runner = processes_of(env)[-1]
            runner.kill()
            wait_until(lambda: came_back(env.stats()["workers"][1]))
            wait_until(lambda: {process.nice() for process in processes_of(env)} == {YIELDING})
            if AUTOGROUP.exists():
                for worker in env.stats()["workers"]:
                    wait_until(lambda pid=worker["pid"]: niceness_of_session(pid) == YIELDING)
        env.rollout(Coin(), 4)
    assert psutil.Process().nice() == own


def test_serial_mode_does_not_lower_the_priority_of_its_own_process() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ClusterEnv([Count] * 2, LocalConfig(serial=True), seed=0) as env, env.stream(Coin(), 4) as stream:
        stream.take()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
