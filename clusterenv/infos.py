"""The info dicts of environments: as bytes between processes, and batched in Gymnasium's layout."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterenv import values
from clusterenv.errors import ProtocolError

Row = tuple[int, Mapping[str, Any]]

logger = logging.getLogger(__name__)

_MAX_WARNINGS = 1000
_warned: set[tuple[str, str]] = set()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, dict[str, Any]]], ext_hook=values.read_ext)


def plain_info(info: Mapping[str, Any]) -> dict[str, values.Plain]:
    """What travels of an info, as it is now: its environment may change it afterwards.

    NumPy arrays and scalars, str, bytes, numbers, None, lists, tuples and dicts of them travel with their
    dtypes. The key of any other value is left out, with one warning for each key and type.
    """
    return _plain_dict(info, 0)


def encode_infos(rows: Sequence[tuple[int, dict[str, values.Plain]]]) -> bytes:
    """A block of infos, each a global env index and what `plain_info` made; empty ones are left out."""
    return values.pack([row for row in rows if row[1]])


def blocks_of(rows: Sequence[tuple[int, dict[str, values.Plain]]]) -> list[bytes]:
    """Infos as one block, or none where all are empty."""
    return [encode_infos(rows)] if any(info for _, info in rows) else []


def decode_infos(block: bytes | memoryview) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a block that `encode_infos` made, anywhere.

    Raises:
        ProtocolError: if it is anything else; memory stays within a small multiple of the block's size.
    """
    rows: list[tuple[int, dict[str, Any]]] = values.read(_decoder, block, "block of infos")
    return rows


def batch_infos(rows: Iterable[Row], num_envs: int) -> dict[str, Any]:
    """The infos of all environments in one dict of arrays [num_envs], each with its mask under `_key`.

    Numbers of one type share an array of it, arrays of one shape are stacked, dicts are batched in turn;
    unlike in Gymnasium, values that no common dtype holds without loss go to an array of objects.

    Raises:
        ProtocolError: if a row is not one of 0..num_envs-1.
    """
    columns: dict[str, dict[int, Any]] = {}
    for index, info in rows:
        if not 0 <= index < num_envs:
            raise ProtocolError(f"infos are for environment {index}; expected one of 0..{num_envs - 1}")
        for key, value in info.items():
            columns.setdefault(key, {})[index] = value
    batched: dict[str, Any] = {}
    for key, column in columns.items():
        mask = np.zeros(num_envs, np.bool_)
        mask[list(column)] = True
        batched[key] = _batch(column, num_envs, as_objects=key == "final_obs")
        batched[f"_{key}"] = mask
    return batched


def unbatch_infos(
    infos: Mapping[str, Any], num_envs: int, *, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The info of each environment, from a dict of arrays [num_envs] with masks: undoes `batch_infos`.

    A key without a mask counts for all environments; the keys `without` are left out.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, column in infos.items():
        if key in without or (isinstance(key, str) and key[:1] == "_" and key[1:] in infos):
            continue
        mask = infos.get(f"_{key}")
        chosen = range(num_envs) if mask is None else np.flatnonzero(mask).tolist()
        parts = unbatch_infos(column, num_envs) if isinstance(column, Mapping) else column
        if isinstance(parts, np.ndarray) and parts.ndim == 1 and parts.dtype == np.bool_:
            parts = parts.tolist()  # Gymnasium batches bool as numbers, but numpy.bool as objects
        for row in chosen:
            rows[row][key] = parts[row]
    return rows


# --- bytes --------------------------------------------------------------------------------------------------


def _plain_dict(info: Mapping[Any, Any], depth: int) -> dict[Any, values.Plain]:
    """`info` with what MessagePack knows in place of all values, without the keys that do not travel."""
    plain: dict[Any, values.Plain] = {}
    for key, value in info.items():
        try:
            # At the top a number will not do: Gymnasium makes the name of the mask of the key.
            name = values.plain_key(key, numbers=depth > 0)
            plain[name] = values.plain(value, depth + 1, _plain_dict)
        except values.UnsupportedValue as unsupported:
            if depth and isinstance(unsupported, values.NestedTooDeeply):
                raise  # else a dict that holds itself twice would be followed into its 2**32 parts
            _warn(key, unsupported.kind)
    return plain


def _warn(key: object, kind: str) -> None:
    seen = (str(key), kind)
    if seen not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add(seen)
        logger.warning("info key %r is left out: %s does not travel between processes", key, kind)


# --- batches ------------------------------------------------------------------------------------------------


def _batch(
    column: Mapping[int, Any], num_envs: int, *, as_objects: bool = False
) -> NDArray[Any] | dict[str, Any]:
    """The values of one key, by env index, in the tightest form that holds each of them unchanged."""
    if not as_objects:
        if all(isinstance(value, dict) for value in column.values()):
            return batch_infos(column.items(), num_envs)
        batch = _batch_numbers(column, num_envs)
        if batch is None:
            batch = _batch_arrays(column, num_envs)
        if batch is not None:
            return batch
    objects: NDArray[Any] = np.full(num_envs, None, dtype=object)
    for index, value in column.items():
        objects[index] = value
    return objects


def _batch_numbers(column: Mapping[int, Any], num_envs: int) -> NDArray[Any] | None:
    """One array of all values, or None if they are not all numbers or have no common dtype."""
    types = {type(value) for value in column.values()}
    if not all(kind in (int, float, bool) or issubclass(kind, np.number) for kind in types):
        return None
    batch = np.zeros(num_envs, np.result_type(*map(np.dtype, types)))
    if batch.dtype.kind == "m":  # a duration, whose type does not tell the unit
        return None
    for index, value in column.items():
        try:
            batch[index] = value
        except OverflowError:
            return None
        if not _holds(batch[index], value):
            return None
    return batch


def _batch_arrays(column: Mapping[int, Any], num_envs: int) -> NDArray[Any] | None:
    """One array of all values, or None if they are not all arrays of one shape with a common dtype."""
    arrays = list(column.values())
    if not all(isinstance(value, np.ndarray) and value.shape == arrays[0].shape for value in arrays):
        return None
    dtypes = {value.dtype for value in arrays}
    if len(dtypes) > 1 and len({"n" if dtype.kind in "biufc" else dtype.kind for dtype in dtypes}) > 1:
        return None
    batch = np.zeros((num_envs, *arrays[0].shape), np.result_type(*dtypes))
    for index, value in column.items():
        batch[index] = value
        if not _holds(batch[index], value):
            return None
    return batch


def _holds(row: NDArray[Any], value: object) -> bool:
    """Whether `row` is `value` and not only near it, as 2**53 + 1 among floats would be."""
    exact = np.asarray(value)
    if exact.dtype.kind not in "iu" or row.dtype.kind not in "fc":
        return True
    with np.errstate(invalid="ignore"):
        return np.array_equal(np.asarray(row).real.astype(exact.dtype), exact)
