from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.transport import Buffer, Envelope
from clusterenv.transport import messages as m
from clusterenv.transport.codec import HEADER, MAX_FRAMES, Side, decode, encode
from clusterenv.transport.messages import KINDS, PROTOCOL_VERSION
from tests.transport.samples import INCARNATION, RUN_ID, SAMPLES, SEQUENCE

LIMIT_BYTES = 1 << 20


def encoded(message: m.Message, frames: Sequence[Buffer] = ()) -> list[bytes]:
    parts, nbytes = encode(
        message,
        frames,
        run_id=RUN_ID,
        incarnation=INCARNATION,
        sequence=SEQUENCE,
        max_message_bytes=LIMIT_BYTES,
    )
    assert nbytes == sum(len(bytes(part)) for part in parts)
    return [bytes(part) for part in parts]


def decoded(parts: Sequence[bytes], sender: Side) -> Envelope:
    return decode(
        [memoryview(part) for part in parts], sender=sender, run_id=RUN_ID, max_message_bytes=LIMIT_BYTES
    )


def side(kind: int) -> Side:
    return Side.HEAD if kind >= 32 else Side.WORKER


def header(**changes: object) -> bytes:
    """A header as a Heartbeat has it, but for `changes`."""
    fields: dict[str, object] = {
        "magic": b"CENV",
        "version": PROTOCOL_VERSION,
        "kind": 3,
        "run": RUN_ID,
        "incarnation": 0,
        "sequence": 0,
    }
    return struct.pack("<4sHHQIQ", *{**fields, **changes}.values())


