from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from clusterenv.auto_threshold import (
    CLIP,
    DRAWS,
    GAIN,
    HIGHEST,
    LOWEST,
    STEP,
    TARGET,
    AutoThreshold,
    fraction_outside,
    log_ratios,
)
from clusterenv.distributions import Family, Kind
from clusterenv.sync_config import AUTO_START

TWO = Family(Kind.CATEGORICAL, (2,))


def pulls(outside: Callable[[float], float], drift: float, versions: int = 400) -> list[float]:
    """The thresholds after each version of a policy that drifts by `drift` nats a version until it pulls."""
    auto, divergence, thresholds = AutoThreshold(), 0.0, []
    for _ in range(versions):
        divergence += drift
        auto.observe(divergence, outside(divergence))
        thresholds.append(auto.value)
        if divergence > auto.value:
            divergence = 0.0
    return thresholds


@pytest.mark.parametrize("reaches_target_at", [0.004, 0.05, 0.7])
@pytest.mark.parametrize("drifts_to_it", [2.2, 15.0])
def test_threshold_settles_where_the_target_is_met(reaches_target_at: float, drifts_to_it: float) -> None:
    def outside(divergence: float) -> float:
        return min(1.0, TARGET * math.sqrt(divergence / reaches_target_at))

    thresholds = pulls(outside, reaches_target_at / drifts_to_it)

    assert thresholds[-1] == pytest.approx(reaches_target_at, rel=0.3)
    assert max(thresholds[60:]) / min(thresholds[60:]) < 1.5


def test_threshold_starts_at_the_default_and_one_comparison_moves_it_by_a_bounded_factor() -> None:
    for divergence, outside in [(1e6, 0.0), (1e-9, 1.0), (0.05, 1.0), (0.05, 0.0)]:
        auto = AutoThreshold()
        assert auto.value == AUTO_START
        auto.observe(divergence, outside)
        assert 1 / STEP**GAIN <= auto.value / AUTO_START <= STEP**GAIN


def test_many_ratios_outside_never_raise_it_and_few_never_lower_it() -> None:
    for divergence in np.geomspace(1e-6, 10, 50):
        more, fewer = AutoThreshold(), AutoThreshold()
        more.observe(divergence, TARGET + 0.01)
        fewer.observe(divergence, TARGET - 0.01)
        assert more.value <= AUTO_START <= fewer.value


def test_updates_so_large_that_each_is_past_the_target_lower_it_no_further_than_their_size() -> None:
    """Each version is pulled anyway; a threshold far below would also be right, one far above would not."""
    thresholds = pulls(lambda _: 1.0, 0.3)

    assert thresholds[-1] <= 0.3


def test_threshold_stays_within_its_bounds() -> None:
    low, high = AutoThreshold(), AutoThreshold()
    for _ in range(100):
        low.observe(low.value, 1.0)
        high.observe(high.value, 0.0)

    assert low.value == LOWEST
    assert high.value == HIGHEST


@pytest.mark.parametrize(
    ("divergence", "outside"), [(math.nan, 0.1), (math.inf, 1.0), (0.0, 0.0), (0.1, math.nan)]
)
def test_comparison_that_says_nothing_changes_nothing(divergence: float, outside: float) -> None:
    auto = AutoThreshold()
    auto.observe(divergence, outside)

    assert auto.value == AUTO_START


def test_fraction_outside_counts_both_sides_of_the_clip() -> None:
    ratios = np.array([1.0, 1 + CLIP - 1e-6, 1 + CLIP + 1e-6, 1 - CLIP + 1e-6, 1 - CLIP - 1e-6])

    assert fraction_outside(np.log(ratios)) == pytest.approx(0.4)
    assert math.isnan(fraction_outside(np.zeros(0)))


def test_log_ratios_are_those_of_actions_of_the_behaviour_policy() -> None:
    theta_u = np.log(np.tile(np.array([0.9, 0.1], np.float32), (2000, 1)))
    theta_v = np.log(np.tile(np.array([0.6, 0.4], np.float32), (2000, 1)))

    ratios = np.exp(log_ratios(TWO, theta_u, theta_v))

    assert ratios.shape == (2000 * DRAWS,)
    assert np.isclose(ratios, 0.6 / 0.9, atol=1e-4).mean() == pytest.approx(0.9, abs=0.01)
    assert ratios.mean() == pytest.approx(1.0, abs=0.03)  # an importance ratio has mean 1 under π_u
    assert np.array_equal(log_ratios(TWO, theta_u, theta_v), log_ratios(TWO, theta_u, theta_v))
    assert not log_ratios(TWO, theta_u, theta_u).any()


@pytest.mark.parametrize(
    ("family", "columns"),
    [
        (Family(Kind.MULTI_CATEGORICAL, (2, 3)), 5),
        (Family(Kind.BERNOULLI, (3,)), 3),
        (Family(Kind.DIAG_GAUSSIAN, (2,)), 4),
    ],
    ids=lambda value: getattr(getattr(value, "kind", None), "value", ""),
)
def test_log_ratios_of_every_family_have_mean_one(family: Family, columns: int) -> None:
    rng = np.random.default_rng(1)
    theta_u = rng.normal(0, 0.3, (4000, columns)).astype(np.float32)
    theta_v = theta_u + rng.normal(0, 0.1, theta_u.shape).astype(np.float32)

    assert np.exp(log_ratios(family, theta_u, theta_v)).mean() == pytest.approx(1.0, abs=0.02)
