"""Squashed Gaussians, against torch in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

from clusterenv import distributions
from clusterenv.distributions import Family, Kind

FAMILY = Family(Kind.TANH_GAUSSIAN, (2,))
ROWS = 4096


def params(mean: float, log_std: float, centre: float = 0.5, half_width: float = 2.0) -> np.ndarray:
    row = [mean, -mean, log_std, log_std + 0.1, centre, centre, half_width, -half_width]
    return np.tile(np.array(row, np.float32), (ROWS, 1))


def drawn(theta: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    actions, log_probs = np.empty((len(theta), 2), np.float32), np.empty(len(theta), np.float32)
    distributions.sample(
        FAMILY,
        theta,
        seed=seed,
        env_ids=np.arange(len(theta)),
        steps=np.zeros(len(theta), np.int64),
        actions_out=actions,
        log_probs_out=log_probs,
    )
    return actions, log_probs


def in_torch(theta: np.ndarray) -> TransformedDistribution:
    mean, log_std, centre, half_width = torch.from_numpy(theta.astype(np.float64)).split(2, dim=1)
    base = Independent(Normal(mean, log_std.exp()), 1)
    return TransformedDistribution(base, [TanhTransform(), AffineTransform(centre, half_width)])


def test_log_probs_are_those_of_torch_in_double_precision() -> None:
    theta = params(0.3, -0.5)
    actions, log_probs = drawn(theta)
    expected = in_torch(theta).log_prob(torch.from_numpy(actions.astype(np.float64)))
    np.testing.assert_allclose(log_probs, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(distributions.log_prob(FAMILY, theta, actions), log_probs)


def test_samples_have_the_moments_of_torchs() -> None:
    theta = params(0.3, -0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = in_torch(theta).sample().numpy()
    actions, _ = drawn(theta)
    np.testing.assert_allclose(actions.mean(axis=0), expected.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(actions.std(axis=0), expected.std(axis=0), rtol=0.1)


def test_log_probs_stay_numbers_where_tanh_saturates() -> None:
    theta = params(30.0, 0.0)
    actions, log_probs = drawn(theta)
    assert (actions <= 2.5).all()
    assert (actions >= -1.5).all()
    assert np.isfinite(log_probs).all()
    ends = np.array([[2.5, -1.5], [-1.5, 2.5]], np.float32)
    assert np.isfinite(distributions.log_prob(FAMILY, params(0.0, 0.0)[:2], ends)).all()


def test_actions_outside_of_the_interval_are_impossible() -> None:
    outside = np.array([[2.6, 0.0]], np.float32)
    assert distributions.log_prob(FAMILY, params(0.0, 0.0)[:1], outside)[0] == -math.inf


def test_divergence_is_that_before_the_squashing() -> None:
    p, q = params(0.3, -0.5), params(0.1, 0.2)
    expected = kl_divergence(in_torch(p).base_dist, in_torch(q).base_dist)
    np.testing.assert_allclose(distributions.kl(FAMILY, p, q), expected, rtol=1e-5)
    assert (distributions.kl(FAMILY, p, p.copy()) == 0).all()
    assert (distributions.kl(FAMILY, p, params(0.3, -0.5, half_width=1.0)) == math.inf).all()


def test_parameters_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q has shape \(4096, 4\); expected \(n, 8\) for tanh_gaussian"):
        distributions.kl(FAMILY, params(0, 0), params(0, 0)[:, :4])
