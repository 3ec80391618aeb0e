from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given

from clusterenv.errors import ActionError, SpaceError
from clusterenv.layout import SpaceLayout
from tests.contract.spaces import any_action_space, any_space
from tests.long_form import drawn
from tests.spaces import assert_same, fixed_size, with_leaves

EXAMPLES = drawn(60)
NESTED = spaces.Dict(
    {"pos": spaces.Box(-1, 1, (2,), np.float32), "pair": spaces.Tuple([spaces.Discrete(3)] * 2)}
)


def samples(space: gym.Space, count: int) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(count)]


@EXAMPLES
@given(fixed_size())
def test_pack_batches_like_gymnasium(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    rows = samples(space, 3)
    out = layout.empty(3)
    layout.pack(rows, out, name="row")
    expected = concatenate(space, rows, create_empty_array(space, 3))
    assert_same(layout.nest(out), expected)
    assert batch_space(space, 3).contains(layout.nest(out))


@EXAMPLES
@given(with_leaves())
def test_unpack_gives_the_values_that_iterate_gives(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    batched = batch_space(space, 3)
    batched.seed(5)
    batch = batched.sample()
    assert_same(layout.unpack(layout.flatten(batch)), list(iterate(batched, batch)))


@EXAMPLES
@given(fixed_size())
def test_unpack_is_the_inverse_of_pack(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    rows = samples(space, 2)
    out = layout.empty(2)
    layout.pack(rows, out, name="row")
    again = layout.empty(2)
    layout.pack(layout.unpack(out, 2), again, name="row")
    assert_same(again, out)


@EXAMPLES
@given(fixed_size())
def test_flatten_is_the_inverse_of_nest(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    leaves = layout.empty(4, 2)
    assert [id(leaf) for leaf in layout.flatten(layout.nest(leaves))] == [id(leaf) for leaf in leaves]


@EXAMPLES
@given(fixed_size())
def test_empty_gives_contiguous_arrays_of_the_leaves(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    for leaf, array in zip(layout.leaves, layout.empty(4, 2), strict=True):
        assert array.shape == (4, 2, *leaf.shape)
        assert array.dtype == leaf.dtype
        assert array.flags.c_contiguous


@EXAMPLES
@given(fixed_size())
def test_digest_is_equal_for_equal_spaces_and_survives_pickle(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    assert SpaceLayout.of(deepcopy(space)) == layout
    assert pickle.loads(pickle.dumps(layout)).digest == layout.digest


@pytest.mark.process
def test_digest_is_equal_in_another_process() -> None:
    code = (
        "import sys; import numpy as np; from gymnasium import spaces;"
        "from clusterenv.layout import SpaceLayout;"
        "space = spaces.Dict({'b': spaces.Box(-1, np.inf, (2,)), 'a': spaces.Discrete(3, start=1)});"
        "sys.stdout.write(SpaceLayout.of(space).digest)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    space = spaces.Dict({"b": spaces.Box(-1, np.inf, (2,)), "a": spaces.Discrete(3, start=1)})
    assert child.stdout == SpaceLayout.of(space).digest, child.stderr


@pytest.mark.parametrize(
    "other",
    [
        spaces.Box(-1, 2, (2,)),
        spaces.Box(-2, 1, (2,)),
        spaces.Box(-1, 1, (3,)),
        spaces.Box(-1, 1, (2, 1)),
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,))}),
        spaces.Tuple([spaces.Box(-1, 1, (2,))]),
        spaces.MultiBinary(2),
        spaces.MultiDiscrete([2, 3]),
        spaces.Discrete(2),
    ],
    ids=str,
)
def test_digest_differs_for_another_space(other: gym.Space) -> None:
    assert SpaceLayout.of(other).digest != SpaceLayout.of(spaces.Box(-1, 1, (2,))).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spaces.Discrete(2), spaces.Discrete(3)),
        (spaces.Discrete(2), spaces.Discrete(2, start=1)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4])),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3], start=[0, 1])),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}, sort_keys=False),
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(2)}, sort_keys=False),
        ),
    ],
    ids=str,
)
def test_digest_differs_for_other_numbers_or_order(one: gym.Space, other: gym.Space) -> None:
    assert SpaceLayout.of(one).digest != SpaceLayout.of(other).digest


def test_digest_is_the_same_for_both_zeros() -> None:
    one, other = spaces.Box(0.0, 1.0, (2,)), spaces.Box(-0.0, 1.0, (2,))
    assert SpaceLayout.of(one).digest == SpaceLayout.of(other).digest


