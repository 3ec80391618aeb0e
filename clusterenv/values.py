"""Plain values as bytes between processes; nothing in them is ever unpickled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from gymnasium.spaces import GraphInstance
from numpy.typing import NDArray

from clusterenv.errors import ProtocolError

Value = Any
Plain = Any
"""What MessagePack knows: None, bool, int, float, str, bytes, list, dict, Ext."""
OfDict = Callable[[Mapping[Any, Any], int], dict[Any, Plain]]
"""Makes a dict plain, at a depth."""

# Extension types of MessagePack, each holding MessagePack in turn.
_ARRAY, _SCALAR, _TUPLE, _INT, _GRAPH, _GENERATOR = range(1, 7)

_DTYPE = re.compile(r"[<>|][biufcmMSU][1-9]\d{0,9}(\[\d*[A-Za-z]{1,2}\])?")  # nothing that holds objects
_MAX_DEPTH = 32
_MAX_INT_BITS = 8192
_BIT_GENERATORS: dict[str, Callable[[], np.random.BitGenerator]] = {
    # Only those whose every state is safe: others have a position in a buffer, which NumPy does not check.
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "SFC64": np.random.SFC64,
}

pack = msgspec.msgpack.Encoder().encode

NOTHING = pack(None)
"""None, encoded."""


class UnsupportedValue(ValueError):
    """A value does not travel: `kind` is the type, and `where` the place, of the part at fault."""

    def __init__(self, kind: object, where: str = "") -> None:
        """Name the type, or the dtype of an array."""
        self.kind = kind.__qualname__ if isinstance(kind, type) else str(kind)
        self.where = where
        part = f"its part {where}" if where else "it"
        super().__init__(f"{part} is of type {self.kind}, which does not travel between processes")


class NestedTooDeeply(UnsupportedValue):
    """A value has more levels than travel, such as one that holds itself."""

    def __init__(self, kind: type) -> None:
        """Name the type of the part that is too deep."""
        super().__init__(f"{kind.__qualname__} nested {_MAX_DEPTH} deep")


def encode(value: object) -> bytes:
    """Bytes from which `decode` makes the same value.

    Arrays, scalars and generators of NumPy, graphs, text, bytes, numbers, None, and lists, tuples and dicts
    of them can travel so.

    Raises:
        UnsupportedValue: for any other value; says where in `value` it is.
    """
    try:
        return pack(plain(value, 0, plain_dict))
    except NestedTooDeeply:
        raise
    except UnsupportedValue as unsupported:
        where, kind = _culprit(value, unsupported.kind)
        raise UnsupportedValue(kind, where) from None


def decode(content: bytes | memoryview) -> Value:
    """The value that `encode` was given, anywhere.

    Raises:
        ProtocolError: if `content` is anything else; memory stays within a small multiple of its size.
    """
    return read(_decoder, content, "value")


def join(parts: Sequence[bytes]) -> bytes:
    """Several byte strings as one."""
    return pack(list(parts))


def split(content: bytes | memoryview | NDArray[Any], count: int) -> list[bytes]:
    """The `count` byte strings that `join` made one.

    Raises:
        ProtocolError: if `content` is anything else.
    """
    parts: list[bytes] = read(_bytes_decoder, content, "list of byte strings")
    if len(parts) != count:
        raise ProtocolError(f"list of byte strings has {len(parts)}; expected {count}")
    return parts


def read(
    decoder: msgspec.msgpack.Decoder[Any], content: bytes | memoryview | NDArray[Any], what: str
) -> Value:
    """What `decoder` makes of `content`.

    Raises:
        ProtocolError: if it makes nothing of it.
    """
    try:
        return decoder.decode(memoryview(content))  # type: ignore[arg-type]  # an array is a buffer
    except (
        msgspec.MsgspecError,
        ArithmeticError,
        LookupError,
        ValueError,
        TypeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ProtocolError(f"{what} cannot be read: {error}") from error


# --- to bytes -----------------------------------------------------------------------------------------------


def plain(value: object, depth: int, of_dict: OfDict) -> Plain:
    """What MessagePack knows in place of `value`, its dicts made plain by `of_dict`.

    Raises:
        UnsupportedValue: if there is nothing.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is bytes:
        return value
    if isinstance(value, np.generic):
        return _array_ext(_SCALAR, np.asarray(value))
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        raise UnsupportedValue(kind)
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
        raise NestedTooDeeply(kind)
    if isinstance(value, Mapping):
        return of_dict(value, depth)
    if isinstance(value, tuple):
        code = _GRAPH if kind is GraphInstance else _TUPLE
        return _ext(code, [plain(item, depth + 1, of_dict) for item in value])
    if isinstance(value, list):
        return [plain(item, depth + 1, of_dict) for item in value]
    if isinstance(value, np.random.Generator):
        return _generator_ext(value, depth, of_dict)
    raise UnsupportedValue(kind)


