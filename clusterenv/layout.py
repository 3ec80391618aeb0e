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

from clusterenv import native, values
from clusterenv.errors import ActionError, SpaceError, shortened

Array = NDArray[Any]
Key = str | int
Path = tuple[Key, ...]
Structure = int | dict[Key, "Structure"] | tuple["Structure", ...]
"""Number of a leaf, or the parts of a Dict or of a Tuple."""
Nested = Any
"""A value or batch nested as its space is: an array (or scalar), or a dict or tuple of such."""

_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_OBJECT = np.dtype(object)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a batch: where it lies in the nested value, and what one row of it is.

    Of a space without a fixed size (Text, Sequence, Graph, OneOf, a custom one) the array has dtype object
    and a row of it is one sample as bytes (see `values`), or None where there is no sample.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    scalar: bool = False
    """Whether a single value is a NumPy scalar, as that of Discrete is, and no array."""


@dataclass(frozen=True, slots=True)
class SpaceLayout:
    """The arrays that hold batches of a space, in the order of the space."""

    leaves: tuple[Leaf, ...]
    digest: str
    """Hex; equal spaces have equal digests on every host, where order of keys and bounds count too."""
    structure: Structure = field(compare=False, repr=False)
    objects: tuple[int, ...] = field(compare=False, repr=False)
    """Numbers of the leaves that hold samples as bytes."""

    @classmethod
    def of(cls, space: gym.Space[Any], *, bounds: bool = True) -> SpaceLayout:
        """The layout of any space; its digest tells all of it, without `bounds` only what shapes a batch."""
        leaves: list[Leaf] = []
        structure = _walk(space, (), leaves)
        objects = tuple(i for i, leaf in enumerate(leaves) if leaf.dtype == _OBJECT)
        facts = hashlib.sha256()
        _add_facts(space, facts, bounds)
        return cls(tuple(leaves), facts.hexdigest()[:32], structure, objects)

    def empty(self, *lead: int) -> list[Array]:
        """New C-contiguous arrays [*lead, *shape] with unset values, one for each leaf."""
        return [np.empty((*lead, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def zeros(self, *lead: int) -> list[Array]:
        """The same with zeros, and no samples where leaves hold such."""
        return [np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def nest(self, leaves: Sequence[Any], *, tuples: bool = False) -> Nested:
        """The arrays in the shape of the space: an array, a dict in the space's order or a tuple.

        Where the space has no fixed size: an array of samples, or with `tuples` a tuple, as Gymnasium has it.
        """
        if self.objects:
            leaves = [_samples(leaf) if i in self.objects else leaf for i, leaf in enumerate(leaves)]
            if tuples:
                leaves = [tuple(leaf) if i in self.objects else leaf for i, leaf in enumerate(leaves)]
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
        for i in self.objects:
            leaves[i] = _encoded(leaves[i])
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
            except (TypeError, ValueError, RuntimeError) as error:  # the last: a tensor with a gradient
                raise self._misfit(rows, name, first, error) from error

    def unpack(self, batch: Sequence[Array], count: int | None = None) -> list[Any]:
        """The single values of a batch: NumPy scalars, views of rows, samples, dicts and tuples of them.

        As Gymnasium iterates over a batch: a row of a Box without axes becomes a scalar. `count` is needed
        only for a space without leaves.
        """
        if self.structure == 0:
            return _items(batch[0])
        return _rows(self.structure, [_items(leaf) for leaf in batch], len(batch[0]) if batch else count or 0)

    def singles(self, batch: Sequence[Array], count: int) -> list[Any]:
        """The `count` single values of a batch as the space has them: arrays but for Discrete."""
        columns = [
            [rows[i, ...] for i in range(count)] if not leaf.shape and not leaf.scalar else _items(rows)
            for leaf, rows in zip(self.leaves, batch, strict=True)
        ]
        return columns[0] if self.structure == 0 else _rows(self.structure, columns, count)

    def batched_actions(self, actions: Nested, num_envs: int) -> list[Array]:
        """The leaves [num_envs, *shape] of a caller's batch, in the exact dtypes of the space.

        Args:
            actions: arrays, lists or tensors, in the dict or tuple that the space asks for.
            num_envs: rows expected.

        Raises:
            ActionError: on another nesting, length, shape or kind of number, a number too large for the
                dtype, or a sample that does not travel. Whether values lie in the space is for the
                environments to say.
        """
        nested: list[Any] = [None] * len(self.leaves)
        wrong = _flatten(self.structure, actions, (), nested)
        if wrong:
            raise ActionError(f"actions{wrong}")
        return [_exact(value, leaf, num_envs) for value, leaf in zip(nested, self.leaves, strict=True)]

    def _misfit(self, rows: Sequence[Any], name: str, first: int, error: Exception) -> SpaceError:
        """What is wrong with the first row that does not fit; `error` if each fits but not all together."""
        for number, row in enumerate(rows, first):
            parts: list[Any] = [None] * len(self.leaves)
            wrong = _flatten(self.structure, row, (), parts)
            if wrong:
                return SpaceError(f"{name} {number}{wrong}")
            for part, leaf in zip(parts, self.leaves, strict=True):
                expected = _misfit(part, leaf)
                if expected:
                    place = f"{name} {number}{_where(leaf.path)}"
                    return SpaceError(f"{place} is {_describe(part)}; {expected}")
        return SpaceError(f"{name}s from {first} on cannot be batched: {error}")


def _walk(space: gym.Space[Any], path: Path, leaves: list[Leaf]) -> Structure:
    """Structure of `space`, its leaves added to `leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: _walk(part, (*path, key), leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_walk(part, (*path, i), leaves) for i, part in enumerate(space.spaces))
    if isinstance(space, _FIXED):
        scalar = isinstance(space, spaces.Discrete)
        leaves.append(Leaf(path, np.dtype(space.dtype), tuple(space.shape or ()), scalar))
    else:
        leaves.append(Leaf(path, _OBJECT, (), scalar=True))
    return len(leaves) - 1


def _add_facts(space: gym.Space[Any], facts: hashlib._Hash, bounds: bool) -> None:
    """All that makes `space` equal to others; without `bounds` all that makes batches of it alike."""
    parts: Mapping[Any, gym.Space[Any]] = {}
    if isinstance(space, spaces.Dict):
        parts, text = space.spaces, "Dict"
    elif isinstance(space, spaces.Tuple | spaces.OneOf):
        parts, text = dict(enumerate(space.spaces)), "Tuple" if isinstance(space, spaces.Tuple) else "OneOf"
    elif isinstance(space, spaces.Sequence):
        parts, text = {0: space.feature_space}, f"Sequence {space.stack}"
    elif isinstance(space, spaces.Graph):
        parts, text = {0: space.node_space}, "Graph"
        if space.edge_space is not None:
            parts = {**parts, 1: space.edge_space}
    elif isinstance(space, spaces.Text):
        text = f"Text {space.max_length} {''.join(sorted(space.character_set))!r}"
        text += f" {space.min_length}" if bounds else ""
    elif isinstance(space, _FIXED):
        text = f"{_kind(space)} {np.dtype(space.dtype).newbyteorder('<').str} {tuple(space.shape or ())}"
    else:
        text = f"{type(space).__module__}.{type(space).__qualname__}"
    facts.update(f"{text} {len(parts)};".encode())
    for key, part in parts.items():
        facts.update(f"{key!r}:".encode())
        _add_facts(part, facts, bounds)
    if bounds:
        for bound in _bounds(space):  # adding 0 makes one zero of the two
            facts.update((bound + bound.dtype.type(0)).astype(bound.dtype.newbyteorder("<")).tobytes())


def _kind(space: gym.Space[Any]) -> str:
    return next(kind.__name__ for kind in _FIXED if isinstance(space, kind))


def _bounds(space: gym.Space[Any]) -> list[Array]:
    if isinstance(space, spaces.Box):
        return [space.low, space.high]
    if isinstance(space, spaces.Discrete):
        return [np.array([space.start, space.n], np.int64)]
    if isinstance(space, spaces.MultiDiscrete):
        return [space.start.astype(np.int64), space.nvec.astype(np.int64)]
    return []


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
    if out.dtype == _OBJECT:
        for i, row in enumerate(rows):
            out[i] = values.encode(row)
        return
    # A refusal by `pack_rows` costs more than the whole conversion, so do not ask where it is sure to refuse.
    if type(rows[0]) is not np.ndarray or rows[0].dtype == out.dtype:
        try:
            native.pack_rows(rows, out, name)
        except (TypeError, ValueError):
            pass
        else:
            return
    np.stack(cast("Sequence[Array]", rows), out=out, casting="same_kind")


def _rows(structure: Structure, columns: Sequence[list[Any]], count: int) -> list[Any]:
    if isinstance(structure, int):
        return columns[structure]
    parts = structure.values() if isinstance(structure, dict) else structure
    if not parts:
        return [type(structure)() for _ in range(count)]
    rows = zip(*(_rows(part, columns, count) for part in parts), strict=True)
    if isinstance(structure, dict):
        keys = tuple(structure)
        return [dict(zip(keys, row, strict=True)) for row in rows]
    return list(rows)


def _items(batch: Array) -> list[Any]:
    """The rows of one leaf as single values."""
    return [_decoded(row) for row in batch] if batch.dtype == _OBJECT else list(batch)


def _samples(leaf: Array) -> Array:
    """The samples that a leaf holds as bytes."""
    samples = np.empty(leaf.shape, object)
    for index, row in np.ndenumerate(leaf):
        samples[index] = _decoded(row)
    return samples


def _decoded(row: object) -> Nested:
    return values.decode(row) if isinstance(row, bytes) else None


def _encoded(samples: Sequence[object] | Array) -> Array:
    """The inverse of `_samples`; a tuple will do too."""
    rows = list(samples.reshape(-1)) if isinstance(samples, np.ndarray) else list(samples)
    leaf = np.empty(len(rows), object)
    leaf[:] = [values.encode(sample) for sample in rows]
    return leaf.reshape(samples.shape) if isinstance(samples, np.ndarray) else leaf


def _misfit(value: object, leaf: Leaf) -> str:
    """What was expected in place of a single value; empty if it fits."""
    if leaf.dtype == _OBJECT:
        try:
            values.encode(value)
        except values.UnsupportedValue as unsupported:
            return f"{unsupported}: expected arrays, text, numbers, None, and tuples, lists and dicts of them"
        return ""
    array = _as_array(value)
    fits = array is not None and array.shape == leaf.shape
    if array is not None and fits and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        return ""
    return f"expected {leaf.dtype} of shape {leaf.shape}"


def _exact(value: object, leaf: Leaf, num_envs: int) -> Array:
    """`value` as an array [num_envs, *shape] of the leaf's dtype, without a copy where it is one."""
    where = f"actions{_where(leaf.path)}"
    if leaf.dtype == _OBJECT:
        return _encoded_actions(value, where, num_envs)
    expected = (num_envs, *leaf.shape)
    array = _as_array(value)
    if array is None:
        raise ActionError(f"{where} is {_describe(value)}; expected numbers of shape {expected}")
    if array.shape != expected:
        raise ActionError(f"{where} has shape {array.shape}; expected {expected} for {num_envs} environments")
    kinds = "biuf" if leaf.dtype.kind == "f" else "biu"
    if array.dtype.kind not in kinds:
        raise ActionError(f"{where} is of dtype {array.dtype}; expected {leaf.dtype}")
    if array.dtype == leaf.dtype:
        return np.ascontiguousarray(array)
    with np.errstate(over="ignore"):
        exact = np.ascontiguousarray(array, leaf.dtype)
    if leaf.dtype.kind == "f":
        fits = np.array_equal(np.isinf(exact), np.isinf(array))
    else:
        fits = np.array_equal(exact, array)
    if not fits:
        raise ActionError(f"{where} holds numbers that do not fit {leaf.dtype}")
    return exact


def _encoded_actions(value: object, where: str, num_envs: int) -> Array:
    if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and not value.ndim):
        raise ActionError(
            f"{where} is {_describe(value)}; expected a tuple with one sample for each environment"
        )
    if len(value) != num_envs:
        raise ActionError(f"{where} has {len(value)} samples; expected {num_envs}, one for each environment")
    leaf = np.empty(num_envs, object)
    for i, sample in enumerate(value):
        try:
            leaf[i] = values.encode(sample)
        except values.UnsupportedValue as unsupported:
            raise ActionError(f"{where}[{i}] is {_describe(sample)}; {unsupported}") from unsupported
    return leaf


def _as_array(value: object) -> Array | None:
    """`value` as an array, or None if it is not one of numbers."""
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor; torch need not be imported for it
            value = value.detach().cpu()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {shortened(value, 60)}"


def _where(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
