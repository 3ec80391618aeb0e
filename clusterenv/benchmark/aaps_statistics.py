"""Interquartile means over seeds, and bootstrap intervals of them and of their differences.

As in Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9
RESAMPLES = 20_000
SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds of its 90 % interval."""

    value: float
    low: float
    high: float


def iqm(scores: Sequence[float] | NDArray[np.float64]) -> float:
    """The mean of the middle half: a quarter of the scores, rounded down, is left out at either end."""
    return float(_iqm_of_rows(np.asarray(scores, dtype=np.float64)[np.newaxis])[0])


def iqm_interval(scores: Sequence[float]) -> Interval:
    """The interquartile mean, and the percentile interval of its bootstrap over seeds."""
    return _interval(iqm(scores), _resampled(scores, np.random.default_rng(SEED)))


def difference_interval(scores: Sequence[float], others: Sequence[float]) -> Interval:
    """How far the interquartile mean of `scores` is above that of `others`.

    The bootstrap is stratified: each of the two is drawn anew from its own seeds.
    """
    rng = np.random.default_rng(SEED)
    return _interval(iqm(scores) - iqm(others), _resampled(scores, rng) - _resampled(others, rng))


def iqm_over_tasks(scores: Sequence[Sequence[float]]) -> Interval:
    """The interquartile mean of all runs of all tasks together, and its interval.

    The bootstrap is stratified: the runs of each task are drawn anew from that task's.
    """
    rng = np.random.default_rng(SEED)
    by_task = [np.asarray(of, dtype=np.float64) for of in scores]
    drawn = np.concatenate([rng.choice(of, (RESAMPLES, len(of))) for of in by_task], axis=1)
    return _interval(iqm(np.concatenate(by_task)), _iqm_of_rows(drawn))


def _resampled(scores: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    drawn = rng.choice(np.asarray(scores, dtype=np.float64), (RESAMPLES, len(scores)))
    return _iqm_of_rows(drawn)


def _iqm_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    left_out = rows.shape[1] // 4
    means: NDArray[np.float64] = np.sort(rows, axis=1)[:, left_out : rows.shape[1] - left_out].mean(axis=1)
    return means


def _interval(value: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))
