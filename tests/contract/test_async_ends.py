"""How `step_async` and its kin end: by an error of an environment, by close, and before they began."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import EnvError, StateError
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS, SERIAL, TWO_WORKERS
from tests.envs import Count, Echo, Fails

pytestmark = pytest.mark.process

ACTIONS = np.zeros(NUM_ENVS, np.int64)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("launcher", [SERIAL, TWO_WORKERS], ids=["serial", "two workers"])
def test_nothing_is_pending_after_an_environment_raised(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 9), partial(Fails, "step", 1)], launcher) as env:
        env.reset(seed=0)
        env.step_async(np.zeros(2, np.int64))
        with pytest.raises(EnvError, match="on purpose"):
            env.step_wait()
        with pytest.raises(NoAsyncCallError):
            env.step_wait()
        env.reset(seed=0)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("launcher", [SERIAL, TWO_WORKERS], ids=["serial", "two workers"])
def test_closed_environments_say_so_whatever_is_called(launcher: LocalConfig) -> None:
    env = ClusterEnv([partial(wrapped, i) for i in range(NUM_ENVS)], launcher)
    env.reset(seed=0)
    env.step_async(ACTIONS)
    env.close(timeout=1, terminate=True)  # pending or not, with the arguments that Gymnasium has
    for call in (
        env.reset,
        env.reset_async,
        env.reset_wait,
        lambda: env.step(ACTIONS),
        lambda: env.step_async(ACTIONS),
        env.step_wait,
        lambda: env.call("add", 1),
        lambda: env.call_async("add", 1),
        env.call_wait,
        lambda: env.get_attr("index"),
        lambda: env.set_attr("gravity", 1),
        env.render,
        env.async_reset,
        lambda: env.send(ACTIONS),
        env.recv,
    ):
        with pytest.raises(ClosedEnvironmentError):
            call()
    assert env.closed
    assert env.single_action_space.n == 2  # what was known stays known


@pytest.mark.usefixtures("nothing_left")
def test_actions_may_be_changed_while_the_environments_step() -> None:
    space = spaces.Box(-1, 1, (1 << 20,), np.float32)
    with ClusterEnv([partial(Echo, space)] * 2, TWO_WORKERS) as env:
        env.reset(seed=0)
        for _ in range(3):
            actions = np.ones((2, 1 << 20), np.float32)
            env.step_async(actions)
            actions[:] = -1
            assert (env.step_wait()[0] == 1).all()


@pytest.mark.usefixtures("nothing_left")
def test_close_does_not_wait_for_a_call_that_is_pending() -> None:
    env = ClusterEnv([partial(wrapped, i) for i in range(NUM_ENVS)], TWO_WORKERS)
    env.reset(seed=0)
    env.call_async("sleep", 100.0)
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 30


def test_step_before_reset_is_refused_in_both_halves() -> None:
    with ClusterEnv([partial(Count, 9)], SERIAL) as env:
        for step in (env.step, env.step_async):
            with pytest.raises(StateError, match="step before reset"):
                step(np.zeros(1, np.int64))


def test_errors_have_the_classes_that_gymnasium_raises() -> None:
    """The same calls against Gymnasium's own class, so that the tests above ask for the right errors."""
    theirs = AsyncVectorEnv([partial(wrapped, 0)], context="forkserver")
    try:
        with pytest.raises(NoAsyncCallError):
            theirs.step_wait()
        theirs.reset_async(seed=1)
        with pytest.raises(AlreadyPendingCallError):
            theirs.reset_async(seed=1)
        theirs.reset_wait()
    finally:
        theirs.close()
    with pytest.raises(ClosedEnvironmentError):
        theirs.step_wait()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("back", [False, True])
def test_masked_reset_leaves_the_loss_of_a_worker_to_the_next_step(back: bool) -> None:
    with ClusterEnv([partial(Count, 10**6)] * 4, TWO_WORKERS, lease_s=3, on_worker_loss="restart") as env:
        env.reset(seed=0)
        actions = np.zeros(4, np.int64)
        env.step(actions)
        env.step(actions)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        states = [(1, "ready")] if back else [(0, "away"), (1, "starting")]
        while (env.stats()["workers"][1]["restarts"], env.stats()["workers"][1]["state"]) not in states:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        obs, _ = env.reset(options={"reset_mask": np.array([True, False, True, False])})
        assert obs[:, 0].tolist() == [0, 2, 2, 2]
        obs, _, _, truncated, info = env.step(actions)
        assert info["worker_lost"].tolist() == truncated.tolist() == [False, False, True, True]
        assert obs[:, 0].tolist() == [1, 3, 2, 2]
        obs, _, _, truncated, info = env.step(actions)
        assert info["valid"].tolist() == [True, True, False, False]
        assert obs[:, 0].tolist() == [2, 4, 0, 0]
        assert not truncated.any()
        obs, *_, info = env.step(actions)
        assert "valid" not in info
        assert obs[:, 0].tolist() == [3, 5, 1, 1]


@pytest.mark.usefixtures("nothing_left")
def test_worker_that_was_lost_and_came_back_in_between_shows_its_loss_first() -> None:
    with ClusterEnv([partial(Count, 10**6)] * 4, TWO_WORKERS, lease_s=3) as env:
        env.reset(seed=0)
        actions = np.zeros(4, np.int64)
        env.step_async(actions)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while (env.stats()["workers"][1]["restarts"], env.stats()["workers"][1]["state"]) != (1, "ready"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        obs, _, _, truncated, info = env.step_wait()
        assert info["worker_lost"].tolist() == truncated.tolist() == [False, False, True, True]
        assert obs[:, 0].tolist() == [1, 1, 0, 0]
        obs, *_, info = env.step(actions)
        assert info["valid"].tolist() == [True, True, False, False]
        assert obs[:, 0].tolist() == [2, 2, 0, 0]
        obs, *_, info = env.step(actions)
        assert "valid" not in info
        assert obs[:, 0].tolist() == [3, 3, 1, 1]
