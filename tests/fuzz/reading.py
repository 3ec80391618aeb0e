"""What a head makes of the bytes of a worker, from one input of a fuzzer."""

from __future__ import annotations

import contextlib

import numpy as np
from gymnasium import spaces

from clusterenv import values
from clusterenv.batches import ActBatch, Fragment, FrameReader, ResetBatch, StepBatch
from clusterenv.errors import ProtocolError
from clusterenv.infos import batch_infos, decode_infos
from clusterenv.layout import SpaceLayout
from clusterenv.transport import messages as m
from clusterenv.transport.codec import HEADER, MAGIC, PACKED, Side, decode

RUN_ID = 7
ENVS, STEPS, STATE = 2, 3, [np.zeros((1, 2), np.float32)]
VERSION = 2
OBS = SpaceLayout.of(
    spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Text(4), c=spaces.Discrete(3))
)
ACTIONS = SpaceLayout.of(spaces.Discrete(2))
PLACED = [np.zeros((STEPS + 1, ENVS, 2), np.float32), np.zeros((STEPS + 1, ENVS), np.int64)]
MOST_FRAMES = 32
LIMIT_BYTES = 1 << 20
AS_PACK = 1 << 6


def read_input(data: bytes) -> None:
    """Decode `data`: kind, number of parts, their lengths (2 bytes each), parts, body; then read it.

    The kind is raised by `AS_PACK` where the first part is a pack of frames.

    Raises:
        ProtocolError: for the message; what its parts are by themselves is looked at in any case.
    """
    kind, count = (data[0], data[1] % MOST_FRAMES) if len(data) > 1 else (0, 0)
    lengths = [int.from_bytes(data[at : at + 2], "little") for at in range(2, 2 + 2 * count, 2)]
    rest, tail = data[2 + 2 * count :], []
    for length in lengths:
        tail.append(rest[:length])
        rest = rest[length:]
    for part in {rest, *tail}:
        _read_part(part)
    kind = kind & ~AS_PACK | (PACKED if kind & AS_PACK else 0)
    header = HEADER.pack(MAGIC, m.PROTOCOL_VERSION, kind, RUN_ID, 0, 1)
    parts = [memoryview(header + rest), *map(memoryview, tail)]
    envelope = decode(parts, sender=Side.WORKER, run_id=RUN_ID, max_message_bytes=LIMIT_BYTES)
    for frame in envelope.frames:
        _read_part(bytes(frame))
    _read_message(envelope.message, envelope.frames)


def _read_part(part: bytes) -> None:
    """As a value, and as a block of infos: each of them travels inside of messages."""
    for read in (values.decode, _read_infos):
        with contextlib.suppress(ProtocolError):
            read(part)


def _read_infos(block: bytes) -> None:
    batch_infos(decode_infos(block), ENVS)


def _read_message(message: m.Message, frames: list[memoryview]) -> None:
    """What the head does with an answer."""
    if isinstance(message, m.ResetReply):
        ResetBatch.of_frames(frames, OBS, num_envs=ENVS, infos=message.infos)
    elif isinstance(message, m.StreamEnded):
        ResetBatch.of_frames(frames, OBS, num_envs=ENVS, infos=[])
    elif isinstance(message, m.StepReply):
        reader = FrameReader(frames)
        reader.done(StepBatch.read(reader, OBS, ENVS, message.num_final))
    elif isinstance(message, m.ActReply):
        ActBatch.of_frames(
            frames,
            OBS,
            ACTIONS,
            num_envs=ENVS,
            num_final=message.num_final,
            policy_version=VERSION,
            state=STATE,
        )
    elif isinstance(message, m.FragmentReply):
        Fragment.of_frames(
            frames,
            OBS,
            ACTIONS,
            num_steps=message.num_steps,
            num_envs=ENVS,
            num_final=message.num_final,
            policy_version=VERSION,
            episodes=[],
            has_versions=message.has_versions,
            state=STATE,
            num_sampled=message.num_sampled,
            placed=PLACED if message.in_place else None,
        )
    elif isinstance(message, m.CallReply) and frames:
        for result in values.split(frames[0], ENVS):
            values.decode(result)
    for block in [*getattr(message, "infos", []), *getattr(message, "final_infos", [])]:
        _read_infos(block)
