from __future__ import annotations

import logging
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv import infos
from clusterenv.errors import ProtocolError
from clusterenv.infos import batch_infos, decode_infos, encode_infos, plain_info, unbatch_infos
from tests.long_form import drawn
from tests.spaces import assert_same

EXAMPLES = drawn(60)
DTYPES = (
    hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.unicode_string_dtypes(max_len=4)
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-5, 5), parts, max_size=3)
    ),
    max_leaves=5,
)


def there_and_back(value: Any) -> Any:
    ((index, info),) = decode_infos(encoded([(3, {"key": value})]))
    assert index == 3
    assert list(info) == ["key"]
    return info["key"]


def encoded(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> bytes:
    return encode_infos([(index, plain_info(info)) for index, info in rows])


@EXAMPLES
@given(VALUES)
def test_infos_survive_the_wire_with_their_types(value: Any) -> None:
    assert_same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float32("nan"),
        np.float16(2),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.str_("ä"),
        np.bytes_(b"x"),
        np.complex64(1 + 2j),
        np.datetime64("2020-01-02", "D"),
        np.timedelta64(5, "ms"),
        np.array(["2020-01-02"], "M8[25s]"),
        np.zeros((0, 3), np.float16),
        np.arange(6.0).reshape(2, 3).T,
        np.array([1, 2], ">i4"),
        2**63,
        -(2**200),
        float("inf"),
        [True, [1, 2], (3, {"a": (None,)})],
        {1: "a", "1": "b"},
    ],
    ids=repr,
)
def test_infos_keep(value: Any) -> None:
    assert_same(there_and_back(value), value)


def test_infos_read_are_arrays_of_their_own() -> None:
    seen = there_and_back(np.arange(3))
    seen[0] = 9
    assert seen.tolist() == [9, 1, 2]


def test_infos_of_subclasses_become_their_base() -> None:
    color = IntEnum("color", ["RED"])
    assert_same(there_and_back(color.RED), 1)
    assert_same(there_and_back(OrderedDict(a=1)), {"a": 1})
    assert_same(there_and_back(namedtuple("point", ["x", "y"])(1, 2)), (1, 2))


def test_empty_infos_are_left_out() -> None:
    assert decode_infos(encoded([(0, {}), (1, {"a": 1}), (2, {})])) == [(1, {"a": 1})]
    assert decode_infos(encoded([])) == []


@pytest.fixture
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infos, "_warned", set())


