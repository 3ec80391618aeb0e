"""Diagonal Gaussians squashed by tanh into intervals: a = centre + half_width * tanh(x), x ~ N(mean, std).

A row of parameters [4 D] holds means, log standard deviations, centres and half widths. Log-probabilities are
those of the action as it is in float32, so that whoever has it finds the same number; actions at the ends of
their interval count as the last float32 before it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import native

Floats = NDArray[np.float32]

LAST = 1 - 2.0**-24
"""The last float32 before 1."""
OUTSIDE = 1e-5
"""Share of the half width by which an action may lie outside of its interval through rounding."""


def kl(p: NDArray[Any], q: NDArray[Any], out: NDArray[np.float64]) -> None:
    """KL(p || q) [n] of rows of parameters [n, 4 D]; infinite where the intervals differ."""
    both = p.shape[1] // 2
    native.kl_diag_gaussian(np.ascontiguousarray(p[:, :both]), np.ascontiguousarray(q[:, :both]), out)
    out[(p[:, both:] != q[:, both:]).any(axis=1)] = math.inf


def sample(
    params: Floats,
    seed: int,
    env_ids: NDArray[np.int64],
    steps: NDArray[np.int64],
    actions_out: Floats,
    log_probs_out: Floats,
) -> None:
    """Actions [n, D] and their log-probabilities [n], from the noise that `native` draws for the Gaussian."""
    gaussian, centre, half_width = _parts(params)
    drawn = np.empty_like(actions_out)
    native.sample_diag_gaussian(gaussian, seed, env_ids, steps, drawn, log_probs_out)
    actions_out[:] = centre + half_width * np.clip(np.tanh(drawn.astype(np.float64)), -LAST, LAST)
    log_prob(params, actions_out, log_probs_out)


def log_prob(params: Floats, actions: Floats, out: Floats) -> None:
    """Log-probabilities [n] of actions [n, D]; -inf for those outside of their interval."""
    gaussian, centre, half_width = _parts(params)
    squashed = (actions.astype(np.float64) - centre) / half_width
    x = np.arctanh(np.clip(squashed, -LAST, LAST))
    native.log_prob_diag_gaussian(gaussian, x.astype(np.float32), out)
    # log(1 - tanh(x)^2), as torch's TanhTransform has it, for both signs of x
    slope = 2 * (math.log(2) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x))))
    out -= (slope + np.log(np.abs(half_width))).sum(axis=1).astype(np.float32)
    out[(np.abs(squashed) > 1 + OUTSIDE).any(axis=1)] = -math.inf


def is_sharp(params: Floats, actions: Floats) -> NDArray[np.bool_]:
    """[n] where an action in float32 says well enough what x was, for all of its numbers."""
    _, centre, half_width = _parts(params)
    sharp: NDArray[np.bool_] = np.all(np.abs((actions - centre) / half_width) < 0.99, axis=1)
    return sharp


def _parts(params: Floats) -> tuple[Floats, NDArray[np.float64], NDArray[np.float64]]:
    """Parameters of the Gaussian [n, 2 D], centres [n, D], half widths [n, D]."""
    size = params.shape[1] // 4
    gaussian = np.ascontiguousarray(params[:, : 2 * size])
    rest = params[:, 2 * size :].astype(np.float64)
    return gaussian, rest[:, :size], rest[:, size:]