def test_layout_keeps_the_order_of_keys_of_the_space() -> None:
    parts = {"b": spaces.Discrete(2), "a": spaces.MultiBinary(2)}
    unsorted = SpaceLayout.of(spaces.Dict(parts, sort_keys=False))
    assert [leaf.path for leaf in unsorted.leaves] == [("b",), ("a",)]
    assert list(unsorted.nest(unsorted.empty(2))) == ["b", "a"]
    assert [leaf.path for leaf in SpaceLayout.of(spaces.Dict(parts)).leaves] == [("a",), ("b",)]


# --- spaces without a fixed size ----------------------------------------------------------------------------

MIXED = spaces.Dict({"text": spaces.Text(5), "pair": spaces.Tuple([spaces.Discrete(3), spaces.Text(2)])})


@EXAMPLES
@given(any_space())
def test_batches_of_any_space_are_those_of_gymnasium(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    rows = samples(space, 3)
    out = layout.empty(3)
    layout.pack(rows, out, name="row")
    batch = layout.nest(out, tuples=True)
    assert_same(batch, concatenate(space, rows, create_empty_array(space, 3)))
    assert batch_space(space, 3).contains(batch)
    assert_same(layout.flatten(batch), out)
    assert_same(layout.flatten(layout.nest(out)), out)


@EXAMPLES
@given(any_action_space())
def test_actions_of_any_space_are_those_that_iterate_gives(space: gym.Space) -> None:
    layout = SpaceLayout.of(space)
    batched = batch_space(space, 3)
    batched.seed(5)
    batch = batched.sample()
    assert_same(layout.unpack(layout.batched_actions(batch, 3), 3), list(iterate(batched, batch)))


def test_samples_of_variable_size_are_bytes_that_hold_copies() -> None:
    layout = SpaceLayout.of(spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)))
    assert layout.objects == (0,)
    (out,) = layout.empty(2)
    sample = (np.ones(2, np.float32),)
    layout.pack([sample, ()], [out], name="row")
    sample[0][:] = 7
    assert all(isinstance(row, bytes) for row in out)
    assert_same(layout.unpack([out]), [(np.ones(2, np.float32),), ()])
    assert_same(layout.nest([out[:1]], tuples=True), ((np.ones(2, np.float32),),))


def test_batch_of_several_axes_is_an_array_of_samples_and_missing_ones_are_none() -> None:
    layout = SpaceLayout.of(MIXED)
    leaves = layout.zeros(2, 3)
    layout.pack([{"text": "ab", "pair": (1, "c")}] * 3, [leaf[1] for leaf in leaves], name="row")
    nested = layout.nest(leaves)
    assert nested["text"].tolist() == [[None] * 3, ["ab"] * 3]
    assert nested["pair"][0].tolist() == [[0] * 3, [1] * 3]
    assert nested["pair"][1].tolist() == [[None] * 3, ["c"] * 3]


def test_singles_are_what_the_space_holds() -> None:
    space = spaces.Dict(box=spaces.Box(-1, 1, ()), whole=spaces.Discrete(3), text=spaces.Text(3))
    layout = SpaceLayout.of(space)
    out = layout.empty(2)
    rows = samples(space, 2)
    layout.pack(rows, out, name="row")
    assert_same(layout.singles(out, 2), rows)
    assert isinstance(layout.unpack(out)[0]["box"], np.float32)  # as Gymnasium iterates


def test_value_that_does_not_travel_is_refused_with_its_place() -> None:
    layout = SpaceLayout.of(MIXED)
    rows = [{"text": "a", "pair": (1, "b")}, {"text": "a", "pair": (1, ["b", {1}])}]
    with pytest.raises(
        SpaceError, match=r"^row 1\['pair'\]\[1\] is list .*; its part \[1\] is of type set, which does not"
    ):
        layout.pack(rows, layout.empty(2), name="row")


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (spaces.Box(-1, 1, (2,)), spaces.Box(0, 9, (2,)), True),
        (spaces.Discrete(3), spaces.Discrete(9, start=2), True),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([4, 5]), True),
        (spaces.Text(3, min_length=1), spaces.Text(3, min_length=2), True),
        (spaces.OneOf([spaces.Discrete(3)]), spaces.OneOf([spaces.Discrete(4)]), True),
        (spaces.Sequence(spaces.Discrete(3)), spaces.Sequence(spaces.Discrete(4)), True),
        (spaces.Text(3), spaces.Text(4), False),
        (spaces.Text(3, charset="ab"), spaces.Text(3, charset="abc"), False),
        (spaces.Sequence(spaces.Discrete(3)), spaces.Sequence(spaces.Discrete(3), stack=True), False),
        (spaces.Graph(spaces.Discrete(2), None), spaces.Graph(spaces.Discrete(2), spaces.Discrete(2)), False),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,)), False),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,), np.float64), False),
        (spaces.Tuple([spaces.Text(2)]), spaces.OneOf([spaces.Text(2)]), False),
    ],
    ids=str,
)
def test_digest_without_bounds_agrees_with_gymnasium_on_what_is_alike(
    one: gym.Space, other: gym.Space, alike: bool
) -> None:
    assert is_space_dtype_shape_equiv(one, other) is alike
    digests = [SpaceLayout.of(space, bounds=False).digest for space in (one, other)]
    assert (digests[0] == digests[1]) is alike
    assert SpaceLayout.of(one).digest != SpaceLayout.of(other).digest


