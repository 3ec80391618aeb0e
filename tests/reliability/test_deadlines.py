"""Calls over an environment that hangs end in time, with an error that says so, and leave no process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import psutil
import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import WorkerLost
from tests.agents import MLPAgent
from tests.envs import Count, Hangs
from tests.processes import alive, wait_until

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)
STEP_TIMEOUT_S = 2.0
SLACK_S = 15.0


class HangsInClose(Count):
    """Count whose end does not end."""

    def close(self) -> None:
        time.sleep(1000)


def descendants() -> set[int]:
    """Those of other tests too, which may have left a forkserver."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def again(call: Callable[[], object]) -> None:
    """More often than the environments that do not hang can answer."""
    for _ in range(100):
        call()


@pytest.mark.parametrize("call", ["reset", "step", "rollout", "stream"])
def test_call_over_an_environment_that_hangs_ends_in_time_with_an_error(call: str) -> None:
    hangs = partial(Hangs, "reset" if call == "reset" else "step")
    before = descendants()
    env = ClusterEnv([Count, hangs], TWO, on_worker_loss="raise", step_timeout_s=STEP_TIMEOUT_S)
    env.launch()
    started = descendants() - before
    calls = {
        "reset": lambda: env.reset(seed=0),
        "step": lambda: env.step(np.zeros(2, np.int64)),
        "rollout": lambda: env.rollout(MLPAgent(env), 4),
        "stream": lambda: next(env.stream(MLPAgent(env), 4)),
    }
    if call != "reset":
        env.reset(seed=0)

    began = time.monotonic()
    with pytest.raises(WorkerLost, match="step_timeout_s = 2 s") as raised:
        again(calls[call])

    assert time.monotonic() - began < STEP_TIMEOUT_S + SLACK_S
    wait_until(lambda: not alive(started), 10)
    assert raised.value.log_path is not None
    shutil.rmtree(raised.value.log_path.parent)


def test_close_over_an_environment_that_hangs_in_its_own_ends_in_time() -> None:
    before = descendants()
    env = ClusterEnv([Count, HangsInClose], TWO, step_timeout_s=STEP_TIMEOUT_S)
    env.reset(seed=0)
    started = descendants() - before

    began = time.monotonic()
    env.close()

    assert time.monotonic() - began < 10 + SLACK_S
    wait_until(lambda: not alive(started), 10)
