"""Rollouts whose steps are made without coming back to Python for the policy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from torch.distributions import Distribution

from clusterenv.adapters.fused import CHECK_EVERY, WATCH_FROM
from clusterenv.batches import Fragment
from clusterenv.collector import Collector
from clusterenv.commands import Call, Collect, Failed
from clusterenv.passed_checks import Checks
from clusterenv.runner import Runner
from clusterenv.runner_policy import RunnerPolicy
from clusterenv.values import decode
from tests.agents import MLPAgent, Spaces
from tests.envs import BoundedBox, Count, Fails, RandomObs, ReusingCount
from tests.pools import carrier, give_agent, reset, runner_of

STEPS = 40


class Shifted(ReusingCount):
    """Actions from 3 on, checked; one array for all observations."""

    action_space = spaces.Discrete(2, start=3)

    def step(self, action: Any) -> Any:
        assert type(action) is np.int64
        assert self.action_space.contains(action)
        return super().step(action)


class Scribbles(Count):
    """Writes into the unbounded action that it is given."""

    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action[:] = np.nan
        return super().step(action)


class Bits(Count):
    action_space = spaces.MultiBinary(3)


class Imprecise(RandomObs):
    """Observations of another dtype than its space says, which are converted."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)


def acting(env_fns: tuple[Callable[[], gym.Env], ...]) -> Runner:
    runner = runner_of(env_fns)
    env = env_fns[0]()
    give_agent(carrier(runner), MLPAgent(Spaces(env.observation_space, env.action_space)), env)
    reset(carrier(runner), len(env_fns), seed=1)
    return runner


def collect(runner: Runner, num_steps: int = STEPS) -> Fragment:
    fragment = carrier(runner)(Collect(num_steps=num_steps))
    assert isinstance(fragment, Fragment)
    return fragment


@pytest.fixture(autouse=True)
def as_in_a_runner() -> Any:
    """Distributions are not validated, which would look at their numbers."""
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(__debug__)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were made by each use of a collector."""
    made: list[int] = []
    fill = Collector._fill

    def counted(collector: Collector, until: int) -> None:
        before = collector._record.steps_done
        try:
            fill(collector, until)
        finally:
            made.append(collector._record.steps_done - before)

    monkeypatch.setattr(Collector, "_fill", counted)
    return made


@pytest.mark.parametrize("env_fn", [Shifted, BoundedBox, Scribbles, Bits, Imprecise])
def test_steps_made_alone_are_those_of_the_agent_bit_for_bit(
    env_fn: type[Count], alone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    env_fns = tuple(functools.partial(env_fn, 4 + i, ("term", "trunc")[i % 2]) for i in range(3))
    fast = acting(env_fns)
    seen = [collect(fast), collect(fast, 7)]
    assert alone == [STEPS - WATCH_FROM - 2, 7]
    monkeypatch.setattr(RunnerPolicy, "drawing", lambda _: None)
    slow = acting(env_fns)
    for ours, theirs in zip(seen, [collect(slow), collect(slow, 7)], strict=True):
        assert ours.params is not None
        assert theirs.params is not None
        for one, other in zip([*ours.frames(), ours.params], [*theirs.frames(), theirs.params], strict=True):
            np.testing.assert_array_equal(one, other)
        assert (ours.episodes, ours.family) == (theirs.episodes, theirs.family)


def test_agent_is_asked_again_when_a_check_is_due(alone: list[int]) -> None:
    collect(acting((Count,)), CHECK_EVERY + 100)
    assert alone == [CHECK_EVERY - 1, 100 - WATCH_FROM - 2]


def test_environment_that_raises_is_named_with_its_action_and_earlier_steps_count(alone: list[int]) -> None:
    runner = acting((functools.partial(Count, 1000), functools.partial(Fails, "step", 30, 1000)))
    reply = runner.handle(Collect(num_steps=STEPS))
    assert isinstance(reply, Failed)
    assert reply.env_index == 1
    assert "environment 1 failed in step with action np.int64(" in reply.message
    assert alone
    assert runner._lengths[0] == WATCH_FROM + 2 + alone[0]


RUNNERS: list[Runner] = []


class Leaves(Count):
    """In the step after the 20th nobody waits for the runner any more."""

    def step(self, action: Any) -> Any:
        if self.t == 20:
            RUNNERS.pop().abandon()
        return super().step(action)


def test_rollout_ends_after_the_step_in_which_it_is_abandoned(alone: list[int]) -> None:
    RUNNERS.append(acting((Count, functools.partial(Leaves, 1000))))
    reply = RUNNERS[0].handle(Collect(num_steps=STEPS))
    assert isinstance(reply, Failed)
    assert "abandoned" in reply.message
    assert alone == [21 - WATCH_FROM - 2]


def test_policy_that_is_no_distribution_any_more_is_the_agents_error(alone: list[int]) -> None:
    class Explodes(Count):
        def _obs(self) -> np.ndarray:
            return np.array([np.nan if self.t == 20 else self.t], np.float32)

    reply = acting((functools.partial(Explodes, 1000),)).handle(Collect(num_steps=STEPS))
    assert isinstance(reply, Failed)
    assert reply.message.startswith("the agent (MLPAgent) failed: ")
    assert alone == [20 - WATCH_FROM - 2, 0]


def limited(steps: int) -> gym.Env:
    return TimeLimit(Count(1000), steps)


def test_time_limit_is_counted_for_the_wrapper_which_knows_it_afterwards(alone: list[int]) -> None:
    runner = acting((functools.partial(limited, 6), functools.partial(limited, 1000)))
    first = collect(runner)
    assert np.flatnonzero(first.truncations[:, 0]).tolist() == list(range(5, STEPS, 6))
    assert not first.truncations[:, 1].any()
    assert not first.terminations.any()
    assert alone
    elapsed = carrier(runner)(Call(name="_elapsed_steps", arguments=_no_arguments()))
    assert [decode(result) for result in elapsed.results] == [STEPS % 6, STEPS]


def _no_arguments() -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(((), {})))


def test_time_limit_is_passed_by_only_where_it_is_the_outermost_and_untouched() -> None:
    class Counts(TimeLimit):
        def step(self, action: Any) -> Any:
            return super().step(action)

    plain, other, inside = limited(9), Counts(Count(9), 9), gym.wrappers.RecordEpisodeStatistics(limited(9))
    envs = [plain, other, inside]
    for env in envs:
        env.reset()
    steps: list[Any] = [env.step for env in envs]
    checks = Checks(envs, steps)
    for row in range(3):
        checks.leave_out(row)
    with checks.counting_steps():
        assert steps == [plain.env.step, other.step, inside.step]
        assert checks.limits.tolist() == [[0, 9], [0, 0], [0, 0]]
    assert steps == [env.step for env in envs]
