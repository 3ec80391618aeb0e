"""Families of distributions: divergences, samples and log-probabilities."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from clusterenv import distributions as d
from clusterenv.distributions import Family, Kind
from tests.long_form import drawn
from tests.reference import kl as slow_kl
from tests.reference import sampling

FAMILIES = [
    Family(Kind.CATEGORICAL, (1,)),
    Family(Kind.CATEGORICAL, (5,)),
    Family(Kind.MULTI_CATEGORICAL, (3, 1, 4)),
    Family(Kind.BERNOULLI, (3,)),
    Family(Kind.DIAG_GAUSSIAN, (3,)),
]
DISCRETE = FAMILIES[:4]


def logs(*rows: list[float]) -> NDArray[np.float64]:
    """Logits of given probabilities."""
    return np.log(np.array(rows))


def draw(
    family: Family, params: NDArray[np.float32], seed: int = 1, first_env: int = 0, step: int = 0
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Actions and log-probabilities for envs `first_env`, ... at one step."""
    actions = np.empty((len(params), *family.action_shape), family.action_dtype)
    log_probs = np.empty(len(params), np.float32)
    d.sample(
        family,
        params,
        seed=seed,
        env_ids=first_env + np.arange(len(params)),
        steps=np.full(len(params), step),
        actions_out=actions,
        log_probs_out=log_probs,
    )
    return actions, log_probs


@st.composite
def parameters(draw: st.DrawFn, family: Family, dtype: Any = np.float32, masks: bool = True) -> NDArray[Any]:
    """Rows [n, P] with logits up to 1e4 and some masks, or sane Gaussians."""
    shape = (draw(st.integers(0, 4)), family.num_params)
    if family.kind is Kind.DIAG_GAUSSIAN:
        return draw(hnp.arrays(dtype, shape, elements=st.floats(-3, 3, width=32)))
    values = st.floats(-8, 8, width=32) | st.floats(-1e4, 1e4, width=32)
    return draw(hnp.arrays(dtype, shape, elements=values | st.just(-math.inf) if masks else values))


def possible(family: Family, params: NDArray[Any]) -> bool:
    """Whether every categorical of every row has an outcome."""
    if family.kind not in (Kind.CATEGORICAL, Kind.MULTI_CATEGORICAL):
        return True
    parts = np.split(params, np.cumsum(family.sizes)[:-1], axis=1)
    return all((part.max(axis=1, initial=-math.inf) > -math.inf).all() for part in parts)


@pytest.mark.parametrize(
    ("family", "p", "q", "expected"),
    [
        (Family(Kind.CATEGORICAL, (2,)), logs([0.5, 0.5]), logs([0.9, 0.1]), 0.5108256),
        (Family(Kind.CATEGORICAL, (2,)), logs([0.9, 0.1]), logs([0.5, 0.5]), 0.3680642),
        (Family(Kind.CATEGORICAL, (3,)), logs([0.7, 0.2, 0.1]), logs([0.5, 0.3, 0.2]), 0.0851228),
        (Family(Kind.MULTI_CATEGORICAL, (2, 2)), np.zeros((1, 4)), logs([0.9, 0.1, 0.5, 0.5]), 0.5108256),
        (Family(Kind.BERNOULLI, (1,)), np.zeros((1, 1)), logs([9.0]), 0.5108256),
        (Family(Kind.DIAG_GAUSSIAN, (1,)), np.zeros((1, 2)), np.array([[1, math.log(2)]]), 0.4431472),
        (
            Family(Kind.DIAG_GAUSSIAN, (2,)),
            np.array([[0, 1, 0, math.log(0.5)]]),
            np.array([[1, 1, math.log(2), 0]]),
            0.7612944,
        ),
    ],
)
def test_kl_has_the_textbook_value(
    family: Family, p: NDArray[np.float64], q: NDArray[np.float64], expected: float
) -> None:
    assert d.kl(family, p, q)[0] == pytest.approx(expected, abs=1e-7)
    assert d.kl(family, p.astype(np.float32), q.astype(np.float32))[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@drawn(60)
@given(data=st.data())
def test_kl_is_its_slow_twin_and_never_nan(family: Family, dtype: Any, data: st.DataObject) -> None:
    p = data.draw(parameters(family, dtype))
    q = data.draw(hnp.arrays(dtype, p.shape, elements=st.sampled_from(p.ravel()) if p.size else None))
    with np.errstate(divide="ignore"):
        expected = slow_kl.kl(family, p, q)
    result = d.kl(family, p, q)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
    assert (result >= 0).all()
    assert d.kl(family, p, p.copy()).tolist() == [0.0] * len(p)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([0, -math.inf], [0, -math.inf], 0.0),
        ([0, -math.inf], [0, 0], math.log(2)),
        ([0, 0], [0, -math.inf], math.inf),
        ([1e4, -1e4], [-1e4, 1e4], 2e4),
        ([-math.inf, -math.inf], [0, 0], math.inf),
        ([-math.inf, -math.inf], [-math.inf, -math.inf], 0.0),
    ],
)
def test_kl_of_masks_and_extremes_is_a_number_or_infinity(
    p: list[float], q: list[float], expected: float
) -> None:
    rows = np.array([p], np.float32), np.array([q], np.float32)
    assert d.kl(Family(Kind.CATEGORICAL, (2,)), *rows).tolist() == pytest.approx([expected])


