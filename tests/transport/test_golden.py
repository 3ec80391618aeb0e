"""The bytes on the wire are fixed for as long as PROTOCOL_VERSION is.

To change them: raise PROTOCOL_VERSION, say so in docs/protocol.md, and run this file once with
CLUSTERENV_WRITE_GOLDEN=1, which writes what is missing and overwrites nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterenv.transport.codec import Side, decode, encode
from clusterenv.transport.messages import KINDS, PROTOCOL_VERSION
from tests.transport.samples import INCARNATION, RUN_ID, SAMPLES, SEQUENCE

FOLDER = Path(__file__).parent / "golden" / f"v{PROTOCOL_VERSION}"


def golden_path(kind: int) -> Path:
    return FOLDER / f"{kind:02d}-{KINDS[kind].__name__}.hex"


def sample_parts(kind: int) -> list[bytes]:
    message, frames = SAMPLES[KINDS[kind]]
    parts, _ = encode(
        message,
        frames,
        run_id=RUN_ID,
        incarnation=INCARNATION,
        sequence=SEQUENCE,
        max_message_bytes=1 << 20,
    )
    return [bytes(part) for part in parts]


def golden_parts(kind: int) -> list[bytes]:
    """The parts of a golden file, which has a line of hexadecimal digits for each."""
    path = golden_path(kind)
    if not path.exists() and os.environ.get("CLUSTERENV_WRITE_GOLDEN") == "1":
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{part.hex()}\n" for part in sample_parts(kind)))
    return [bytes.fromhex(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_each_kind_are_the_golden_ones(kind: int) -> None:
    assert sample_parts(kind) == golden_parts(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_golden_bytes_are_read_as_the_sample(kind: int) -> None:
    envelope = decode(
        [memoryview(part) for part in golden_parts(kind)],
        sender=Side.HEAD if kind >= 32 else Side.WORKER,
        run_id=RUN_ID,
        max_message_bytes=1 << 20,
    )

    assert envelope.message == SAMPLES[KINDS[kind]][0]


def test_there_is_one_golden_file_for_each_kind() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(map(golden_path, KINDS))
