"""The info dicts of environments: as bytes between processes, and batched in Gymnasium's layout."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ProtocolError

Row = tuple[int, Mapping[str, Any]]
Plain = Any
"""What MessagePack knows: None, bool, int, float, str, bytes, list, dict, Ext."""

logger = logging.getLogger(__name__)

# Extension types of MessagePack, each holding MessagePack in turn.
_ARRAY, _SCALAR, _TUPLE, _INT = 1, 2, 3, 4

_DTYPE = re.compile(r"[<>|][biufcmMSU][1-9]\d{0,9}(\[\d*[A-Za-z]{1,2}\])?")  # nothing that holds objects
_MAX_DEPTH = 32
_MAX_INT_BITS = 8192
_MAX_WARNINGS = 1000
_warned: set[tuple[str, str]] = set()
_encoder = msgspec.msgpack.Encoder()


class _Unsupported(Exception):
    """A value that does not travel; the one argument is its type."""


def encode_infos(rows: Sequence[Row]) -> bytes:
    """A block of the infos of `rows`, each a global env index and its info; rows with an empty dict left out.

    NumPy arrays and scalars, str, bytes, numbers, None, lists, tuples and dicts of them travel with their
    dtypes. The key of any other value is left out, with one warning for each key and type.
    """
    return _encoder.encode([(index, _plain_dict(info, 0)) for index, info in rows if info])


def decode_infos(block: bytes | memoryview) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a block that `encode_infos` made, anywhere.

    Raises:
        ProtocolError: if it is anything else; memory stays within a small multiple of the block's size.
    """
    try:
        return _row_decoder.decode(block)
    except (
        msgspec.MsgspecError,
        ArithmeticError,
        ValueError,
        TypeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ProtocolError(f"block of infos cannot be read: {error}") from error


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


# --- bytes --------------------------------------------------------------------------------------------------


def _plain_dict(info: Mapping[Any, Any], depth: int) -> dict[Any, Plain]:
    """`info` with what MessagePack knows in place of all values, without the keys that do not travel."""
    plain: dict[Any, Plain] = {}
    for key, value in info.items():
        try:
            plain[_plain_key(key, depth)] = _plain(value, depth + 1)
        except _Unsupported as unsupported:
            _warn(key, unsupported.args[0])
    return plain


def _plain_key(key: object, depth: int) -> str | int:
    if isinstance(key, str):
        return _plain_str(str(key))
    # At the top Gymnasium makes the name of the mask of it.
    if depth > 0 and type(key) is int and -(1 << 63) <= key < 1 << 63:
        return key
    raise _Unsupported(type(key))


def _plain(value: object, depth: int) -> Plain:
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is bytes:
        return value
    if isinstance(value, np.generic):
        return _array_ext(_SCALAR, np.asarray(value))
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        raise _Unsupported(kind)
    if isinstance(value, np.ndarray):
        return _array_ext(_ARRAY, value)
    if isinstance(value, int):
        return _plain_int(int(value))
    if isinstance(value, float):  # a subclass, as below
        return float(value)
    if isinstance(value, str):
        return _plain_str(str(value))
    if isinstance(value, bytes):
        return bytes(value)
    if depth >= _MAX_DEPTH:
        raise _Unsupported(kind)
    if isinstance(value, Mapping):
        return _plain_dict(value, depth)
    if isinstance(value, tuple):
        return _ext(_TUPLE, [_plain(item, depth + 1) for item in value])
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    raise _Unsupported(kind)


def _plain_str(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # lone surrogates, such as file names that are not UTF-8 give
            raise _Unsupported(str) from None
    return value


def _plain_int(value: int) -> Plain:
    if -(1 << 63) <= value < 1 << 64:
        return value
    if value.bit_length() > _MAX_INT_BITS:
        raise _Unsupported(int)
    return _ext(_INT, str(value))


def _array_ext(code: int, array: NDArray[Any]) -> msgspec.msgpack.Ext:
    if not _DTYPE.fullmatch(array.dtype.str):
        raise _Unsupported(array.dtype)
    return _ext(code, (array.dtype.str, array.shape, array.tobytes()))


def _ext(code: int, content: Plain) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encoder.encode(content))


def _warn(key: object, kind: object) -> None:
    name = kind.__qualname__ if isinstance(kind, type) else f"array of {kind}"
    seen = (str(key), name)
    if seen not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add(seen)
        logger.warning("info key %r is left out: %s does not travel between processes", key, name)


def _read_ext(code: int, content: memoryview) -> object:
    if code in (_ARRAY, _SCALAR):
        array = _read_array(content)
        return array[()] if code == _SCALAR else array
    if code == _TUPLE:
        return tuple(_list_decoder.decode(content))
    if code == _INT:
        return int(_str_decoder.decode(content))
    raise ValueError(f"extension {code} is unknown")


def _read_array(content: memoryview) -> NDArray[Any]:
    """A new array, its bytes checked against dtype and shape before anything is made of them."""
    name, shape, data = _array_decoder.decode(content)
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype {name!r} is not one that travels")
    dtype = np.dtype(name)
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"array {name} {shape} has {len(data)} bytes")
    array: NDArray[Any] = np.ndarray(shape, dtype, data).copy()
    if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
        raise ValueError("array of booleans holds other values than 0 and 1")
    return array


_row_decoder = msgspec.msgpack.Decoder(list[tuple[int, dict[str, Any]]], ext_hook=_read_ext)
_list_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_read_ext)
_array_decoder = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], bytes])
_str_decoder = msgspec.msgpack.Decoder(str)


# --- batches ------------------------------------------------------------------------------------------------


def _batch(
    column: Mapping[int, Any], num_envs: int, *, as_objects: bool = False
) -> NDArray[Any] | dict[str, Any]:
    """The values of one key, by env index, in the tightest form that holds each of them unchanged."""
    values = column.values()
    if not as_objects:
        if all(isinstance(value, dict) for value in values):
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
    values = list(column.values())
    if not all(isinstance(value, np.ndarray) and value.shape == values[0].shape for value in values):
        return None
    dtypes = {value.dtype for value in values}
    if len(dtypes) > 1 and len({"n" if dtype.kind in "biufc" else dtype.kind for dtype in dtypes}) > 1:
        return None
    batch = np.zeros((num_envs, *values[0].shape), np.result_type(*dtypes))
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
