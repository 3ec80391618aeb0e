"""Values as bytes: all that can travel comes back as it was, and hostile bytes make an error."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st

from clusterenv import values
from clusterenv.errors import ProtocolError
from tests.contract.walking import assert_same
from tests.long_form import drawn

EXAMPLES = drawn(100)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(
        [np.float16(0.1), np.int8(-1), np.bool_(True), np.array([1, 2], np.uint16), np.zeros((0, 2))]
    ),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), parts, max_size=3)
    ),
    max_leaves=8,
)


@EXAMPLES
@given(PLAIN)
def test_value_comes_back_as_it_was(value: Any) -> None:
    assert_same(values.decode(values.encode(value)), value, "value")


def test_graph_comes_back_as_a_graph_and_any_other_tuple_as_a_tuple() -> None:
    graph = GraphInstance(np.zeros((2, 3), np.float32), np.array([1]), np.array([[0, 1]]))
    back = values.decode(values.encode([graph, (1, 2)]))
    assert_same(back, [graph, (1, 2)], "value")


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.SFC64])
def test_generator_comes_back_as_a_copy_that_draws_the_same(kind: Any) -> None:
    generator = np.random.Generator(kind(3))
    generator.integers(1 << 31, dtype=np.int32)  # half a draw is left over
    copy = values.decode(values.encode(generator))
    assert copy.integers(1 << 31, dtype=np.int32) == generator.integers(1 << 31, dtype=np.int32)
    assert copy.random(5).tolist() == generator.random(5).tolist()


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _holding_itself() -> Any:
    value: dict[str, Any] = {"a": 1}
    value["own"] = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "it is of type set"),
        ([1, {"a": (2, object())}], r"its part \[1\]\['a'\]\[1\] is of type object"),
        ({(1, 2): 3}, r"its part \(key \(1, 2\)\) is of type tuple"),
        (np.array([object()]), "it is of type array of object"),
        (np.ma.masked_array([1], [True]), "it is of type MaskedArray"),
        (1 << 9000, "it is of type int"),
        ("\ud800", "it is of type str with lone surrogates"),
        (np.random.Generator(np.random.MT19937(1)), "it is of type MT19937"),
        (_deep(40), "it is of type list nested 32 deep"),
        (_holding_itself(), "of type dict nested 32 deep"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_value_that_does_not_travel_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(values.UnsupportedValue, match=message + ".*does not travel between processes"):
        values.encode(value)


def ext(code: int, content: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content)))


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xc1",
        values.encode([1, 2])[:-1],
        values.encode(1) + b"\x00",
        ext(1, ["|O", [1], b"12345678"]),
        ext(1, ["<f8", [1 << 40], b"12345678"]),
        ext(1, ["<f8", [-1, -1], b"12345678"]),
        ext(2, ["|b1", [], b"\x07"]),
        ext(3, 5),
        ext(4, "nine"),
        ext(4, "9" * 100_000),
        ext(5, [1, 2]),
        ext(6, ["MT19937", {}]),
        ext(6, ["PCG64", {}]),
        ext(6, ["PCG64", {"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}}]),
        ext(6, ["__import__", {}]),
        ext(99, None),
        b"\x91" * 5000,
    ],
    ids=range(18),
)
def test_bytes_that_are_no_value_are_a_protocol_error(block: bytes) -> None:
    with pytest.raises(ProtocolError, match="value cannot be read"):
        values.decode(block)


def test_byte_strings_are_joined_and_split_by_number() -> None:
    parts = [b"", b"abc", bytes(300)]
    assert values.split(values.join(parts), 3) == parts
    assert values.split(memoryview(values.join([])), 0) == []
    with pytest.raises(ProtocolError, match="has 3; expected 2"):
        values.split(values.join(parts), 2)
    with pytest.raises(ProtocolError, match="list of byte strings cannot be read"):
        values.split(values.encode([1]), 1)
