"""Divergences between action distributions, straight from their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.distributions import Family, Kind


def kl(family: Family, p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.float64]:
    """KL(p || q) [n] of rows of parameters [n, P]."""
    rows = zip(p.astype(np.float64), q.astype(np.float64), strict=True)
    return np.array([_row(family, p_row, q_row) for p_row, q_row in rows], np.float64)


def k3(behaviour_log_prob: float, target_log_prob: float) -> float:
    """(r - 1) - log r with r = target / behaviour."""
    ratio = math.exp(target_log_prob) / math.exp(behaviour_log_prob)
    return ratio - 1 - math.log(ratio)


def _row(family: Family, p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    if family.kind is Kind.DIAG_GAUSSIAN:
        dims = family.sizes[0]
        return sum(_gaussian(p[d], math.exp(p[dims + d]), q[d], math.exp(q[dims + d])) for d in range(dims))
    if family.kind is Kind.BERNOULLI:
        return sum(_discrete(np.array([0, a]), np.array([0, b])) for a, b in zip(p, q, strict=True))
    ends = np.cumsum(family.sizes)[:-1]
    return sum(_discrete(a, b) for a, b in zip(np.split(p, ends), np.split(q, ends), strict=True))


def _discrete(p_logits: NDArray[np.float64], q_logits: NDArray[np.float64]) -> float:
    """The sum of p (log p - log q) over outcomes that p takes."""
    if np.array_equal(p_logits, q_logits):
        return 0.0
    if max(p_logits.max(), q_logits.max()) == -math.inf or min(p_logits.max(), q_logits.max()) == -math.inf:
        return math.inf
    log_p, log_q = _log_softmax(p_logits), _log_softmax(q_logits)
    taken = np.exp(log_p) > 0
    return float(np.sum(np.exp(log_p[taken]) * (log_p[taken] - log_q[taken])))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return shifted - np.log(np.sum(np.exp(shifted)))


def _gaussian(mean_p: float, std_p: float, mean_q: float, std_q: float) -> float:
    return math.log(std_q / std_p) + (std_p**2 + (mean_p - mean_q) ** 2) / (2 * std_q**2) - 0.5
