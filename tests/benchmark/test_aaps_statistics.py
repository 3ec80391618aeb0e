from __future__ import annotations

import numpy as np
import pytest

from clusterenv.benchmark.aaps_statistics import difference_interval, iqm, iqm_interval


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([7.0], 7.0), ([1.0, 2.0, 6.0], 3.0), ([0.0, 1, 2, 3, 100], 2.0), ([9.0, 0, 1, 2, 3, 4, 5, -9], 2.5)],
)
def test_iqm_leaves_out_a_quarter_at_either_end(scores: list[float], expected: float) -> None:
    assert iqm(scores) == expected


def test_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [iqm_interval(rng.normal(3.0, 1.0, 20).tolist()) for _ in range(60)]

    covered = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert 0.75 <= covered <= 1.0


def test_interval_of_equal_scores_is_a_point() -> None:
    interval = iqm_interval([5.0] * 5)

    assert (interval.value, interval.low, interval.high) == (5.0, 5.0, 5.0)


def test_difference_is_of_the_first_over_the_second_and_always_the_same() -> None:
    one, other = [10.0, 11, 12, 13, 14], [1.0, 2, 3, 4, 5]
    interval = difference_interval(one, other)

    assert interval.value == 9.0
    assert 6 < interval.low < 9 < interval.high < 12
    assert difference_interval(one, other) == interval
    assert difference_interval(other, one).value == -9.0
