from __future__ import annotations

import math

import numpy as np
import pytest

from clusterenv.distributions import Family, Kind
from clusterenv.policy_sync import (
    KEPT_SAMPLES,
    Decision,
    ReferenceSamples,
    SyncReason,
    decide,
    divergence_of,
    mean_divergence,
    prototype_rows,
    sample_size,
)
from clusterenv.sync_config import SyncConfig

TWO = Family(Kind.CATEGORICAL, (2,))
STAY = Decision(pull=False)


def decision(
    config: SyncConfig,
    *,
    acting: int | None = 10,
    published: int = 11,
    divergence: float | None = 0.0,
    age_s: float = 0.0,
    forced: bool = False,
    awaited: bool = False,
) -> Decision:
    return decide(
        config,
        acting_version=acting,
        published_version=published,
        divergence=divergence,
        age_s=age_s,
        forced=forced,
        awaited=awaited,
    )


def pull(reason: SyncReason) -> Decision:
    return Decision(pull=True, reason=reason)


def test_decide_waits_for_a_divergence_that_will_be_known_but_not_beyond_the_bounds() -> None:
    config = SyncConfig(max_lag=3, max_age_s=1.0)

    assert not decision(config, divergence=None, awaited=True).pull
    assert decision(config, divergence=None) == pull(SyncReason.NO_DIVERGENCE)
    assert decision(config, published=14, divergence=None, awaited=True) == pull(SyncReason.MAX_LAG)
    assert decision(config, divergence=None, age_s=2.0, awaited=True) == pull(SyncReason.MAX_AGE)
    every_version = SyncConfig(kl_threshold=0.0)
    assert decision(every_version, divergence=None, awaited=True) == pull(SyncReason.DIVERGENCE)


@pytest.mark.parametrize("sync", ["adaptive", "every", "interval:3", "broadcast", "never"])
def test_decide_pulls_the_first_weights_under_every_rule(sync: str) -> None:
    config = SyncConfig(sync=sync, kl_threshold=math.inf, min_interval=5)

    assert decision(config, acting=None, published=1, divergence=None) == pull(SyncReason.FIRST)


@pytest.mark.parametrize("sync", ["adaptive", "every", "interval:1", "broadcast", "never"])
@pytest.mark.parametrize("forced", [False, True])
def test_decide_stays_with_the_newest_weights_under_every_rule(sync: str, forced: bool) -> None:
    config = SyncConfig(sync=sync, kl_threshold=0.0, max_age_s=1.0)

    assert decision(config, published=10, divergence=math.nan, age_s=99.0, forced=forced) == STAY


def test_decide_asks_in_the_order_forced_lag_age_interval_divergence() -> None:
    config = SyncConfig(kl_threshold=0.05, max_lag=4, max_age_s=10.0, min_interval=3)
    stale = {"published": 15, "divergence": 1.0, "age_s": 11.0}

    assert decision(config, **stale, forced=True) == pull(SyncReason.FORCED)
    assert decision(config, **stale) == pull(SyncReason.MAX_LAG)
    assert decision(config, **stale | {"published": 11}) == pull(SyncReason.MAX_AGE)
    assert decision(config, published=12, divergence=1.0) == STAY
    assert decision(config, published=13, divergence=1.0) == pull(SyncReason.DIVERGENCE)


@pytest.mark.parametrize(
    ("threshold", "divergence", "expected"),
    [
        (0.05, 0.05, STAY),
        (0.05, math.nextafter(0.05, 1), pull(SyncReason.DIVERGENCE)),
        (0.05, math.nan, pull(SyncReason.DIVERGENCE)),
        (0.05, math.inf, pull(SyncReason.DIVERGENCE)),
        (0.05, None, pull(SyncReason.NO_DIVERGENCE)),
        (0.0, 0.0, pull(SyncReason.DIVERGENCE)),
        (math.inf, 1e30, STAY),
        (math.inf, math.nan, STAY),
        (math.inf, None, STAY),
    ],
)
def test_decide_compares_the_divergence(
    threshold: float, divergence: float | None, expected: Decision
) -> None:
    assert decision(SyncConfig(kl_threshold=threshold), divergence=divergence) == expected


def test_decide_never_lets_the_lag_exceed_its_bound() -> None:
    config = SyncConfig(kl_threshold=math.inf, max_lag=3)
    acting, reasons = None, []
    for published in range(1, 14):
        made = decision(config, acting=acting, published=published, divergence=9.9)
        if made.pull:
            acting = published
            reasons.append(made.reason)
        assert acting is not None
        assert published - acting <= 3

    assert reasons == [SyncReason.FIRST, *[SyncReason.MAX_LAG] * 3]