def test_kl_of_nan_is_nan_so_that_a_threshold_never_passes_it() -> None:
    bad = np.array([[math.nan, 0]], np.float32)
    for kind, size in ((Kind.CATEGORICAL, 2), (Kind.BERNOULLI, 2), (Kind.DIAG_GAUSSIAN, 1)):
        assert np.isnan(d.kl(Family(kind, (size,)), bad, np.zeros_like(bad))).all()


@drawn(100)
@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=5))
def test_k3_is_its_slow_twin_and_never_negative(pairs: list[tuple[float, float]]) -> None:
    behaviour, target = np.array(pairs).T
    estimates = d.k3(behaviour, target)
    np.testing.assert_allclose(
        estimates, [slow_kl.k3(*pair) for pair in pairs], rtol=1e-6, atol=1e-7
    )  # the twin cancels
    assert (estimates >= 0).all()
    assert d.k3(behaviour, behaviour).tolist() == [0.0] * len(pairs)


def test_k3_estimates_the_kl_of_the_policy_that_acted() -> None:
    family = Family(Kind.DIAG_GAUSSIAN, (1,))
    behaviour = np.zeros((20000, 2), np.float32)
    target = np.full_like(behaviour, 0.3)
    actions, log_probs = draw(family, behaviour)
    estimate = d.k3(log_probs, d.log_prob(family, target, actions)).mean()
    assert estimate == pytest.approx(d.kl(family, behaviour, target)[0], rel=0.05)


@pytest.mark.parametrize("family", FAMILIES)
@drawn(60)
@given(data=st.data())
def test_sample_is_its_slow_twin(family: Family, data: st.DataObject) -> None:
    params = data.draw(parameters(family))
    assume(possible(family, params))
    seed = data.draw(st.integers(0, 2**64 - 1))
    first_env = data.draw(st.integers(0, 2**32 - 5))
    step = data.draw(st.integers(0, 2**63 - 1))
    actions, log_probs = draw(family, params, seed, first_env, step)
    env_ids = [first_env + i for i in range(len(params))]
    expected = sampling.sample(family, params, seed, env_ids, [step] * len(params))
    if family.kind is Kind.DIAG_GAUSSIAN:
        np.testing.assert_allclose(actions, expected, rtol=1e-6, atol=1e-6)
    else:
        assert actions.tolist() == expected.tolist()
    np.testing.assert_allclose(log_probs, sampling.log_prob(family, params, actions), rtol=1e-5, atol=1e-5)
    assert d.log_prob(family, params, actions).tolist() == log_probs.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_sample_does_not_depend_on_how_a_batch_is_split_or_ordered(family: Family) -> None:
    rng = np.random.default_rng(0)
    params = rng.standard_normal((64, family.num_params)).astype(np.float32)
    env_ids, steps = rng.integers(0, 2**32, 64), rng.integers(0, 2**40, 64)

    def rows(order: NDArray[np.int64]) -> list[list[Any]]:
        actions = np.empty((len(order), *family.action_shape), family.action_dtype)
        log_probs = np.empty(len(order), np.float32)
        keys = {"env_ids": env_ids[order], "steps": steps[order]}
        d.sample(family, params[order], seed=9, **keys, actions_out=actions, log_probs_out=log_probs)
        return [[*np.atleast_1d(a), log_prob] for a, log_prob in zip(actions, log_probs, strict=True)]

    together = rows(np.arange(64))
    shuffled = rng.permutation(64)
    assert [together[i] for i in shuffled] == rows(shuffled)
    assert together == [row for part in np.split(np.arange(64), [1, 7, 40]) for row in rows(part)]


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_sample_differs_by_seed_env_and_step(family: Family) -> None:
    params = np.zeros((64, family.num_params), np.float32)
    keys = [(1, 0, 0), (2, 0, 0), (1, 64, 0), (1, 0, 1), (1, 0, 2**32)]
    assert len({draw(family, params, *key)[0].tobytes() for key in keys}) == len(keys)


