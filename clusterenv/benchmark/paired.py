"""Medians with intervals that hold for few samples of any distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median, and bounds that hold the true one with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(samples: Sequence[float]) -> MedianInterval:
    """The median and its narrowest interval between two order statistics that covers LEVEL or more.

    With too few samples for that it is the least and the greatest. The coverage is that of the sign test:
    P(X(k) <= m <= X(n+1-k)) = 1 - 2 P(Binomial(n, 1/2) < k); Conover, Practical Nonparametric Statistics,
    3rd edition, section 3.2.
    """
    ordered, n = sorted(samples), len(samples)
    rank = 1
    while _coverage(n, rank + 1) >= LEVEL:
        rank += 1
    return MedianInterval(median(ordered), ordered[rank - 1], ordered[n - rank], _coverage(n, rank))


def _coverage(n: int, rank: int) -> float:
    """That of the interval from the `rank`-th least to the `rank`-th greatest of n."""
    return max(0.0, 1 - sum(comb(n, below) for below in range(rank)) / float(2 ** (n - 1)))
