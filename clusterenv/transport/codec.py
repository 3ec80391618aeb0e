"""Messages to bytes and back: a fixed header, a MessagePack body, raw frames; nothing is ever unpickled.

One message is one ZeroMQ multipart message: header and body together, then the frames (`docs/protocol.md`).
Small frames travel in one part, since each part costs both sides as much as some kilobytes. If frames are
lent, a last part says where they are (see `clusterenv.lending`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ProtocolError
from clusterenv.transport.messages import KINDS, PROTOCOL_VERSION, Message

Buffer = NDArray[Any] | memoryview | bytes
Parts = list[memoryview | bytes]
Lending = Callable[[Sequence[memoryview | bytes]], tuple[Parts, bytes] | None]
"""Gives the frames without what it lends, and the part that says where that is; None if it lends nothing."""
Borrowing = Callable[[Sequence[memoryview], memoryview], list[memoryview]]
"""Gives the frames with what was lent in its places."""

MAGIC = b"CENV"
HEADER = struct.Struct("<4sHHQIQ")
"""Magic, protocol version, kind, run id, incarnation, sequence: 28 bytes."""

LENT = 1 << 15
"""Bit of the kind of a message some of whose frames are lent."""

PACKED = 1 << 14
"""Bit of the kind of a message whose small frames are one part, the second."""

APART = 0xFFFFFFFF
"""In the table of that part, instead of a size: this frame is a part of its own."""

LEAST_PACKED = 2
"""Frames from which on a pack pays."""

PACKED_BELOW_BYTES = 1 << 14
"""Larger frames are parts of their own, which nobody copies."""

FIRST_HEAD_KIND = 32
"""Kinds below come from workers only, the others from the head only."""

MAX_FRAMES = 1 << 14
"""Frames of one message: a Welcome has one for each distinct environment of a worker."""

ALIGNED_FROM_BYTES = 1 << 14
"""Smaller frames may lie at any offset of libzmq's receive buffer (8 KiB) or a pack; others are aligned."""


