"""Strategies for spaces of every kind that has a fixed size, and comparison of nested samples."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 2)])
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
INTEGERS = st.sampled_from([np.uint8, np.int8, np.int32, np.int64])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = draw(SHAPES)
    if draw(st.booleans()):
        low, high = draw(st.sampled_from([(-1.0, 1.0), (-np.inf, np.inf), (0.0, np.inf)]))
        return spaces.Box(low, high, shape, draw(FLOATS))
    return spaces.Box(0, 100, shape, draw(INTEGERS))


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Discrete:
    return spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-3, 3)))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    nvec = draw(st.sampled_from([[2], [3, 4], [[2, 3], [4, 5]]]))
    return spaces.MultiDiscrete(nvec, dtype=draw(st.sampled_from([np.int64, np.int32])))


def multi_binaries() -> st.SearchStrategy[spaces.MultiBinary]:
    return st.sampled_from([1, 5, [2, 3]]).map(spaces.MultiBinary)


def leaves() -> st.SearchStrategy[gym.Space]:
    return boxes() | discretes() | multi_discretes() | multi_binaries()


def nested(parts: st.SearchStrategy[gym.Space]) -> st.SearchStrategy[gym.Space]:
    named = st.dictionaries(st.sampled_from("zxyab"), parts, max_size=3)
    return st.builds(spaces.Dict, named, sort_keys=st.booleans()) | st.lists(
        parts, min_size=1, max_size=3
    ).map(spaces.Tuple)


def fixed_size() -> st.SearchStrategy[gym.Space]:
    """Any space that has a layout."""
    return st.recursive(leaves(), nested, max_leaves=4)


def with_leaves() -> st.SearchStrategy[gym.Space]:
    """Any space that has a layout and holds no empty Dict, which Gymnasium cannot iterate over."""
    return fixed_size().filter(lambda space: not _holds_empty_dict(space))


def _holds_empty_dict(space: gym.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return not space.spaces or any(map(_holds_empty_dict, space.spaces.values()))
    return isinstance(space, spaces.Tuple) and any(map(_holds_empty_dict, space.spaces))


def assert_same(seen: Any, expected: Any, where: str = "value") -> None:
    """Both are nested alike, with the same types, dtypes, shapes and numbers."""
    if isinstance(expected, dict):
        assert isinstance(seen, dict), where
        assert list(seen) == list(expected), where
        for key, part in expected.items():
            assert_same(seen[key], part, f"{where}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert type(seen) is type(expected), where
        assert len(seen) == len(expected), where
        for i, part in enumerate(expected):
            assert_same(seen[i], part, f"{where}[{i}]")
    elif isinstance(expected, np.ndarray | np.generic):
        assert type(seen) is type(expected), where
        assert seen.dtype == expected.dtype, where
        assert seen.shape == expected.shape, where
        if expected.dtype == object:
            for i, part in enumerate(expected):
                assert_same(seen[i], part, f"{where}[{i}]")
        else:
            np.testing.assert_array_equal(seen, expected, err_msg=where)
    else:
        assert type(seen) is type(expected), where
        assert seen == expected, where
