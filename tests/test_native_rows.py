"""The choice of rows on which worker and head compare policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from clusterenv.native import sample_rows
from tests.long_form import drawn
from tests.reference import sampling

UINT64 = st.integers(0, 2**64 - 1)


@drawn(100)
@given(
    hnp.arrays(np.bool_, st.integers(0, 60)), st.integers(0, 70), UINT64, st.integers(0, 2**32 - 1), UINT64
)
def test_sample_rows_is_its_slow_twin(
    valid: NDArray[np.bool_], count: int, seed: int, rank: int, fragment: int
) -> None:
    rows = sample_rows(valid, count, seed=seed, rank=rank, fragment=fragment)
    assert rows.dtype == np.int64
    assert rows.tolist() == sampling.sample_rows(valid, count, seed, rank, fragment)
    assert valid[rows].all()
    assert len(rows) == min(count, valid.sum())
    assert (np.diff(rows) > 0).all()


def test_sample_rows_differ_by_each_key() -> None:
    valid = np.ones(4096, np.bool_)
    keys = [{"seed": 1, "rank": 0, "fragment": 0}]
    keys += [{**keys[0], name: value} for name in keys[0] for value in (2, 2**31)]
    chosen = {tuple(sample_rows(valid, 64, **key)) for key in keys}
    assert len(chosen) == len(keys)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"valid": [True]}, TypeError, "valid is of type list; expected a NumPy array"),
        ({"valid": np.ones(3, np.uint8)}, TypeError, "valid has dtype uint8; expected bool"),
        ({"valid": np.ones((3, 1), np.bool_)}, ValueError, r"valid has shape \(3, 1\); expected \(any,\)"),
        ({"valid": np.ones(6, np.bool_)[::2]}, ValueError, "valid is a strided or unaligned view"),
        ({"count": -1}, ValueError, "count is -1; expected a whole number from 0"),
        ({"count": 1.5}, TypeError, "count is of type float; expected a whole number"),
        ({"seed": 2**64}, ValueError, f"seed is {2**64}; expected a whole number from 0 to {2**64 - 1}"),
        ({"rank": 2**32}, ValueError, f"rank is {2**32}; expected a whole number from 0 to {2**32 - 1}"),
        ({"fragment": "1"}, TypeError, "fragment is of type str; expected a whole number"),
    ],
)
def test_sample_rows_names_the_argument_that_does_not_fit(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"valid": np.ones(3, np.bool_), "count": 2, "seed": 1, "rank": 0, "fragment": 0, **changed}
    valid, count = arguments.pop("valid"), arguments.pop("count")
    with pytest.raises(error, match=message):
        sample_rows(valid, count, **arguments)


def test_sample_rows_takes_numpy_integers() -> None:
    valid = np.ones(9, np.bool_)
    plain = sample_rows(valid, 4, seed=5, rank=6, fragment=7)
    numpy = sample_rows(valid, np.int64(4), seed=np.uint64(5), rank=np.int32(6), fragment=np.int8(7))
    assert plain.tolist() == numpy.tolist()