def test_dimensions_of_an_action_are_drawn_apart() -> None:
    actions, _ = draw(Family(Kind.DIAG_GAUSSIAN, (4,)), np.zeros((5000, 8), np.float32))
    correlations = np.corrcoef(actions.T) - np.eye(4)
    assert np.abs(correlations).max() < 0.05


def test_categorical_frequencies_follow_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.0, 0.25, 0.2, 0.05])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities).astype(np.float32)
    actions, _ = draw(Family(Kind.CATEGORICAL, (5,)), np.tile(logits, (40000, 1)))
    counts, expected = np.bincount(actions, minlength=5), 40000 * probabilities
    assert counts[1] == 0
    taken = expected > 0
    chi_square = np.sum((counts[taken] - expected[taken]) ** 2 / expected[taken])
    assert chi_square < 16.3  # 0.1 % point, three degrees of freedom


def test_gaussian_quantiles_follow_the_normal_distribution() -> None:
    actions, _ = draw(Family(Kind.DIAG_GAUSSIAN, (1,)), np.tile(np.float32([2, math.log(3)]), (40000, 1)))
    z = np.sort((actions[:, 0].astype(np.float64) - 2) / 3)
    distribution = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in z])
    distance = np.abs(distribution - (np.arange(40000) + 0.5) / 40000).max()
    assert distance < 1.95 / math.sqrt(40000)  # 0.1 % point of Kolmogorov and Smirnov


@pytest.mark.parametrize("family", DISCRETE)
def test_probabilities_of_all_actions_sum_to_one(family: Family) -> None:
    sizes = [2] * family.sizes[0] if family.kind is Kind.BERNOULLI else family.sizes
    actions = np.array(list(np.ndindex(*sizes))).astype(family.action_dtype)
    if family.kind is Kind.CATEGORICAL:
        actions = actions[:, 0]
    params = np.random.default_rng(3).standard_normal(family.num_params).astype(np.float32)
    log_probs = d.log_prob(family, np.tile(params, (len(actions), 1)), actions)
    assert np.exp(log_probs.astype(np.float64)).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("family", "params", "shape", "dtype"),
    [
        (Family(Kind.CATEGORICAL, (4,)), 4, (), np.int64),
        (Family(Kind.MULTI_CATEGORICAL, (4, 2)), 6, (2,), np.int64),
        (Family(Kind.BERNOULLI, (4,)), 4, (4,), np.int8),
        (Family(Kind.DIAG_GAUSSIAN, (4,)), 8, (4,), np.float32),
    ],
)
def test_family_knows_its_sizes(family: Family, params: int, shape: tuple[int, ...], dtype: Any) -> None:
    assert (family.num_params, family.action_shape, family.action_dtype) == (params, shape, dtype)
    assert pickle.loads(pickle.dumps(family)) == family


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("categorical", ()), ("categorical", (2, 2)), ("bernoulli", (0,)), ("multi_categorical", ())],
)
def test_family_refuses_sizes_that_cannot_be(kind: str, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"sizes of {kind} is .*; expected"):
        Family(Kind(kind), sizes)
