"""Large frames of a worker on the head's machine: where they lie, when it is free again, what is refused."""

from __future__ import annotations

import dataclasses
import gc
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from clusterenv import segments
from clusterenv.errors import ProtocolError
from clusterenv.lending import FRAME, LARGE_BYTES, LINE, LOAN, MOST_PLACES, Borrower, Lender
from clusterenv.transport import Client, Envelope
from clusterenv.transport import messages as m
from tests.processes import wait_until
from tests.transport.conftest import Run, StartRun

LARGE = 1 << 20


def frame(value: int, nbytes: int = LARGE) -> np.ndarray:
    return np.full(nbytes, value, np.uint8)


def sent(run: Run, client: Client, *frames: np.ndarray) -> tuple[int, Envelope]:
    """Bytes that travelled, and what the head got."""
    nbytes = client.send(m.FragmentReply(**FRAGMENT), frames, sequence=1)
    envelope = run.get()
    wait_until(lambda: client.receive(0.01) == ([], []) and not is_asking(client), 20)
    return nbytes, envelope


def is_asking(client: Client) -> bool:
    return any(not place.accepted for place in client._lender._places)


FRAGMENT = {
    "policy": m.PolicyInfo(
        policy_version=1, kl=0.0, sync_count=0, syncs_by_reason={}, kl_threshold=0.0, checks=0, check_s=0.0
    ),
    "num_sampled": 0,
    "fragment": 1,
    "num_steps": 1,
    "num_final": 0,
    "episodes": [],
    "family": None,
    "family_sizes": [],
    "has_versions": False,
}