# --- packing ------------------------------------------------------------------------------------------------


def test_pack_writes_into_one_step_of_a_fragment_and_nothing_else() -> None:
    layout = SpaceLayout.of(spaces.Box(-1, 1, (2,), np.float32))
    (fragment,) = layout.empty(3, 2)
    fragment.fill(7)
    layout.pack([np.ones(2, np.float32), np.zeros(2, np.float32)], [fragment[1]], name="row")
    assert fragment.tolist() == [[[7, 7], [7, 7]], [[1, 1], [0, 0]], [[7, 7], [7, 7]]]


def test_pack_takes_rows_of_any_strides() -> None:
    layout = SpaceLayout.of(spaces.Box(-1, 1, (2, 3), np.float32))
    rows = [
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::-2],
    ]
    (out,) = layout.empty(2)
    layout.pack(rows, [out], name="row")
    np.testing.assert_array_equal(out, np.stack(rows))


@pytest.mark.parametrize(
    ("space", "row"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0.1, 0.2])),
        (spaces.Box(-1, 1, (2,), np.float64), np.array([0.1, 0.2], np.float32)),
        (spaces.Box(-1, 1, (2,), np.float32), [0.1, 0.2]),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1, 0])),
        (spaces.Box(-1, 1, (), np.float32), 0.5),
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3), np.int32(2)),
        (spaces.Discrete(3), np.array(2)),
        (spaces.MultiBinary(2), np.array([1, 0])),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
    ids=str,
)
def test_pack_converts_what_gymnasium_converts(space: gym.Space, row: Any) -> None:
    layout = SpaceLayout.of(space)
    out = layout.empty(2)
    layout.pack([row, row], out, name="row")
    assert_same(layout.nest(out), concatenate(space, [row, row], create_empty_array(space, 2)))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            {"pos": np.zeros(3, np.float32), "pair": (1, 1)},
            r"\['pos'\] is float32 of shape \(3,\); expected float32",
        ),
        (
            {"pos": np.zeros(2, complex), "pair": (1, 1)},
            r"\['pos'\] is complex128 of shape \(2,\); expected float32",
        ),
        ({"pos": None, "pair": (1, 1)}, r"\['pos'\] is NoneType None; expected float32 of shape \(2,\)"),
        ({"pos": [[1], [1, 2]], "pair": (1, 1)}, r"\['pos'\] is list \[\[1\], \[1, 2\]\]; expected float32"),
        ({"pos": np.zeros(2, np.float32), "pair": (1, 1.5)}, r"\['pair'\]\[1\] is float 1.5; expected int64"),
        (
            {"pos": np.zeros(2, np.float32), "pair": (1,)},
            r"\['pair'\] is 1 parts; expected a tuple of 2 parts",
        ),
        ({"pos": np.zeros(2, np.float32)}, r" is a dict with keys \['pos'\]; expected .* \['pair', 'pos'\]"),
        (
            np.zeros(2, np.float32),
            r" is float32 of shape \(2,\); expected a dict with keys \['pair', 'pos'\]",
        ),
        (5, r" is int 5; expected a dict with keys"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pack_names_the_row_and_the_place_that_does_not_fit(row: Any, what: str) -> None:
    layout = SpaceLayout.of(NESTED)
    good = {"pos": np.zeros(2, np.float32), "pair": (1, 1)}
    with pytest.raises(SpaceError, match=r"^observation of environment 9" + what):
        layout.pack([good, row], layout.empty(2), name="observation of environment", first=8)


def test_pack_refuses_another_number_of_rows() -> None:
    layout = SpaceLayout.of(spaces.Discrete(5))
    with pytest.raises(SpaceError, match=r"^rows from 0 on cannot be batched: "):
        layout.pack([1, 2, 3], layout.empty(2), name="row")


def test_flatten_refuses_another_nesting() -> None:
    with pytest.raises(
        SpaceError, match=r"^value\['pair'\] is float64 of shape \(3,\); expected a tuple of 2"
    ):
        SpaceLayout.of(NESTED).flatten({"pos": np.zeros((3, 2)), "pair": np.zeros(3)})


# --- actions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.Discrete(3), [1, 2], np.array([1, 2])),
        (spaces.Discrete(3), np.array([1, 2], np.int32), np.array([1, 2])),
        (spaces.Discrete(3), np.array([1, 2], np.uint64), np.array([1, 2])),
        (spaces.Discrete(3), np.array([True, False]), np.array([1, 0])),
        (spaces.Discrete(3), (np.int64(1), np.int64(2)), np.array([1, 2])),
        (spaces.MultiDiscrete([3, 3]), [[1, 2], [0, 0]], np.array([[1, 2], [0, 0]])),
        (spaces.MultiBinary(2), [[1, 0], [0, 0]], np.array([[1, 0], [0, 0]], np.int8)),
        (spaces.Box(-1, 1, (1,)), np.array([[0.5], [5.0]]), np.array([[0.5], [5.0]], np.float32)),
        (spaces.Box(-1, 1, (1,)), [[1], [0]], np.array([[1], [0]], np.float32)),
        (spaces.Box(0, 9, (1,), np.uint8), [[1], [7]], np.array([[1], [7]], np.uint8)),
    ],
    ids=str,
)
def test_batched_actions_have_the_exact_dtype(space: gym.Space, actions: Any, expected: np.ndarray) -> None:
    assert_same(SpaceLayout.of(space).batched_actions(actions, 2), [expected])