def plain_dict(value: Mapping[Any, Any], depth: int) -> dict[Any, Plain]:
    """What MessagePack knows in place of a dict.

    Raises:
        UnsupportedValue: if there is nothing for one of its keys or values.
    """
    return {plain_key(key): plain(item, depth + 1, plain_dict) for key, item in value.items()}


def plain_key(key: object, *, numbers: bool = True) -> str | int:
    """What MessagePack knows in place of a key, which is text or, with `numbers`, a whole number.

    Raises:
        UnsupportedValue: if there is nothing.
    """
    if isinstance(key, str):
        return _plain_str(str(key))
    if numbers and type(key) is int and -(1 << 63) <= key < 1 << 63:
        return key
    raise UnsupportedValue(type(key))


def _plain_str(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # lone surrogates, such as file names that are not UTF-8 give
            raise UnsupportedValue("str with lone surrogates") from None
    return value


def _plain_int(value: int) -> Plain:
    if -(1 << 63) <= value < 1 << 64:
        return value
    if value.bit_length() > _MAX_INT_BITS:
        raise UnsupportedValue(int)
    return _ext(_INT, str(value))


def _array_ext(code: int, array: NDArray[Any]) -> msgspec.msgpack.Ext:
    if not _DTYPE.fullmatch(array.dtype.str):
        raise UnsupportedValue(f"array of {array.dtype}")
    return _ext(code, (array.dtype.str, array.shape, array.tobytes()))


def _generator_ext(generator: np.random.Generator, depth: int, of_dict: OfDict) -> msgspec.msgpack.Ext:
    state: Mapping[str, Any] = generator.bit_generator.state
    name = state["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise UnsupportedValue(type(generator.bit_generator))
    return _ext(_GENERATOR, [name, plain(state, depth + 1, of_dict)])


def _ext(code: int, content: Plain) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, pack(content))


def _culprit(value: object, kind: str) -> tuple[str, str]:
    """Where in `value`, which does not travel for a `kind`, the first such part is, and of what kind."""
    if isinstance(value, Mapping):
        for key in value:
            try:
                plain_key(key)
            except UnsupportedValue as unsupported:
                return f"(key {key!r})", unsupported.kind
        parts = [(f"[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, tuple | list):
        parts = [(f"[{number}]", part) for number, part in enumerate(value)]
    else:
        parts = []
    for place, part in parts:
        try:
            plain(part, 0, plain_dict)
        except UnsupportedValue as unsupported:
            where, kind = _culprit(part, unsupported.kind)
            return place + where, kind
    return "", kind


# --- from bytes ---------------------------------------------------------------------------------------------


def read_ext(code: int, content: memoryview) -> object:
    """The value of an extension type.

    Raises:
        Exception: of many kinds, if it is malformed.
    """
    if code in (_ARRAY, _SCALAR):
        array = _read_array(content)
        return array[()] if code == _SCALAR else array
    if code == _TUPLE:
        return tuple(_list_decoder.decode(content))
    if code == _INT:
        return int(_str_decoder.decode(content))
    if code == _GRAPH:
        return GraphInstance(*_list_decoder.decode(content))
    if code == _GENERATOR:
        name, state = _list_decoder.decode(content)
        bits: Any = _BIT_GENERATORS[name]()
        bits.state = state
        return np.random.Generator(bits)
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


_decoder = msgspec.msgpack.Decoder(ext_hook=read_ext)
_list_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=read_ext)
_bytes_decoder = msgspec.msgpack.Decoder(list[bytes])
_array_decoder = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], bytes])
_str_decoder = msgspec.msgpack.Decoder(str)