BODY = msgspec.msgpack.encode({"steps": 1, "working_on": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_message_of_each_kind_survives_the_wire(kind: int) -> None:
    message, frames = SAMPLES[KINDS[kind]]

    envelope = decoded(encoded(message, frames), side(kind))

    assert envelope.message == message
    assert (envelope.incarnation, envelope.sequence) == (INCARNATION, SEQUENCE)
    assert [bytes(frame) for frame in envelope.frames] == [
        frame.tobytes() if isinstance(frame, np.ndarray) else bytes(frame) for frame in frames
    ]
    assert envelope.nbytes == sum(map(len, encoded(message, frames)))


def test_header_takes_28_bytes() -> None:
    assert HEADER.size == 28
    assert encoded(m.HeartbeatAck())[0][:28] == header(kind=34, incarnation=INCARNATION, sequence=SEQUENCE)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float64).reshape(3, 4).T,
        np.arange(12, dtype=np.int32)[::-2],
        np.array(3.5, dtype=np.float16),
        np.zeros((0, 4), dtype=np.float32),
        np.zeros((3, 0, 2), dtype=np.uint8),
        np.array([True, False]),
        np.array([np.nan, np.inf, -np.inf, -0.0]),
        np.array([1.5], dtype=np.longdouble),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_array_keeps_its_bits_in_c_order(array: np.ndarray) -> None:
    frame = decoded(encoded(m.StepCommand(), [array]), Side.HEAD).frames[0]

    again = np.frombuffer(frame.cast("B"), dtype=array.dtype).reshape(array.shape)
    assert again.tobytes() == array.tobytes()


def test_memoryview_that_is_not_contiguous_is_sent_in_c_order() -> None:
    view = memoryview(np.arange(10, dtype=np.uint8))[::3]

    assert bytes(decoded(encoded(m.StepCommand(), [view]), Side.HEAD).frames[0]) == bytes([0, 3, 6, 9])


def test_large_array_is_sent_as_a_view_of_its_memory() -> None:
    array = np.zeros(1 << 16)

    parts, _ = encode(
        m.StepCommand(), [array], run_id=1, incarnation=0, sequence=0, max_message_bytes=1 << 20
    )

    assert np.shares_memory(np.frombuffer(parts[1], dtype=np.uint8), array)


def test_small_frame_is_aligned_wherever_it_was_received() -> None:
    for offset in range(16):
        buffer = bytearray(200)
        frame = memoryview(buffer)[offset : offset + 64]

        out = decode(
            [memoryview(header(kind=36) + b"\x80"), frame],
            sender=Side.HEAD,
            run_id=RUN_ID,
            max_message_bytes=LIMIT_BYTES,
        ).frames[0]

        assert np.frombuffer(out, dtype=np.float64).flags.aligned


SIZES = st.lists(st.integers(0, 40) | st.integers((1 << 14) - 2, (1 << 14) + 2), max_size=9)


@given(SIZES)
def test_small_frames_travel_in_one_part_and_are_aligned(sizes: list[int]) -> None:
    frames = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    small = [size for size in sizes if size < 1 << 14]

    parts = encoded(m.StepCommand(), frames)
    envelope = decoded(parts, Side.HEAD)

    assert len(parts) == 1 + (len(sizes) if len(small) < 2 else 1 + len(sizes) - len(small))
    assert [bytes(frame) for frame in envelope.frames] == frames
    for frame, size in zip(envelope.frames, sizes, strict=True):
        if 0 < size < 1 << 14:
            assert np.frombuffer(frame, np.uint8).ctypes.data % 16 == 0
            assert len(frame.obj) == size  # memory of its own, that keeps no other alive
    assert envelope.nbytes == sum(map(len, parts))


def pack(count: int, *sizes: int, data: bytes = b"") -> list[bytes]:
    """A StepCommand with such a table, without frames of their own."""
    return [header(kind=36 | 1 << 14) + b"\x80", struct.pack(f"<{1 + len(sizes)}I", count, *sizes) + data]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (pack(2, 1, 1)[:1], "StepCommand with a pack of 0 bytes for 0 frames"),
        ([pack(2)[0], b"\2\0"], "a pack of 2 bytes for 2 frames"),
        (pack(1, 4, data=bytes(8)), "a pack of 16 bytes for 1 frames"),
        (pack(3, 0, 0), "a pack of 12 bytes for 3 frames"),
        (pack(MAX_FRAMES + 1, *[0] * (MAX_FRAMES + 1)), "a pack of .* bytes for 16385 frames"),
        (pack(2, 0, 1), "a pack of 12 bytes; its table tells of 13"),
        (pack(2, 0, 1, data=bytes(6)), "a pack of 18 bytes; its table tells of 13"),
        (pack(2, 0, (1 << 32) - 2), "a pack of 12 bytes; its table tells of 4294967306"),
        (pack(2, 0, (1 << 32) - 1), "without a frame that its pack names"),
        ([*pack(2, 0, 0), b"x"], "StepCommand with a frame that its pack does not name"),
    ],
)
def test_malformed_pack_is_refused_by_name(parts: list[bytes], told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        decoded(parts, Side.HEAD)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "without a header"),
        ([b""], "a header of 0 bytes; expected 28"),
        ([header()[:27]], "a header of 27 bytes; expected 28"),
        ([b"GET / HTTP/1.1\r\nHost: example.org\r\n"], r"begins with b'GET '; expected b'CENV'"),
        ([header(version=9) + BODY], "protocol version 9; this side speaks version 5: install the same"),
        ([header(run=5) + BODY], "a message of run 0000000000000005; this is run 0123456789abcdef"),
        ([header(kind=31) + BODY], "kind 31, which does not exist"),
        ([header(kind=32767) + BODY], "kind 16383, which does not exist"),
        ([header(kind=33) + BODY], r"kind 33 \(Refused\), which a worker may not send"),
        ([header()], r"body of Heartbeat \(0 bytes\)"),
        ([header() + BODY[:-1]], "body of Heartbeat .*truncated"),
        ([header() + BODY + b"\x00"], "body of Heartbeat .*trailing"),
        ([header() + b"\xc1" * 10], "body of Heartbeat"),
        ([header() + msgspec.msgpack.encode({"steps": 1})], "missing required field `working_on`"),
        ([header() + msgspec.msgpack.encode({"steps": -1, "working_on": 0})], r">= 0.*\$.steps"),
        ([header() + msgspec.msgpack.encode({"steps": 1, "working_on": 0, "x": 0})], "unknown field `x`"),
        ([header(kind=11) + b"\x81\xa6reason\xa3\xff\xff\xff"], "body of Goodbye .*utf-8"),
        ([header(kind=5) + b"\x81\xa5infos\xdd\xff\xff\xff\xff"], "body of ResetReply .*length <= 65536"),
        ([header(kind=2) + b"\x81\xa4pids\xdd\x7f\xff\xff\xff"], "body of Ready .*length <= 1048576"),
        ([header() + BODY] + [b""] * (MAX_FRAMES + 1), "Heartbeat with 16385 frames; at most 16384"),
        ([header() + BODY, bytes(LIMIT_BYTES)], "Heartbeat of 10.* bytes; max_message_bytes is 1048576"),
    ],
)
def test_malformed_message_is_refused_by_name(parts: list[bytes], told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        decoded(parts, Side.WORKER)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_from_the_wrong_side_is_refused(kind: int) -> None:
    message, frames = SAMPLES[KINDS[kind]]
    wrong = Side.WORKER if side(kind) is Side.HEAD else Side.HEAD

    with pytest.raises(ProtocolError, match=f"kind {kind} .* may not send"):
        decoded(encoded(message, frames), wrong)


def test_message_that_the_receiver_would_refuse_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=r"StepCommand of .* bytes; max_message_bytes is 1048576"):
        encoded(m.StepCommand(), [bytes(LIMIT_BYTES)])
    with pytest.raises(ProtocolError, match="StepCommand with 16385 frames"):
        encoded(m.StepCommand(), [b""] * (MAX_FRAMES + 1))


PARTS = st.lists(st.binary(max_size=64), max_size=4)


@given(PARTS, st.sampled_from(Side))
def test_any_bytes_give_a_message_or_a_protocol_error(parts: list[bytes], sender: Side) -> None:
    assert_decoded_or_refused(parts, sender)


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=64), PARTS)
def test_any_body_gives_a_message_or_a_protocol_error(kind: int, body: bytes, frames: list[bytes]) -> None:
    assert_decoded_or_refused([header(kind=kind) + body, *frames], side(kind))


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_any_damage_to_a_message_gives_a_message_or_a_protocol_error(kind: int, data: st.DataObject) -> None:
    parts = encoded(*SAMPLES[KINDS[kind]])
    number = data.draw(st.integers(0, len(parts) - 1))
    part = parts[number]
    start = data.draw(st.integers(0, len(part)))
    end = data.draw(st.integers(start, min(len(part), start + 4)))
    parts[number] = part[:start] + data.draw(st.binary(max_size=8)) + part[end:]

    assert_decoded_or_refused(parts, side(kind))


def assert_decoded_or_refused(parts: list[bytes], sender: Side) -> None:
    try:
        envelope = decoded(parts, sender)
    except ProtocolError:
        return
    assert type(envelope.message) in KINDS.values()
