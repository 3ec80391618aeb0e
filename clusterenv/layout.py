"""The one home of batch bytes: which arrays hold a batch of a space's values, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from clusterenv import native
from clusterenv.errors import ActionError, SpaceError

Array = NDArray[Any]
Key = str | int
Path = tuple[Key, ...]
Structure = int | dict[Key, "Structure"] | tuple["Structure", ...]
"""Number of a leaf, or the parts of a Dict or of a Tuple."""
Nested = Any
"""A value or batch nested as its space is: an array (or scalar), or a dict or tuple of such."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a batch: where it lies in the nested value, and what one row of it is."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpaceLayout:
    """The arrays that hold batches of a fixed-size space, in the order of the space."""

    leaves: tuple[Leaf, ...]
    digest: str
    """Hex; equal spaces have equal digests on every host, where order of keys and bounds count too."""
    structure: Structure = field(compare=False, repr=False)

    @classmethod
    def of(cls, space: gym.Space[Any]) -> SpaceLayout:
        """The layout of Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them.

        Raises:
            SpaceError: if `space` holds any other kind of space; names where.
        """
        leaves: list[Leaf] = []
        facts = hashlib.sha256()
        structure = _walk(space, (), leaves, facts)
        return cls(tuple(leaves), facts.hexdigest()[:32], structure)

    def empty(self, *lead: int) -> list[Array]:
        """New C-contiguous arrays [*lead, *shape] with unset values, one for each leaf."""
        return [np.empty((*lead, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def nest(self, leaves: Sequence[Any]) -> Nested:
        """The arrays in the shape of the space: an array, a dict in the space's order or a tuple."""
        return _nest(self.structure, leaves)

    def flatten(self, nested: Nested) -> list[Any]:
        """The arrays of a nested batch as they are, one for each leaf: the inverse of `nest`.

        Raises:
            SpaceError: if `nested` is not nested like the space.
        """
        leaves: list[Any] = [None] * len(self.leaves)
        wrong = _flatten(self.structure, nested, (), leaves)
        if wrong:
            raise SpaceError(f"value{wrong}")
        return leaves

    def pack(self, rows: Sequence[Any], out: Sequence[Array], *, name: str, first: int = 0) -> None:
        """Row i of every array of `out` holds the single value `rows[i]`.

        Values of another dtype are converted where NumPy's "same_kind" allows it, as Gymnasium does.
        `name` and the number of the row, counted from `first`, stand in errors.

        Raises:
            SpaceError: if a row cannot go into its place; some rows may have been written.
        """
        if not rows:
            return
        if self.structure == 0:
            columns: list[Sequence[Any]] = [rows]
        else:
            columns = [()] * len(self.leaves)
            try:
                _split(self.structure, rows, columns)
            except (TypeError, KeyError, IndexError) as error:
                raise self._misfit(rows, name, first, error) from error
        for column, array in zip(columns, out, strict=True):
            try:
                _pack_leaf(column, array, name)
            except (TypeError, ValueError) as error:
                raise self._misfit(rows, name, first, error) from error

    def unpack(self, batch: Sequence[Array], count: int | None = None) -> list[Any]:
        """The single values of a batch: NumPy scalars, views of rows, dicts and tuples of them.

        `count` is needed only for a space without leaves.
        """
        if self.structure == 0:
            return list(batch[0])
        return _rows(self.structure, batch, len(batch[0]) if batch else count or 0)

    def batched_actions(self, actions: Nested, num_envs: int) -> list[Array]:
        """The leaves [num_envs, *shape] of a caller's batch, in the exact dtypes of the space.

        Args:
            actions: arrays, lists or tensors, in the dict or tuple that the space asks for.
            num_envs: rows expected.

        Raises:
            ActionError: on another nesting, length, shape or kind of number, or a number too large for
                the dtype. Whether values lie in the space is for the environments to say.
        """
        nested: list[Any] = [None] * len(self.leaves)
        wrong = _flatten(self.structure, actions, (), nested)
        if wrong:
            raise ActionError(f"actions{wrong}")
        return [_exact(value, leaf, num_envs) for value, leaf in zip(nested, self.leaves, strict=True)]

    def _misfit(self, rows: Sequence[Any], name: str, first: int, error: Exception) -> SpaceError:
        """What is wrong with the first row that does not fit; `error` if each fits but not all together."""
        for number, row in enumerate(rows, first):
            values: list[Any] = [None] * len(self.leaves)
            wrong = _flatten(self.structure, row, (), values)
            if wrong:
                return SpaceError(f"{name} {number}{wrong}")
            for value, leaf in zip(values, self.leaves, strict=True):
                seen = _describe(value)
                array = _as_array(value)
                if (
                    array is None
                    or array.shape != leaf.shape
                    or not np.can_cast(array.dtype, leaf.dtype, "same_kind")
                ):
                    place = f"{name} {number}{_where(leaf.path)}"
                    return SpaceError(f"{place} is {seen}; expected {leaf.dtype} of shape {leaf.shape}")
        return SpaceError(f"{name}s from {first} on cannot be batched: {error}")


def _walk(space: gym.Space[Any], path: Path, leaves: list[Leaf], facts: hashlib._Hash) -> Structure:
    """Structure of `space`, its leaves added to `leaves` and all that makes it equal to others to `facts`."""
    if isinstance(space, spaces.Dict):
        facts.update(f"Dict {len(space.spaces)};".encode())
        named: dict[Key, Structure] = {}
        for key, part in space.spaces.items():
            facts.update(f"{key!r}:".encode())
            named[key] = _walk(part, (*path, key), leaves, facts)
        return named
    if isinstance(space, spaces.Tuple):
        facts.update(f"Tuple {len(space.spaces)};".encode())
        return tuple(_walk(part, (*path, i), leaves, facts) for i, part in enumerate(space.spaces))
    kind, bounds = _kind_and_bounds(space, path)
    leaf = Leaf(path, np.dtype(space.dtype), tuple(space.shape or ()))
    facts.update(f"{kind} {leaf.dtype.newbyteorder('<').str} {leaf.shape};".encode())
    for bound in bounds:  # adding 0 makes one zero of the two
        facts.update((bound + bound.dtype.type(0)).astype(bound.dtype.newbyteorder("<")).tobytes())
    leaves.append(leaf)
    return len(leaves) - 1


def _kind_and_bounds(space: gym.Space[Any], path: Path) -> tuple[str, list[Array]]:
    if isinstance(space, spaces.Box):
        return "Box", [space.low, space.high]
    if isinstance(space, spaces.Discrete):
        return "Discrete", [np.array([space.start, space.n], np.int64)]
    if isinstance(space, spaces.MultiDiscrete):
        return "MultiDiscrete", [space.start.astype(np.int64), space.nvec.astype(np.int64)]
    if isinstance(space, spaces.MultiBinary):
        return "MultiBinary", []
    raise SpaceError(
        f"space{_where(path)} is {space!r}; expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of them (spaces without a fixed size are not supported yet)"
    )


def _nest(structure: Structure, leaves: Sequence[Any]) -> Nested:
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, dict):
        return {key: _nest(part, leaves) for key, part in structure.items()}
    return tuple(_nest(part, leaves) for part in structure)


def _flatten(structure: Structure, nested: Nested, path: Path, leaves: list[Any]) -> str:
    """Empty once `leaves` holds the parts of `nested`; else what does not fit, from where on."""
    if isinstance(structure, int):
        leaves[structure] = nested
        return ""
    if isinstance(structure, dict):
        if not isinstance(nested, Mapping) or set(nested) != set(structure):
            seen = f"a dict with keys {list(nested)}" if isinstance(nested, Mapping) else _describe(nested)
            return f"{_where(path)} is {seen}; expected a dict with keys {list(structure)}"
        parts = structure.items()
    else:
        if not isinstance(nested, tuple | list) or len(nested) != len(structure):
            seen = f"{len(nested)} parts" if isinstance(nested, tuple | list) else _describe(nested)
            return f"{_where(path)} is {seen}; expected a tuple of {len(structure)} parts"
        parts = dict(enumerate(structure)).items()
    return next(filter(None, (_flatten(part, nested[key], (*path, key), leaves) for key, part in parts)), "")


def _split(structure: Structure, rows: Sequence[Any], columns: list[Sequence[Any]]) -> None:
    """Put the parts of all rows that belong to one leaf into its list of `columns`."""
    if isinstance(structure, int):
        columns[structure] = rows
        return
    parts = structure.items() if isinstance(structure, dict) else enumerate(structure)
    for key, part in parts:
        _split(part, [row[key] for row in rows], columns)


def _pack_leaf(rows: Sequence[Any], out: Array, name: str) -> None:
    # A refusal by `pack_rows` costs more than the whole conversion, so do not ask where it is sure to refuse.
    if type(rows[0]) is not np.ndarray or rows[0].dtype == out.dtype:
        try:
            native.pack_rows(rows, out, name)
        except (TypeError, ValueError):
            pass
        else:
            return
    np.stack(cast("Sequence[Array]", rows), out=out, casting="same_kind")


def _rows(structure: Structure, batch: Sequence[Array], count: int) -> list[Any]:
    if isinstance(structure, int):
        return list(batch[structure])
    parts = structure.values() if isinstance(structure, dict) else structure
    if not parts:
        return [type(structure)() for _ in range(count)]
    rows = zip(*(_rows(part, batch, count) for part in parts), strict=True)
    if isinstance(structure, dict):
        keys = tuple(structure)
        return [dict(zip(keys, row, strict=True)) for row in rows]
    return list(rows)


def _exact(value: object, leaf: Leaf, num_envs: int) -> Array:
    """`value` as an array [num_envs, *shape] of the leaf's dtype, without a copy where it is one."""
    where = f"actions{_where(leaf.path)}"
    expected = (num_envs, *leaf.shape)
    array = _as_array(value)
    if array is None:
        raise ActionError(f"{where} is {_describe(value)}; expected numbers of shape {expected}")
    if array.shape != expected:
        raise ActionError(f"{where} has shape {array.shape}; expected {expected} for {num_envs} environments")
    kinds = "biuf" if leaf.dtype.kind == "f" else "biu"
    if array.dtype.kind not in kinds:
        raise ActionError(f"{where} is of dtype {array.dtype}; expected {leaf.dtype}")
    exact = np.ascontiguousarray(array, leaf.dtype)
    if leaf.dtype.kind != "f" and exact is not array and not np.array_equal(exact, array):
        raise ActionError(f"{where} holds numbers that do not fit {leaf.dtype}")
    return exact


def _as_array(value: object) -> Array | None:
    """`value` as an array, or None if it is not one of numbers."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor; torch need not be imported to know it
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _where(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