@pytest.mark.usefixtures("fresh_warnings")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        ([1, object()], "object"),
        ((1, {2}), "set"),
        (np.array([None, 1]), "array of object"),
        (np.zeros(2, [("a", "i4")]), r"array of \[\('a', '<i4'\)\]"),
        (2**9000, "int"),
        ("\ud800", "str"),
        (lambda: None, "function"),
    ],
    ids=["object", "set", "in list", "in tuple", "objects", "record", "huge", "surrogate", "function"],
)
def test_infos_of_other_types_are_left_out_with_one_warning(
    value: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            block = encoded([(0, {"bad": value, "good": 1}), (1, {"bad": value})])
    assert decode_infos(block) == [(0, {"good": 1})]
    (record,) = caplog.records
    assert f"info key 'bad' is left out: {kind}".replace("\\", "") in record.getMessage()


@pytest.mark.usefixtures("fresh_warnings")
def test_infos_leave_out_only_the_key_of_a_dict_that_does_not_travel() -> None:
    assert there_and_back({"bad": object(), "good": {"worse": {1}, "fine": 2}, (1, 2): 3}) == {
        "good": {"fine": 2}
    }


@pytest.mark.usefixtures("fresh_warnings")
def test_infos_that_hold_themselves_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert decode_infos(encoded([(0, {"bad": value, "good": 1})])) == [(0, {"good": 1})]


@pytest.mark.usefixtures("fresh_warnings")
def test_infos_that_hold_themselves_twice_end_soon() -> None:
    info: dict[str, Any] = {"good": 1}
    info |= {"one": info, "two": info}
    assert decode_infos(encoded([(0, info)])) == [(0, {"good": 1})]


@pytest.mark.usefixtures("fresh_warnings")
def test_infos_remember_a_bounded_number_of_warnings() -> None:
    for number in range(2000):
        encoded([(0, {f"key{number}": object()})])
    assert len(infos._warned) == 1000


# --- hostile blocks -----------------------------------------------------------------------------------------


def block_of(code: int, content: Any) -> bytes:
    encode = msgspec.msgpack.encode
    return encode([(0, {"x": msgspec.msgpack.Ext(code, encode(content))})])


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00",
        b"\xff" * 50,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" * 200,
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([0]),
        msgspec.msgpack.encode([(0, [])]),
        msgspec.msgpack.encode([("a", {})]),
        msgspec.msgpack.encode([(0, {1: 2})]),
        encoded([(0, {"x": np.arange(9)})])[:-3],
        encoded([(0, {"x": 1})]) + b"\x00",
        pickle.dumps(object),
        block_of(99, 1),
        block_of(1, 1),
        block_of(1, ("<f8", (2,), b"1234567")),
        block_of(1, ("<f8", (-1,), b"12345678")),
        block_of(1, ("<f8", (2**40,), b"")),
        block_of(1, ("<f8", (2**64 - 1,), b"")),
        block_of(1, ("<f8", (1,) * 99, b"12345678")),
        block_of(1, ("|O", (1,), b"12345678")),
        block_of(1, ("|V8", (1,), b"12345678")),
        block_of(1, ("<f8,<f8", (1,), b"12345678" * 2)),
        block_of(1, ("<U0", (2**60,), b"")),
        block_of(1, ("<f3", (1,), b"123")),
        block_of(1, ("|b1", (2,), b"\x01\x02")),
        block_of(3, {"a": 1}),
        block_of(4, "x"),
        block_of(4, "9" * 5000),
    ],
    ids=range(30),
)
def test_blocks_of_anything_else_are_refused(block: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^block of infos cannot be read: "):
        decode_infos(block)


def test_blocks_of_deep_tuples_are_refused() -> None:
    content: Any = 1
    for _ in range(3000):
        content = msgspec.msgpack.Ext(3, msgspec.msgpack.encode([content]))
    with pytest.raises(ProtocolError, match="recursion"):
        decode_infos(msgspec.msgpack.encode([(0, {"x": content})]))


@EXAMPLES
@given(st.binary(max_size=200), st.integers(0, 100))
def test_blocks_of_noise_give_rows_or_a_protocol_error(noise: bytes, at: int) -> None:
    block = encoded([(0, {"x": np.arange(5), "y": (1, {"z": "text"}), "w": np.float32(2)})])
    for hostile in (noise, block[:at] + noise[:3] + block[at + 3 :]):
        try:
            rows = decode_infos(hostile)
        except ProtocolError:
            continue
        assert isinstance(rows, list)


# --- batches ------------------------------------------------------------------------------------------------


class Reference(VectorEnv):
    """Gymnasium's own batching of infos."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def batch(self, rows: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        batched: dict[str, Any] = {}
        for index, info in rows:
            batched = self._add_info(batched, info, index)
        return batched


ONE_TYPE = [
    st.integers(-9, 9),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.none(),
    st.sampled_from([np.float32(1.5), np.float32(2)]),
    st.sampled_from([np.int8(1), np.int8(2)]),
    st.sampled_from([np.bool_(True), np.bool_(False)]),
    hnp.arrays(np.float32, (2,)),
    hnp.arrays(np.int64, ()),
    hnp.arrays(np.uint8, (1, 0)),
    st.fixed_dictionaries({}, optional={"r": st.floats(), "l": st.integers(0, 9)}),
]


@EXAMPLES
@given(st.data())
def test_batch_of_one_type_for_each_key_is_gymnasiums(data: st.DataObject) -> None:
    optional = {key: data.draw(st.sampled_from(ONE_TYPE)) for key in "abc"}
    rows = list(enumerate(data.draw(st.lists(st.fixed_dictionaries({}, optional=optional), max_size=4)), 1))
    assert_same(batch_infos(rows, 6), Reference(6).batch(rows))


def objects(*values: Any) -> np.ndarray:
    array = np.full(len(values), None, object)
    for i, value in enumerate(values):
        array[i] = value
    return array


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (1, 2.7, np.array([1.0, 2.7])),
        (2.7, 1, np.array([2.7, 1.0])),
        (np.float32(1), 0.1, np.array([1.0, 0.1])),
        (np.int8(1), 300, np.array([1, 300])),
        (1, float("nan"), np.array([1.0, np.nan])),
        (None, 1, objects(None, 1)),
        (1, None, objects(1, None)),
        (1, 2**70, objects(1, 2**70)),
        (2**53 + 1, 0.5, objects(2**53 + 1, 0.5)),
        (True, [1, 2], objects(True, [1, 2])),
        ("a", 1, objects("a", 1)),
        ({"a": 1}, 2, objects({"a": 1}, 2)),
        (np.zeros(2), np.ones(3), objects(np.zeros(2), np.ones(3))),
        (np.zeros(2), 1.0, objects(np.zeros(2), 1.0)),
        (np.array([1, 2]), np.array([0.5, 1.5]), np.array([[1.0, 2.0], [0.5, 1.5]])),
        (np.array([2**53 + 1]), np.array([0.5]), objects(np.array([2**53 + 1]), np.array([0.5]))),
        (np.array(["a"]), np.array(["long"]), np.array([["a"], ["long"]])),
        (np.array(["1"]), np.array([1]), objects(np.array(["1"]), np.array([1]))),
        (np.array([1.0]), np.array([[2.0]]), objects(np.array([1.0]), np.array([[2.0]]))),
    ],
    ids=repr,
)
def test_batch_of_different_values_corrupts_none(one: Any, two: Any, expected: np.ndarray) -> None:
    batched = batch_infos([(0, {"x": one}), (1, {"x": two})], 2)
    assert_same(batched, {"x": expected, "_x": np.array([True, True])})


def test_batch_masks_what_is_missing() -> None:
    batched = batch_infos([(1, {"x": 3, "n": None}), (3, {"y": "a"})], 4)
    expected = {
        "x": np.array([0, 3, 0, 0]),
        "_x": np.array([False, True, False, False]),
        "n": objects(None, None, None, None),
        "_n": np.array([False, True, False, False]),
        "y": objects(None, None, None, "a"),
        "_y": np.array([False, False, False, True]),
    }
    assert_same(batched, expected)


def test_batch_of_dicts_is_a_dict_with_masks_at_each_level() -> None:
    rows = [(0, {"episode": {"r": 1.5, "deep": {"a": 1}}}), (2, {"episode": {"l": 3}})]
    expected = {
        "episode": {
            "r": np.array([1.5, 0, 0]),
            "_r": np.array([True, False, False]),
            "deep": {"a": np.array([1, 0, 0]), "_a": np.array([True, False, False])},
            "_deep": np.array([True, False, False]),
            "l": np.array([0, 0, 3]),
            "_l": np.array([False, False, True]),
        },
        "_episode": np.array([True, False, True]),
    }
    assert_same(batch_infos(rows, 3), expected)


def test_batch_of_final_obs_is_of_objects() -> None:
    batched = batch_infos([(1, {"final_obs": np.array([2.0])})], 2)
    assert_same(batched["final_obs"], objects(None, np.array([2.0])))


def test_batch_of_no_infos_is_empty() -> None:
    assert batch_infos([], 3) == {}


@pytest.mark.parametrize("index", [-1, 2])
def test_batch_refuses_a_row_of_no_environment(index: int) -> None:
    with pytest.raises(ProtocolError, match=rf"infos are for environment {index}; expected one of 0\.\.1"):
        batch_infos([(index, {"x": 1})], 2)


def test_key_that_is_no_text_is_left_out_at_the_top_and_carried_below(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infos, "_warned", set())
    [(_, info)] = decode_infos(encoded([(0, {1: 2, "a": {3: 4}})]))
    assert info == {"a": {3: 4}}
    assert "left out" in caplog.text


def test_batched_infos_keep_their_dtypes_when_they_are_taken_apart_and_batched_again() -> None:
    columns = {
        "solved": np.array([True, False]),
        "level": np.array([3, 4], np.int32),
        "frame": np.zeros((2, 3), np.bool_),
        "inner": {"hit": np.array([False, True])},
    }
    batched = batch_infos(decode_infos(encoded(list(enumerate(unbatch_infos(columns, 2))))), 2)
    for name in ("solved", "level", "frame"):
        assert_same(batched[name], columns[name])
    assert_same(batched["inner"]["hit"], columns["inner"]["hit"])
