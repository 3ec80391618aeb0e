"""The counter-based generator, the samplers over it and the choice of rows, one number at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.distributions import Family, Kind

MASK = 2**32 - 1
ACTION, SAMPLE_ROWS = 0, 1


def philox(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """Four random 32-bit words: ten rounds of Philox4x32."""
    low, high = key & MASK, key >> 32
    a, b, c, d = counter
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ low, second & MASK, (first >> 32) ^ d ^ high, first & MASK
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return a, b, c, d


def uniform(seed: int, ident: int, time: int, index: int, purpose: int) -> float:
    """Number `index` from 0 to below 1 of one purpose, id and time; a block holds two."""
    words = philox((time & MASK, time >> 32, ident, purpose << 28 | index // 2), seed)
    word = words[2 * (index % 2)] << 32 | words[2 * (index % 2) + 1]
    return (word >> 11) * 2.0**-53


def normal(seed: int, ident: int, time: int, dim: int) -> float:
    """Standard normal number of one dimension, by Box and Muller from the two uniform ones of its block."""
    first = uniform(seed, ident, time, dim - dim % 2, ACTION)
    second = uniform(seed, ident, time, dim - dim % 2 + 1, ACTION)
    wave = math.cos if dim % 2 == 0 else math.sin
    return math.sqrt(-2 * math.log(1 - first)) * wave(2 * math.pi * second)


def sample(
    family: Family, params: NDArray[np.float32], seed: int, env_ids: list[int], steps: list[int]
) -> NDArray[Any]:
    """Actions [n, *action_shape] drawn from rows of parameters [n, P]."""
    actions = np.zeros((len(params), *family.action_shape), family.action_dtype)
    for i, row in enumerate(params.astype(np.float64)):
        actions[i] = _draw(family, row, seed, env_ids[i], steps[i])
    return actions


def log_prob(family: Family, params: NDArray[np.float32], actions: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities [n] of actions."""
    rows = zip(params.astype(np.float64), actions, strict=True)
    return np.array([_log_prob(family, row, np.atleast_1d(action)) for row, action in rows])


def sample_rows(valid: NDArray[np.bool_], count: int, seed: int, rank: int, fragment: int) -> list[int]:
    """Different valid rows, ascending, by Floyd's algorithm."""
    candidates = np.flatnonzero(valid).tolist()
    taken = min(count, len(candidates))
    chosen: set[int] = set()
    for index in range(taken):
        last = len(candidates) - taken + index
        pick = int(uniform(seed, rank, fragment, index, SAMPLE_ROWS) * (last + 1))
        chosen.add(last if pick in chosen else pick)
    return [candidates[pick] for pick in sorted(chosen)]


def _draw(family: Family, row: NDArray[np.float64], seed: int, env_id: int, step: int) -> Any:
    if family.kind is Kind.DIAG_GAUSSIAN:
        dims = family.sizes[0]
        means, stds = row[:dims], np.exp(row[dims:])
        return [means[d] + stds[d] * normal(seed, env_id, step, d) for d in range(dims)]
    if family.kind is Kind.BERNOULLI:
        draws = [uniform(seed, env_id, step, k, ACTION) for k in range(len(row))]
        return [draw < np.exp(-np.logaddexp(0, -logit)) for draw, logit in zip(draws, row, strict=True)]
    picks = [
        _first_beyond(logits, uniform(seed, env_id, step, k, ACTION))
        for k, logits in enumerate(np.split(row, np.cumsum(family.sizes)[:-1]))
    ]
    return picks[0] if family.kind is Kind.CATEGORICAL else picks


def _first_beyond(logits: NDArray[np.float64], draw: float) -> int:
    """The first outcome at which the distribution function passes `draw`."""
    sums = np.cumsum(np.exp(logits - logits.max()))
    return int(np.searchsorted(sums, draw * sums[-1], side="right"))


def _log_prob(family: Family, row: NDArray[np.float64], action: NDArray[Any]) -> float:
    if family.kind is Kind.DIAG_GAUSSIAN:
        means, log_stds = np.split(row, 2)
        z = (action.astype(np.float64) - means) / np.exp(log_stds)
        return float(np.sum(-(z**2) / 2 - log_stds - math.log(2 * math.pi) / 2))
    if family.kind is Kind.BERNOULLI:
        return float(-np.sum(np.logaddexp(0, np.where(action == 1, -row, row))))
    parts = np.split(row, np.cumsum(family.sizes)[:-1])
    return float(sum(a[i] - np.logaddexp.reduce(a) for a, i in zip(parts, action, strict=True)))