class Side(enum.Enum):
    """Who sent a message."""

    WORKER = "a worker"
    HEAD = "the head"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message that was received and checked."""

    peer: bytes
    """Routing id of the worker that sent it; empty when the head did."""
    incarnation: int
    sequence: int
    message: Message
    frames: list[memoryview]
    """Bytes, aligned for any dtype, valid for as long as something refers to them."""
    nbytes: int
    """Size of all parts, which is that of header, body and frames, and what says where these are."""


_KIND_OF = {message_type: kind for kind, message_type in KINDS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {kind: msgspec.msgpack.Decoder(message_type) for kind, message_type in KINDS.items()}


def encode(
    message: Message,
    frames: Sequence[Buffer],
    *,
    run_id: int,
    incarnation: int,
    sequence: int,
    max_message_bytes: int,
    lend: Lending | None = None,
) -> tuple[Parts, int]:
    """The parts of a message, and their size in bytes; large frames are views of the caller's memory.

    Frames that `lend` takes are empty parts.

    Raises:
        ProtocolError: if the message is larger than its receiver accepts.
    """
    kind = _KIND_OF[type(message)]
    body = _ENCODER.encode(message)
    flat: Parts = [_flat(frame) for frame in frames]
    pack, apart = _packed(flat)
    nbytes = (
        HEADER.size + len(body) + sum(map(size_of, pack)) + sum(size_of(flat[number]) for number in apart)
    )
    _check_size(type(message).__name__, len(frames), nbytes, max_message_bytes)
    lent = None if lend is None else lend(flat)
    if pack:
        kind |= PACKED
    if lent is not None:
        flat, table = lent
        kind |= LENT
    rest = [*pack, *(flat[number] for number in apart), *([] if lent is None else [table])]
    header = HEADER.pack(MAGIC, PROTOCOL_VERSION, kind, run_id, incarnation, sequence)
    return [header + body, *rest], HEADER.size + len(body) + sum(map(size_of, rest))


def decode(
    parts: Sequence[memoryview],
    *,
    sender: Side,
    run_id: int,
    max_message_bytes: int,
    peer: bytes = b"",
    borrow: Borrowing | None = None,
) -> Envelope:
    """The message that `parts` hold, every claim in it checked; `borrow` finds frames that were lent.

    Raises:
        ProtocolError: naming what was seen, for anything that `sender` may not send in this run.
    """
    if not parts:
        raise ProtocolError("a message without a header")
    head, *frames = parts
    kind, bits, incarnation, sequence = _read_header(head, sender, run_id)
    name = KINDS[kind].__name__
    nbytes = sum(map(size_of, parts))
    table = None
    if bits & LENT:
        if borrow is None or not frames:
            raise ProtocolError(f"{name} with frames in memory that this side has not asked for")
        table = frames.pop()
    if bits & PACKED:
        frames = _unpacked(name, frames)
    if borrow is not None and table is not None:
        frames = borrow(frames, table)
    _check_size(name, len(frames), head.nbytes + sum(map(size_of, frames)), max_message_bytes)
    try:
        message = _DECODERS[kind].decode(head[HEADER.size :])
    except (
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # ValueError: msgspec's, and UnicodeDecodeError
        raise ProtocolError(f"body of {name} ({head.nbytes - HEADER.size} bytes): {error}") from error
    return Envelope(peer, incarnation, sequence, message, [_aligned(frame) for frame in frames], nbytes)


def _read_header(head: memoryview, sender: Side, run_id: int) -> tuple[int, int, int, int]:
    """Kind, its bits LENT and PACKED, incarnation and sequence."""
    if head.nbytes < HEADER.size:
        raise ProtocolError(f"a header of {head.nbytes} bytes; expected {HEADER.size}")
    magic, version, kind, run, incarnation, sequence = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise ProtocolError(f"a header that begins with {magic!r}; expected {MAGIC!r}")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {version}; this side speaks version {PROTOCOL_VERSION}: "
            "install the same version of clusterenv on head and workers"
        )
    if run != run_id:
        raise ProtocolError(f"a message of run {run:016x}; this is run {run_id:016x}")
    kind, bits = kind & ~(LENT | PACKED), kind & (LENT | PACKED)
    if kind not in KINDS:
        raise ProtocolError(f"kind {kind}, which does not exist in protocol version {version}")
    if (sender is Side.HEAD) != (kind >= FIRST_HEAD_KIND):
        raise ProtocolError(f"kind {kind} ({KINDS[kind].__name__}), which {sender.value} may not send")
    return kind, bits, incarnation, sequence


def _check_size(name: str, num_frames: int, nbytes: int, max_message_bytes: int) -> None:
    if num_frames > MAX_FRAMES:
        raise ProtocolError(f"{name} with {num_frames} frames; at most {MAX_FRAMES} are allowed")
    if nbytes > max_message_bytes:
        raise ProtocolError(f"{name} of {nbytes} bytes; max_message_bytes is {max_message_bytes}")


def _packed(frames: Sequence[memoryview | bytes]) -> tuple[Parts, list[int]]:
    """The small frames as one part, if there are several, and the numbers of those that stay parts."""
    sizes = [size_of(frame) for frame in frames]
    apart = [number for number, size in enumerate(sizes) if size >= PACKED_BELOW_BYTES]
    if len(frames) - len(apart) < LEAST_PACKED:
        return [], list(range(len(frames)))
    table = [len(sizes), *(APART if size >= PACKED_BELOW_BYTES else size for size in sizes)]
    small = [frame for frame, size in zip(frames, sizes, strict=True) if size < PACKED_BELOW_BYTES]
    return [b"".join([np.array(table, "<u4").tobytes(), *small])], apart


def _unpacked(name: str, parts: Sequence[memoryview]) -> list[memoryview]:
    """All frames of a message, the first of whose `parts` holds the small ones."""
    pack = parts[0] if parts else memoryview(b"")
    count = int.from_bytes(pack[:4], "little")
    if not LEAST_PACKED <= count <= min(MAX_FRAMES, (pack.nbytes - 4) // 4):
        raise ProtocolError(f"{name} with a pack of {pack.nbytes} bytes for {count} frames")
    frames, start, apart = [], 4 + 4 * count, iter(parts[1:])
    for size in struct.unpack_from(f"<{count}I", pack, 4):
        if size == APART:
            frame = next(apart, None)
            if frame is None:
                raise ProtocolError(f"{name} without a frame that its pack names")
        else:
            frame, start = pack[start : start + size], start + size
        frames.append(frame)
    if start != pack.nbytes:
        raise ProtocolError(f"{name} with a pack of {pack.nbytes} bytes; its table tells of {start}")
    if next(apart, None) is not None:
        raise ProtocolError(f"{name} with a frame that its pack does not name")
    return frames


def _flat(frame: Buffer) -> memoryview | bytes:
    """The bytes of a frame in C order, without a copy where they lie so."""
    if isinstance(frame, np.ndarray):
        return np.ascontiguousarray(frame).reshape(-1).view(np.uint8).data
    if isinstance(frame, memoryview):
        return frame.cast("B") if frame.c_contiguous and frame.nbytes else frame.tobytes()
    return frame


def size_of(part: Buffer) -> int:
    """Bytes of a frame or part."""
    return len(part) if isinstance(part, bytes) else part.nbytes


def _aligned(frame: memoryview) -> memoryview:
    """The frame itself, or a writable copy of one that may lie at an odd address."""
    return frame if frame.nbytes >= ALIGNED_FROM_BYTES else memoryview(bytearray(frame))
