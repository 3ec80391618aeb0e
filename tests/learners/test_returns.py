"""GAE and V-trace against the numbers known by hand and against their definitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learners.returns import generalized_advantage, next_values, vtrace
from tests.long_form import drawn
from tests.reference import returns as reference

NO_ENDS = np.zeros((0, 2), np.int64)


def column(*values: Any) -> np.ndarray:
    """[T, 1]."""
    return np.array(values)[:, None]


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (False, True, [7.56, 8.0, 2.68, 1.5]),
        (True, False, [1.08, -1.0, 2.68, 1.5]),
        (True, True, [1.08, -1.0, 2.68, 1.5]),
    ],
    ids=["truncated", "terminated", "both"],
)
def test_gae_bootstraps_at_a_time_limit_and_not_at_a_true_end(
    terminated: bool, truncated: bool, expected: list[float]
) -> None:
    values = column(1.0, 2.0, 3.0, 4.0).astype(np.float32)
    following = next_values(values, np.array([5.0]), np.array([[1, 0]]), np.array([10.0]))

    advantages = generalized_advantage(
        np.ones((4, 1), np.float32),
        values,
        following,
        column(False, terminated, False, False),
        column(False, truncated, False, False),
        np.ones((4, 1), bool),
        gamma=0.9,
        gae_lambda=0.8,
    )

    np.testing.assert_allclose(advantages[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("log_ratios", "terminated", "targets", "advantages"),
    [
        (np.log([2.0, 0.5, 1.0]), False, [2.6245, 1.805, 2.9], [2.1245, 0.805, 1.4]),
        (np.zeros(3), False, [3.349, 2.61, 2.9], [2.849, 1.61, 1.4]),
        (np.log([2.0, 0.5, 1.0]), True, [1.45, 0.5, 2.9], [0.95, -0.5, 1.4]),
    ],
    ids=["off-policy", "on-policy", "step 1 terminal"],
)
def test_vtrace_gives_the_numbers_known_by_hand(
    log_ratios: np.ndarray, terminated: bool, targets: list[float], advantages: list[float]
) -> None:
    values = column(0.5, 1.0, 1.5)
    ends = np.array([[1, 0]]) if terminated else NO_ENDS
    following = next_values(values, np.array([1.0]), ends, np.full(len(ends), 99.0))

    trace = vtrace(
        column(1.0, 0.0, 2.0),
        values,
        following,
        column(False, terminated, False),
        np.zeros((3, 1), bool),
        np.ones((3, 1), bool),
        log_ratios[:, None],
        gamma=0.9,
    )

    np.testing.assert_allclose(trace.targets[:, 0], targets, atol=1e-6)
    np.testing.assert_allclose(trace.advantages[:, 0], advantages, atol=1e-6)


@st.composite
def _batches(draw: st.DrawFn) -> list[list[reference.Step]]:
    """Some steps of a few environments."""
    numbers = st.floats(-3, 3)
    step = st.builds(
        reference.Step,
        reward=numbers,
        value=numbers,
        following=numbers,
        terminated=st.integers(0, 4).map(lambda n: n == 0),
        truncated=st.integers(0, 4).map(lambda n: n == 0),
        valid=st.integers(0, 4).map(lambda n: n > 0),
        log_ratio=numbers,
    )
    num_steps = draw(st.integers(1, 8))
    envs = draw(st.lists(st.lists(step, min_size=num_steps, max_size=num_steps), min_size=1, max_size=3))
    for steps in envs:
        for now, later in pairwise(steps):
            if not (now.terminated or now.truncated):
                now.following = later.value
    return envs


def _array(envs: list[list[reference.Step]], name: str) -> np.ndarray:
    """[T, N]."""
    return np.array([[getattr(step, name) for step in env] for env in envs]).T


ARRAYS = ("reward", "value", "following", "terminated", "truncated", "valid")


@drawn(60)
@given(envs=_batches(), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_its_definition(
    envs: list[list[reference.Step]], gamma: float, lam: float
) -> None:
    advantages = generalized_advantage(*(_array(envs, name) for name in ARRAYS), gamma=gamma, gae_lambda=lam)

    for env, steps in enumerate(envs):
        np.testing.assert_allclose(advantages[:, env], reference.gae(steps, gamma, lam), atol=1e-9)


@drawn(60)
@given(envs=_batches(), gamma=st.floats(0, 1), lam=st.floats(0, 1), bars=st.tuples(*[st.floats(0.1, 3)] * 2))
def test_vtrace_is_the_sum_of_products_of_its_definition(
    envs: list[list[reference.Step]], gamma: float, lam: float, bars: tuple[float, float]
) -> None:
    c_bar, rho_bar = sorted(bars)

    trace = vtrace(
        *(_array(envs, name) for name in (*ARRAYS, "log_ratio")),
        gamma=gamma,
        rho_bar=rho_bar,
        c_bar=c_bar,
        trace_lambda=lam,
    )

    for env, steps in enumerate(envs):
        targets, advantages = reference.vtrace(steps, gamma, rho_bar, c_bar, lam)
        np.testing.assert_allclose(trace.targets[:, env], targets, atol=1e-8)
        np.testing.assert_allclose(trace.advantages[:, env], advantages, atol=1e-8)


def test_gae_does_not_let_a_reset_row_of_next_step_into_the_row_before() -> None:
    """NEXT_STEP: the row after the end is no transition; its observation is the final one."""
    values = column(1.0, 10.0, 3.0)
    arguments = (
        column(1.0, 0.0, 1.0),
        values,
        next_values(values, np.array([4.0]), NO_ENDS, np.zeros(0)),
        np.zeros((3, 1), bool),
        column(True, False, False),
        column(True, False, True),
    )

    advantages = generalized_advantage(*arguments, gamma=0.9, gae_lambda=0.8)

    np.testing.assert_allclose(advantages[:, 0], [1 + 0.9 * 10 - 1, 0.0, 1 + 0.9 * 4 - 3])


def test_next_values_follow_the_final_observation_at_the_last_row_too() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0]])

    following = next_values(values, np.array([5.0, 6.0]), np.array([[1, 0], [0, 1]]), np.array([7.0, 8.0]))

    assert following.tolist() == [[3.0, 8.0], [7.0, 6.0]]


def test_shapes_that_do_not_fit_are_refused_with_what_was_seen() -> None:
    flags, floats = np.zeros((3, 2), bool), np.zeros((3, 2))

    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 2\).*expected all \[T, N\]"):
        generalized_advantage(floats, floats, floats[1:], flags, flags, flags, gamma=1.0, gae_lambda=1.0)
    with pytest.raises(ValueError, match=r"last_values \(3,\); expected \[T, N\] and \[N\]"):
        next_values(floats, np.zeros(3), NO_ENDS, np.zeros(0))
    with pytest.raises(ValueError, match=r"final_values \(1,\); expected \[K, 2\] and \[K\]"):
        next_values(floats, np.zeros(2), NO_ENDS, np.zeros(1))


def test_vtrace_refuses_a_rho_bar_below_c_bar() -> None:
    flags, floats = np.zeros((1, 1), bool), np.zeros((1, 1))

    with pytest.raises(ValueError, match=r"rho_bar is 0\.5 and c_bar 1\.0"):
        vtrace(floats, floats, floats, flags, flags, flags, floats, gamma=1.0, rho_bar=0.5)


@drawn(30)
@given(envs=_batches(), gamma=st.floats(0, 1), bars=st.tuples(st.floats(1, 3), st.floats(0, 2)))
def test_vtrace_on_policy_is_the_n_step_return(
    envs: list[list[reference.Step]], gamma: float, bars: tuple[float, float]
) -> None:
    """With both bars at 1 or above, whatever they are: IMPALA, section 4.1."""
    c_bar, rho_bar = bars[0], bars[0] + bars[1]
    arrays = [_array(envs, name) for name in ARRAYS]

    trace = vtrace(*arrays, np.zeros(arrays[0].shape), gamma=gamma, rho_bar=rho_bar, c_bar=c_bar)

    for env, steps in enumerate(envs):
        for t, step in enumerate(steps):
            episode = list(reference._episode(steps, t))
            n_step = step.value
            if episode:
                last = episode[-1]
                rest = 0.0 if last.terminated else gamma ** len(episode) * last.following
                n_step = rest + sum(gamma**n * later.reward for n, later in enumerate(episode))
            assert trace.targets[t, env] == pytest.approx(n_step, abs=1e-8)