def test_large_messages_do_not_travel_and_are_the_same(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    first, _ = sent(run, client, frame(1), frame(2, 100))
    second, envelope = sent(run, client, frame(3), frame(4, 100), frame(5, LARGE - 7))
    third, envelope = sent(run, client, frame(6), frame(7, 100), frame(8, LARGE - 7))
    assert max(first, second, third) < 1000
    assert [bytes(each) for each in envelope.frames] == [
        frame(6).tobytes(),
        frame(7, 100).tobytes(),
        frame(8, LARGE - 7).tobytes(),
    ]
    assert all(each.readonly for each in envelope.frames if len(each) > 100)


def test_message_is_sent_though_the_head_does_not_say_whether_it_can_map_the_memory(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = Borrower.accepts

    def slowly(self: Borrower, sender: bytes, segment: segments.Segment) -> bool:
        time.sleep(1.0)
        return accepts(self, sender, segment)

    monkeypatch.setattr(Borrower, "accepts", slowly)
    run = start_run()
    client = run.client()
    assert sent(run, client, frame(1))[0] > LARGE
    assert sent(run, client, frame(2))[0] < 1000


def test_what_comes_while_a_message_waits_is_given_out(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run()
    client = run.client()
    client.send(m.Heartbeat(steps=0, working_on=0), sequence=0)
    greeting = run.get()
    accepts = Borrower.accepts

    def with_news(self: Borrower, sender: bytes, segment: segments.Segment) -> bool:
        run.server.send(greeting.peer.removesuffix(b"+"), m.StopStream(), (), incarnation=0, sequence=7)
        return accepts(self, sender, segment)

    monkeypatch.setattr(Borrower, "accepts", with_news)
    assert client.send(m.FragmentReply(**FRAGMENT), (frame(1),), sequence=1) < 1000
    assert [each.message for each in client.receive(5.0)[0]] == [m.StopStream()]


def test_memory_is_not_asked_for_what_is_too_large_to_send(start_run: StartRun) -> None:
    client = start_run().client()
    client._connection = dataclasses.replace(client._connection, max_message_bytes=1 << 20)
    with pytest.raises(ProtocolError):
        client.send(m.FragmentReply(**FRAGMENT), (frame(1, 2 << 20),), sequence=1)
    assert not client._lender._places


def test_memory_has_room_for_a_message_that_is_a_little_larger_than_the_first(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    sent(run, client, frame(1))
    (place,) = client._lender._places
    sent(run, client, frame(2, LARGE + LARGE // 16))
    assert client._lender._places == [place]


def test_memory_is_written_again_only_once_nothing_refers_to_it(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    kept = []
    for value in range(3 * MOST_PLACES):
        _, envelope = sent(run, client, frame(value))
        kept.append(np.frombuffer(envelope.frames[0], np.uint8)[::2])
        del envelope
    assert [int(array[0]) for array in kept] == list(range(3 * MOST_PLACES))
    assert all((array == array[0]).all() for array in kept)
    travelled, _ = sent(run, client, frame(99))
    assert travelled > LARGE  # all memory is in use

    kept.clear()
    gc.collect()
    travelled, _ = sent(run, client, frame(100))
    assert travelled < 1000


def test_nothing_is_lent_where_the_head_wants_no_memory(start_run: StartRun) -> None:
    run = start_run(shared_memory=False)
    client = run.client()
    assert all(sent(run, client, frame(value))[0] > LARGE for value in range(4))


def test_memory_of_another_process_is_refused() -> None:
    borrower = Borrower(borrows=True)
    slab, segment = segments.create(4096)
    assert borrower.accepts(b"p", segment)
    for changes in (
        {"nonce": segment.nonce ^ 1},
        {"nbytes": 8192},
        {"descriptor": 1 << 20},
        {"pid": 1 << 40},
        {"descriptor": os.open("/dev/null", os.O_RDWR)},
        {"descriptor": os.open(__file__, os.O_RDONLY), "nbytes": Path(__file__).stat().st_size},
    ):
        assert not borrower.accepts(b"p", dataclasses.replace(segment, **changes)), changes
    del slab


def test_tables_that_lie_are_refused() -> None:
    borrower = Borrower(borrows=True)
    small, most = LARGE_BYTES, LARGE_BYTES + 4096
    _slab, segment = segments.create(LINE + most)
    assert borrower.accepts(b"p", segment)
    loan = LOAN.pack(segment.nonce, 1)
    whole = borrower.fetch(b"p", [memoryview(b"")], memoryview(loan + FRAME.pack(0, 128, small + 100)))
    assert len(whole[0]) == small + 100
    for peer, table in (
        (b"q", loan + FRAME.pack(0, 0, small)),
        (b"p", LOAN.pack(segment.nonce ^ 1, 1) + FRAME.pack(0, 0, small)),
        (b"p", loan + FRAME.pack(1, 0, small)),
        (b"p", loan + FRAME.pack(0, 0, small - 1)),  # it could be changed while it is checked
        (b"p", loan + FRAME.pack(0, 8, small)),
        (b"p", loan + FRAME.pack(0, 0, most + 1)),
        (b"p", loan + FRAME.pack(0, 64, most)),
        (b"p", loan + FRAME.pack(0, most + 64, small)),
        (b"p", loan + FRAME.pack(0, (1 << 64) - 64, small)),
        (b"p", loan + FRAME.pack(0, 0, 1 << 60)),
        (b"p", loan[:-1]),
        (b"p", loan + b"x"),
        (b"p", b""),
    ):
        with pytest.raises(ProtocolError):
            borrower.fetch(peer, [memoryview(b"")], memoryview(table))
    with pytest.raises(ProtocolError):
        borrower.fetch(b"p", [memoryview(b"here")], memoryview(loan + FRAME.pack(0, 0, small)))


def test_lent_frames_count_for_the_limit(start_run: StartRun) -> None:
    run = start_run(max_message_bytes=1 << 20)
    client = run.client()
    sent(run, client, frame(1, 700_000))
    assert sent(run, client, frame(2, 700_000))[0] < 1000
    # Twice the same memory: the worker that claims this is not ours.
    place = client._lender._places[0]
    table = LOAN.pack(place.segment.nonce, 3) + FRAME.pack(0, 0, 700_000) + FRAME.pack(1, 0, 700_000)
    client._lender.lend = lambda frames: ([b"", b""], table)  # type: ignore[method-assign]
    client.send(m.FragmentReply(**FRAGMENT), (b"", b""), sequence=1)
    wait_until(lambda: run.server.refused_messages == 1, 10)


def test_full_dev_shm_lets_frames_travel(start_run: StartRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(nbytes: int) -> None:
        raise OSError(28, f"no room for {nbytes} bytes")

    monkeypatch.setattr(segments, "create", full)
    run = start_run()
    client = run.client()
    assert all(sent(run, client, frame(value))[0] > LARGE for value in range(3))


def test_memory_of_ended_workers_is_not_kept() -> None:
    code = (
        "import sys; from clusterenv import segments; slab, s = segments.create(1 << 20); "
        "print(s.pid, s.descriptor, s.nbytes, s.nonce, flush=True); sys.stdin.read()"
    )
    borrower = Borrower(borrows=True)
    for number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        names = ("pid", "descriptor", "nbytes", "nonce")
        told = map(int, child.stdout.readline().split())
        assert borrower.accepts(number, segments.Segment(**dict(zip(names, told, strict=True))))
        child.communicate()
        assert len(borrower._memories) == 1


def test_memory_in_use_is_not_forgotten_for_larger_ones() -> None:
    lender, borrower = Lender(is_near=True), Borrower(borrows=True)

    def borrowed(value: int, nbytes: int) -> list[memoryview]:
        offer = lender.ask([nbytes])
        if offer is not None:
            lender.on_answer(offer.nonce, mapped=borrower.accepts(b"p", offer))
        lent = lender.lend([frame(value, nbytes).data])
        assert lent is not None
        return borrower.fetch(b"p", [memoryview(each) for each in lent[0]], memoryview(lent[1]))

    kept = borrowed(1, LARGE)
    for size in range(2, 3 * MOST_PLACES):
        borrowed(size, size * LARGE)
    assert bytes(kept[0]) == frame(1).tobytes()
    del kept
    assert bytes(borrowed(99, LARGE)[0]) == frame(99).tobytes()
    assert len(borrower._memories[b"p"]) <= MOST_PLACES


def test_more_memory_than_a_sender_may_have_is_refused() -> None:
    borrower = Borrower(borrows=True)
    slabs = [segments.create(1 << 20) for _ in range(MOST_PLACES + 1)]
    assert [borrower.accepts(b"p", segment) for _, segment in slabs] == [True] * MOST_PLACES + [False]


def test_only_what_is_far_travels() -> None:
    lender = Lender(is_near=False)
    assert lender.lend([frame(1).data]) is None
    assert lender.offer() is None


def test_loans_are_given_back_in_the_memory_itself() -> None:
    lender, borrower = Lender(is_near=True), Borrower(borrows=True)
    assert lender.lend([frame(1).data]) is None
    offer = lender.offer()
    assert offer is not None
    assert lender.offer() is None
    lender.on_answer(offer.nonce, mapped=borrower.accepts(b"p", offer))
    lent = lender.lend([frame(2).data])
    assert lent is not None
    frames, table = lent
    borrowed = borrower.fetch(b"p", [memoryview(each) for each in frames], memoryview(table))
    assert lender.lend([frame(3).data]) is None
    view = np.frombuffer(borrowed[0], np.uint8)[5:]
    del borrowed
    assert lender.lend([frame(4).data]) is None
    assert view[0] == 2
    del view
    began = time.monotonic()
    assert lender.lend([frame(5).data]) is not None
    assert time.monotonic() - began < 5
    assert struct.calcsize(LOAN.format) == 16
