"""What is wrong with what a backend's vector has returned, in words; empty where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clusterenv.layout import Leaf

RESET = ("obs", "infos")
STEP = ("obs", "rewards", "terminations", "truncations", "infos")
_KINDS = {"b": ("flags", "b", "bool"), "f": ("rewards", "fiu", "a float")}
"""Kind of dtype that is wanted -> what it is for, the kinds it may be made of, and their name."""


def wrong_parts(answer: object, parts: tuple[str, ...]) -> str:
    """Of the tuple that `reset` or `step` returns."""
    wanted = f"expected ({', '.join(parts)}), infos a dict"
    if not isinstance(answer, tuple):
        return f"a value of type {type(answer).__name__}; {wanted}"
    if len(answer) != len(parts):
        return f"{len(answer)} values; {wanted}"
    return "" if isinstance(answer[-1], Mapping) else f"infos of type {type(answer[-1]).__name__}; {wanted}"


def wrong_numbers(values: ArrayLike, place: NDArray[Any]) -> str:
    """Of rewards or flags [k] for `place` [k]."""
    what, kinds, dtype = _KINDS[place.dtype.kind]
    array = np.asarray(values)
    if array.shape != place.shape:
        return f"{what} of shape {array.shape}; expected {place.shape}"
    return "" if array.dtype.kind in kinds else f"{what} of dtype {array.dtype}; expected {dtype}"


def wrong_leaf(array: NDArray[Any], expected: Leaf, count: int) -> str:
    """Of the array in place of a leaf of `count` rows of observations."""
    where = "".join(f"[{key!r}]" for key in expected.path)
    if array.shape != (count, *expected.shape):
        return f"{where} has shape {array.shape}; expected {(count, *expected.shape)}"
    if not np.can_cast(array.dtype, expected.dtype, "same_kind"):
        return f"{where} is of dtype {array.dtype}; expected {expected.dtype}"
    return ""