def test_batched_actions_of_the_right_dtype_are_not_copied() -> None:
    actions = np.array([1, 2])
    assert SpaceLayout.of(spaces.Discrete(3)).batched_actions(actions, 2)[0] is actions


def test_batched_actions_may_be_tensors() -> None:
    torch = pytest.importorskip("torch")
    box = SpaceLayout.of(spaces.Box(-1, 1, (1,)))
    tensor = torch.tensor([[0.5], [1.0]], requires_grad=True)
    assert_same(box.batched_actions(tensor, 2), [np.array([[0.5], [1.0]], np.float32)])
    discrete = SpaceLayout.of(spaces.Discrete(3))
    assert_same(discrete.batched_actions([torch.tensor(1), torch.tensor(2)], 2), [np.array([1, 2])])


def test_batched_actions_may_be_nested() -> None:
    layout = SpaceLayout.of(NESTED)
    seen = layout.batched_actions({"pos": np.zeros((2, 2)), "pair": [[0, 1], np.array([2, 2])]}, 2)
    assert_same(seen, [np.array([0, 1]), np.array([2, 2]), np.zeros((2, 2), np.float32)])


@pytest.mark.parametrize(
    ("space", "actions", "what"),
    [
        (spaces.Discrete(3), [1, 2, 0], r"actions has shape \(3,\); expected \(2,\) for 2 environments"),
        (spaces.Discrete(3), [[1], [2]], r"actions has shape \(2, 1\); expected \(2,\)"),
        (spaces.Discrete(3), 1, r"actions has shape \(\); expected \(2,\)"),
        (spaces.Discrete(3), [1.0, 2.0], r"actions is of dtype float64; expected int64"),
        (spaces.Discrete(3), ["a", "b"], r"actions is list \['a', 'b'\]; expected numbers of shape \(2,\)"),
        (spaces.Discrete(3), None, r"actions is NoneType None; expected numbers of shape \(2,\)"),
        (spaces.Discrete(3), [1, None], r"actions is list \[1, None\]; expected numbers"),
        (spaces.Discrete(3), np.array([1, 2**63], np.uint64), r"actions holds numbers that do not fit int64"),
        (spaces.MultiBinary(1), [[1], [300]], r"actions holds numbers that do not fit int8"),
        (spaces.Box(-1, 1, (2,)), [[1, 2], [3]], r"actions is list .*; expected numbers of shape \(2, 2\)"),
        (spaces.Box(-1, 1, (1,)), [[1j], [1j]], r"actions is of dtype complex128; expected float32"),
        (
            NESTED,
            {"pos": np.zeros((2, 2))},
            r"actions is a dict with keys \['pos'\]; expected .* \['pair', 'pos'\]",
        ),
        (
            NESTED,
            {"pos": np.zeros((2, 2)), "pair": ([0, 0], [0])},
            r"actions\['pair'\]\[1\] has shape \(1,\)",
        ),
    ],
    ids=str,
)
def test_batched_actions_that_do_not_fit_are_refused(space: gym.Space, actions: Any, what: str) -> None:
    with pytest.raises(ActionError, match="^" + what):
        SpaceLayout.of(space).batched_actions(actions, 2)
