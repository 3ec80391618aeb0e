"""Packing rows of environments into a batch."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from clusterenv.native import pack_rows
from tests.long_form import drawn

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16"]


def bits(array: NDArray[Any]) -> bytes:
    """What memory holds, NaN payloads and signs of zero included."""
    return np.ascontiguousarray(array).tobytes()


def strided(array: NDArray[Any], form: int) -> NDArray[Any]:
    """The same values in another memory layout."""
    if array.ndim == 0:
        return array
    if form == 1:
        return np.asfortranarray(array)
    if form == 2:
        return np.ascontiguousarray(array[::-1])[::-1]
    return np.repeat(array, 2, axis=-1)[..., ::2] if form == 3 else array


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Rows of one dtype and shape, each in a layout of its own, and their batch."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    batch = draw(hnp.arrays(dtype, (draw(st.integers(0, 4)), *shape)))
    return [strided(row, draw(st.integers(0, 3))) for row in batch], batch


@drawn(100)
@given(batches(), st.booleans())
def test_pack_rows_is_stack_bit_for_bit(case: tuple[list[NDArray[Any]], NDArray[Any]], apart: bool) -> None:
    rows, batch = case
    room = np.zeros((2 * len(rows), *batch.shape[1:]), batch.dtype)
    out = room[::2] if apart else room[: len(rows)]
    pack_rows(rows, out)
    assert bits(out) == bits(batch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pack_rows_takes_numpy_scalars_and_arrays_of_no_dimension(dtype: str) -> None:
    one = np.dtype(dtype).type(1)
    out = np.zeros(3, dtype)
    pack_rows((one, np.array(one), np.zeros((), dtype)), out)
    assert out.tolist() == [one, one, 0]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("?", [True, False]),
        ("i1", [-128, 127]),
        ("u2", [0, 65535]),
        ("i8", [-(2**63), 2**63 - 1]),
        ("u8", [0, 2**64 - 1]),
        ("f4", [0.5, -math.inf, math.nan, 16777216]),
        ("f8", [0.1, -0.0, math.nan, 2**53]),
    ],
)
def test_pack_rows_takes_python_numbers_that_fit_exactly(dtype: str, values: list[Any]) -> None:
    out = np.zeros(len(values), dtype)
    pack_rows(values, out)
    assert bits(out) == bits(np.array(values, dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i1", 128),
        ("u8", -1),
        ("u8", 2**64),
        ("i8", 2**63),
        ("f4", 0.1),
        ("f4", 1e300),
        ("f4", 16777217),
        ("f8", 2**53 + 1),
        ("f8", 10**400),
    ],
)
def test_pack_rows_refuses_python_numbers_that_do_not_fit(dtype: str, value: float) -> None:
    out = np.full(2, 7, dtype)
    with pytest.raises(
        ValueError,
        match=rf"^obs\[1\] is {re.escape(str(value))}; expected a scalar of .* that holds it exactly$",
    ):
        pack_rows([out.dtype.type(1), value], out, "obs")
    assert out.tolist() == [7, 7]


GOOD = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (
            np.zeros(4),
            TypeError,
            r"obs\[1\] has dtype float64; expected an array of float32 and shape \(4,\)",
        ),
        (np.zeros(4, ">f4"), TypeError, r"obs\[1\] has dtype >f4; expected an array of float32"),
        (np.zeros(3, "f4"), ValueError, r"obs\[1\] has shape \(3,\); expected an array of float32 and shape"),
        (np.zeros((4, 1), "f4"), ValueError, r"obs\[1\] has shape \(4, 1\); expected"),
        (np.float32(0), TypeError, r"obs\[1\] is of type float32; expected"),
        ([0.0] * 4, TypeError, r"obs\[1\] is of type list; expected an array of float32"),
        (None, TypeError, r"obs\[1\] is of type NoneType; expected"),
    ],
)
def test_pack_rows_names_the_row_that_does_not_fit(bad: object, error: type[Exception], message: str) -> None:
    out = np.full((3, 4), 7, np.float32)
    with pytest.raises(error, match=message):
        pack_rows([GOOD, bad, GOOD], out, "obs")
    assert (out == 7).all()


@pytest.mark.parametrize("bad", [1.0, np.float32(1), np.int32(1), True, "1", None, [1], np.zeros(1, "i8")])
def test_pack_rows_refuses_a_scalar_of_another_kind(bad: object) -> None:
    out = np.full(1, 7, np.int64)
    with pytest.raises((TypeError, ValueError), match=r"^rows\[0\] .*; expected a scalar of int64$"):
        pack_rows([bad], out)
    assert out.tolist() == [7]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ([0.0] * 8, TypeError, "out is of type list; expected a NumPy array"),
        (read_only(np.zeros((2, 4), "f4")), ValueError, "out is read-only"),
        (np.zeros((2, 8), "f4")[:, ::2], ValueError, r"out has strides \(32, 8\)"),
        (np.zeros((4, 2), "f4").T, ValueError, "out has strides"),
        (np.zeros((2, 0), "f4"), ValueError, r"rows\[0\] has shape \(4,\)"),
        (np.lib.stride_tricks.as_strided(np.zeros(8, "f4"), (2, 4), (4, 4)), ValueError, "out has strides"),
        (np.zeros((), "f4"), ValueError, r"out has shape \(\)"),
        (np.zeros((2, 4), object), TypeError, "out has dtype object"),
        (np.zeros((2, 4), ">f4"), TypeError, "out has dtype >f4"),
        (np.zeros((3, 4), "f4"), ValueError, "rows has 2 rows; expected 3"),
    ],
)
def test_pack_rows_refuses_an_output_that_does_not_fit(
    out: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pack_rows([GOOD + 1, GOOD + 1], out)
    assert not np.any(out)


@pytest.mark.parametrize("rows", [3, None, iter([GOOD]), {1: GOOD}.values()])
def test_pack_rows_refuses_what_is_no_sequence(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"rows is of type .*; expected a sequence of rows"):
        pack_rows(rows, np.zeros((1, 4), np.float32))


def test_pack_rows_passes_on_what_a_sequence_of_the_caller_raises() -> None:
    class Broken(list[NDArray[np.float32]]):
        def __iter__(self) -> Iterator[NDArray[np.float32]]:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        pack_rows(Broken(), np.zeros((0, 4), np.float32))


def test_pack_rows_keeps_no_reference() -> None:
    row, scalar = np.zeros(4, np.float32), np.float64(0.5)
    before = sys.getrefcount(row), sys.getrefcount(scalar)
    for _ in range(10):
        pack_rows([row, row], np.empty((2, 4), np.float32))
        pack_rows([scalar], np.empty(1))
        with pytest.raises(TypeError):
            pack_rows([row, scalar], np.empty((2, 4), np.float32))
    assert (sys.getrefcount(row), sys.getrefcount(scalar)) == before


def test_pack_rows_keeps_rows_alive_while_another_thread_replaces_them() -> None:
    rows = [np.full(2**18, 1.0) for _ in range(4)]  # large enough for the GIL to be released
    out = np.empty((4, 2**18))
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            rows[:] = [np.full(2**18, 1.0) for _ in range(4)]

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(20):
            out[:] = 0
            pack_rows(rows, out)
            assert (out == 1).all()
    finally:
        done.set()
        thread.join()