@pytest.mark.parametrize(
    ("sync", "published", "expected"),
    [
        ("every", 11, pull(SyncReason.EVERY)),
        ("broadcast", 11, pull(SyncReason.BROADCAST)),
        ("interval:3", 12, STAY),
        ("interval:3", 13, pull(SyncReason.INTERVAL)),
        ("interval:300", 300, STAY),
        ("never", 300, STAY),
    ],
)
def test_decide_follows_the_other_rules_alone(sync: str, published: int, expected: Decision) -> None:
    config = SyncConfig(sync=sync, max_lag=4, max_age_s=1.0, min_interval=2)

    assert decision(config, published=published, divergence=9.9, age_s=99.0) == expected


def test_older_rule_compares_a_sum_and_knows_no_bound() -> None:
    config = SyncConfig(sync="prototype:0.05", max_lag=1, kl_threshold=9.0)

    assert decision(config, published=99, divergence=0.05) == STAY
    assert decision(config, published=11, divergence=0.051) == pull(SyncReason.DIVERGENCE)
    assert decision(config, published=11, divergence=None) == pull(SyncReason.NO_DIVERGENCE)
    theta = np.zeros((64, 2), np.float32)
    other = np.tile(np.array([0.0, 0.1], np.float32), (64, 1))
    mean = divergence_of("adaptive", TWO, theta, other)
    assert divergence_of("prototype:0.05", TWO, theta, other) == pytest.approx(64 * mean)


def test_older_rule_takes_the_heads_newest_states_and_those_before_from_the_worker() -> None:
    assert prototype_rows(5, 3, back=0).tolist() == [12, 13, 14]
    assert prototype_rows(5, 3, back=1).tolist() == [9, 10, 11]
    assert prototype_rows(1, 3, back=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("n_ref", "workers", "size"), [(64, 1, 64), (64, 64, 64), (64, 128, 32), (64, 10_000, 8), (4, 10_000, 4)]
)
def test_sample_size_shrinks_with_the_workers(n_ref: int, workers: int, size: int) -> None:
    assert sample_size(n_ref, workers) == size


@pytest.mark.parametrize("envs", [1, 64, 4096])
def test_mean_divergence_does_not_depend_on_the_number_of_states(envs: int) -> None:
    # KL([.5 .5] || [p 1-p]) is 0.01 for this p.
    p = 0.5 + math.sqrt(1 - math.exp(-0.02)) / 2
    theta_u = np.zeros((envs, 2), np.float32)
    theta_v = np.tile(np.log(np.array([p, 1 - p], np.float32)), (envs, 1))
    divergence = mean_divergence(TWO, theta_u, theta_v)

    assert divergence == pytest.approx(0.01, abs=1e-6)
    assert decision(SyncConfig(kl_threshold=0.02), divergence=divergence) == STAY
    assert decision(SyncConfig(kl_threshold=0.005), divergence=divergence) == pull(SyncReason.DIVERGENCE)


def test_mean_divergence_of_equal_parameters_is_exactly_zero() -> None:
    theta = np.random.default_rng(0).normal(0, 50, (7, 2)).astype(np.float32)
    theta[0] = [-math.inf, 1e4]

    assert mean_divergence(TWO, theta, theta.copy()) == 0.0


def test_mean_divergence_without_states_is_unknown() -> None:
    assert math.isnan(mean_divergence(TWO, np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)))


def test_reference_samples_keep_the_last_fragments() -> None:
    samples = ReferenceSamples()
    for fragment in range(1, 30):
        samples.put(fragment, 3, TWO, np.full((1, 2), fragment, np.float32))

    kept = [fragment for fragment in range(1, 30) if samples.get(fragment, 3, TWO) is not None]
    newest = samples.get(29, 3, TWO)
    assert kept == list(range(30 - KEPT_SAMPLES, 30))
    assert newest is not None
    assert newest[0, 0] == 29


def test_reference_samples_say_nothing_of_another_policy_or_family() -> None:
    samples = ReferenceSamples()
    samples.put(1, 3, TWO, np.zeros((1, 2), np.float32))

    assert samples.get(1, 4, TWO) is None
    assert samples.get(1, None, TWO) is None
    assert samples.get(1, 3, Family(Kind.BERNOULLI, (2,))) is None
    samples.clear()
    assert samples.get(1, 3, TWO) is None
