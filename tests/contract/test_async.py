"""`step_async` and its kin: the same results in two halves, with Gymnasium's errors."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv
from clusterenv.errors import ActionError
from tests.agents import MLPAgent
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS, SERIAL
from tests.contract.walking import assert_same, assert_same_infos

pytestmark = pytest.mark.process

ACTIONS = np.zeros(NUM_ENVS, np.int64)
LONG_S = 0.5


@pytest.fixture(autouse=True)
def nothing_pending(gadgets: ClusterEnv) -> Iterator[None]:
    gadgets.reset(seed=1)
    yield
    gadgets.step(ACTIONS)


def test_halves_give_what_the_whole_gives(gadgets: ClusterEnv) -> None:
    twin = SyncVectorEnv([partial(wrapped, i) for i in range(NUM_ENVS)])
    gadgets.reset_async(seed=3, options={"some": "option"})
    assert_same(gadgets.reset_wait()[0], twin.reset(seed=3)[0], "obs")
    for _ in range(6):
        gadgets.step_async(ACTIONS)
        ours, theirs = gadgets.step_wait(timeout=60), twin.step(ACTIONS)
        assert_same(ours[:4], theirs[:4], "step")
        assert_same_infos(ours[4], theirs[4])
    gadgets.call_async("add", 1, b=2)
    assert gadgets.call_wait(timeout=60.0) == twin.call("add", 1, b=2)


def begin(env: Any, what: str) -> None:
    if what == "reset":
        env.reset_async(seed=1)
    elif what == "step":
        env.step_async(ACTIONS)
    else:
        env.call_async("add", 1)


@pytest.mark.parametrize("second", ["reset", "step", "call"])
@pytest.mark.parametrize("first", ["reset", "step", "call"])
def test_second_call_is_refused_while_one_is_pending(gadgets: ClusterEnv, first: str, second: str) -> None:
    begin(gadgets, first)
    with pytest.raises(AlreadyPendingCallError, match=f"{first}_wait") as raised:
        begin(gadgets, second)
    assert raised.value.name == first
    getattr(gadgets, f"{first}_wait")()


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.reset(),
        lambda env: env.step(ACTIONS),
        lambda env: env.step(object()),
        lambda env: env.rollout(object(), 1),
        lambda env: env.publish(object()),
        lambda env: env.call("add", 1),
        lambda env: env.get_attr("index"),
        lambda env: env.set_attr("gravity", 1),
        lambda env: env.render(),
        lambda env: env.np_random,
        lambda env: env.async_reset(),
        lambda env: env.send(ACTIONS),
        lambda env: env.recv(),
    ],
)
def test_no_other_call_is_let_in_while_one_is_pending(
    gadgets: ClusterEnv, call: Callable[[ClusterEnv], Any]
) -> None:
    begin(gadgets, "step")
    with pytest.raises(AlreadyPendingCallError, match="step_async waits for its step_wait"):
        call(gadgets)
    assert gadgets.stats()["workers"]
    assert gadgets.step_wait()[0][:, 0].tolist() == [1.0] * NUM_ENVS


CALLS = ["reset", "step", "call"]


@pytest.mark.parametrize(
    ("pending", "waited"),
    [(pending, waited) for pending in ["nothing", *CALLS] for waited in CALLS if pending != waited],
)
def test_wait_needs_its_own_call_before_it(gadgets: ClusterEnv, pending: str, waited: str) -> None:
    if pending != "nothing":
        begin(gadgets, pending)
    with pytest.raises(NoAsyncCallError, match=f"{waited}_wait without a {waited}_async") as raised:
        getattr(gadgets, f"{waited}_wait")()
    assert raised.value.name == waited
    if pending != "nothing":
        getattr(gadgets, f"{pending}_wait")()


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), [1]])
def test_timeout_that_is_none_is_refused_and_the_call_goes_on(gadgets: ClusterEnv, timeout: Any) -> None:
    begin(gadgets, "call")
    with pytest.raises(ValueError, match="timeout"):
        gadgets.call_wait(timeout)
    assert gadgets.call_wait() == (1, 2, 3, 4, 5)


def test_call_that_takes_longer_than_the_timeout_can_be_waited_for_again(gadgets: ClusterEnv) -> None:
    if gadgets.launcher == SERIAL:
        return  # all is done when the first half returns
    gadgets.call_async("sleep", LONG_S)
    with pytest.raises(multiprocessing.TimeoutError, match=r"within timeout = 0.05 s"):
        gadgets.call_wait(timeout=0.05)
    assert gadgets.call_wait(timeout=60) == tuple(range(NUM_ENVS))


def test_caller_goes_on_while_workers_step(gadgets: ClusterEnv) -> None:
    if gadgets.launcher == SERIAL:
        return
    began = time.monotonic()
    gadgets.call_async("sleep", LONG_S)
    assert time.monotonic() - began < LONG_S
    gadgets.call_wait()
    assert time.monotonic() - began >= LONG_S


def test_step_async_takes_no_agent(gadgets: ClusterEnv) -> None:
    with pytest.raises(ActionError, match="step_async takes a batch of actions; for MLPAgent use step"):
        gadgets.step_async(MLPAgent(gadgets))
