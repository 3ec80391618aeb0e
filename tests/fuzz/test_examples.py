"""The fuzzer starts where it can get far: its examples are read to their ends."""

from __future__ import annotations

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.transport import messages as m
from clusterenv.transport.codec import FIRST_HEAD_KIND
from tests.fuzz.examples import examples
from tests.fuzz.reading import AS_PACK, read_input
from tests.transport.samples import SAMPLES

OF_WORKERS = {kind for kind in m.KINDS if kind < FIRST_HEAD_KIND}


def test_a_message_of_each_kind_that_workers_send_is_read_to_its_end() -> None:
    read = set()
    for example in examples():
        try:
            read_input(example)
        except ProtocolError:
            continue
        read.add(example[0] & ~AS_PACK)

    assert read == OF_WORKERS
    assert {kind for kind in OF_WORKERS if m.KINDS[kind] in SAMPLES} == OF_WORKERS


@pytest.mark.parametrize("at", [0, 1, 2, 40, -1])
def test_changed_example_is_refused_or_read(at: int) -> None:
    for example in examples():
        changed = bytearray(example)
        changed[min(at, len(changed) - 1)] ^= 0x41
        try:
            read_input(bytes(changed))
        except ProtocolError:
            continue
