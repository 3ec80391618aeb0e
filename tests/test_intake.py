"""An open stream as the head sees it: who may make how much, which fragments count, and which are late."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import msgspec
import pytest

from clusterenv import intake
from clusterenv.intake import Intake
from clusterenv.peers import Ended, Peer, State
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m
from tests.test_head import HELLO, Wire, beating, come_back, start, until, welcome, wired

POLICY = m.PolicyInfo(
    policy_version=1,
    kl=0.0,
    kl_threshold=0.05,
    sync_count=1,
    syncs_by_reason={"first": 1},
    checks=0,
    check_s=0.0,
)
FRAGMENT = m.FragmentReply(
    policy=POLICY,
    num_sampled=0,
    fragment=1,
    num_steps=4,
    num_final=0,
    episodes=[],
    family=None,
    family_sizes=[],
)
COMMAND = m.StreamCommand(version=1, num_steps=4, room=2, sync_at="fragment", max_lag=256, yields=False)
SEQUENCE = 7


def envelope(message: m.Message, incarnation: int = 0) -> Envelope:
    return Envelope(
        peer=b"w0", incarnation=incarnation, sequence=SEQUENCE, message=message, frames=[], nbytes=0
    )


class Stream:
    """An Intake over workers, and what it sends."""

    def __init__(self, room: int = 2, workers: int = 2) -> None:
        self.peers = [Peer(rank, 2 * rank, 2, welcome(rank, 2 * rank, 2), []) for rank in range(workers)]
        self.sent: list[tuple[int, m.Message]] = []
        command = msgspec.structs.replace(COMMAND, room=room)
        self.intake = Intake(SEQUENCE, command, self.peers, self.post)
        for peer in self.peers:
            peer.enter(State.READY)
            self.intake.join(peer, 3)

    def post(self, peer: Peer, message: m.Message, frames: Any, sequence: int) -> None:
        assert sequence == SEQUENCE
        self.sent.append((peer.rank, message))

    def comes(self, rank: int) -> None:
        self.intake.on_fragment(self.peers[rank], envelope(FRAGMENT))


def test_worker_that_joins_is_told_the_newest_version() -> None:
    stream = Stream()
    assert [(rank, message.version) for rank, message in stream.sent] == [(0, 3), (1, 3)]  # type: ignore[attr-defined]
    assert all(stream.intake.has(peer) for peer in stream.peers)


def test_workers_on_the_learners_machine_yield_unless_they_are_in_its_own_process() -> None:
    def told_to_yield(host: str, room: int) -> bool:
        stream = Stream(room)
        peer = stream.peers[0]
        peer.hello = msgspec.structs.replace(HELLO, host=host)
        stream.intake.join(peer, 3)
        command = stream.sent[-1][1]
        assert isinstance(command, m.StreamCommand)
        return command.yields

    assert told_to_yield(socket.gethostname(), room=2)
    assert not told_to_yield("elsewhere", room=2)
    assert not told_to_yield(socket.gethostname(), room=0)


def test_fragments_are_taken_in_the_order_of_arrival_and_make_room_again() -> None:
    stream = Stream()
    for rank in (1, 0, 1):
        stream.comes(rank)
    assert [peer.room for peer in stream.peers] == [1, 0]
    del stream.sent[:]
    assert [stream.intake.take().peer.rank for _ in range(3)] == [1, 0, 1]
    assert stream.sent == [(1, m.Room(fragments=1)), (0, m.Room(fragments=1)), (1, m.Room(fragments=1))]
    assert [peer.room for peer in stream.peers] == [2, 2]


@pytest.mark.parametrize(("workers", "missing", "woken_at"), [(2, 1, 1), (2, 99, 1), (80, 99, 5), (80, 3, 3)])
def test_learner_of_many_workers_is_woken_for_several_fragments(
    workers: int, missing: int, woken_at: int
) -> None:
    stream = Stream(workers=workers)
    stream.intake.wait_for(missing)
    due = []
    for rank in range(woken_at):
        stream.comes(rank % workers)
        due.append(stream.intake.is_due)
    assert due == [False] * (woken_at - 1) + [True]


def test_learner_is_woken_for_a_worker_that_has_no_room_left() -> None:
    stream = Stream(room=1, workers=80)
    stream.intake.wait_for(99)
    stream.comes(3)
    assert stream.intake.is_due


def test_workers_that_are_away_are_not_waited_for() -> None:
    stream = Stream(workers=80)
    for peer in stream.peers[16:]:
        peer.enter(State.AWAY)
    stream.intake.wait_for(99)
    stream.comes(3)
    assert stream.intake.is_due


def test_fragment_for_which_there_was_no_room_is_late() -> None:
    stream = Stream(room=1)
    stream.comes(0)
    stream.comes(0)
    assert len(stream.intake.arrived) == 1
    assert stream.peers[0].late_fragments == 1


def test_what_nobody_took_is_late_and_so_is_what_comes_after_the_end() -> None:
    stream = Stream()
    stream.comes(0)
    stream.comes(1)
    stream.intake.stop()
    stream.comes(1)
    assert [peer.late_fragments for peer in stream.peers] == [1, 2]
    assert stream.sent[-2:] == [(0, m.StopStream()), (1, m.StopStream())]


def test_fragment_of_an_incarnation_that_is_gone_makes_no_room_for_the_next() -> None:
    stream = Stream()
    stream.comes(0)
    stream.peers[0].incarnation = 1
    del stream.sent[:]
    assert stream.intake.take().incarnation == 0
    assert stream.sent == []


def test_without_room_a_worker_makes_one_fragment_when_it_is_wanted() -> None:
    stream = Stream(room=0)
    stream.intake.allow_one()
    stream.intake.allow_one()
    assert stream.sent[2:] == [(0, m.Room(fragments=1))]
    stream.comes(0)
    stream.intake.take()
    assert stream.sent[3:] == []


@pytest.mark.parametrize(("room", "lost"), [(0, 0), (1, 1), (2, 1)])
def test_worker_loses_the_fragment_that_it_had_room_for(room: int, lost: int) -> None:
    peer = Stream().peers[0]
    peer.room = room
    peer.give_up_fragment()
    peer.give_up_fragment()
    assert (peer.lost_fragments, peer.room) == (lost, 0)


# --- over the head --------------------------------------------------------------------------------------


def opened(wire: Wire) -> int:
    """The sequence number of a stream that is open in two workers."""
    start(wire)
    assert wire.head is not None
    wire.head.open_stream(COMMAND)
    return next(sequence for _, message, sequence in wire.sent if isinstance(message, m.StreamCommand))


def test_fragments_are_not_held_back_where_no_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "WORKERS_A_WAKE", 1)
    with wired(lease_s=5.0) as wire:
        sequence = opened(wire)
        assert wire.head is not None
        later = threading.Timer(0.05, wire.say, (FRAGMENT, b"w1", sequence))
        later.start()
        began = time.monotonic()
        arrival = wire.head.next_fragment(30.0, missing=2)
        assert time.monotonic() - began < 10.0
        later.join()
        assert arrival is not None
        assert arrival.peer.rank == 1
        assert wire.head.next_fragment(0.0, missing=1) is None


@pytest.mark.parametrize(("missing", "wakes"), [(1, True), (2, False)])
def test_sleeping_learner_is_woken_once_enough_fragments_came(
    monkeypatch: pytest.MonkeyPatch, missing: int, wakes: bool
) -> None:
    monkeypatch.setattr(intake, "WORKERS_A_WAKE", 1)
    with wired(lease_s=5.0) as wire:
        sequence = opened(wire)
        assert wire.head is not None
        assert wire.head.next_fragment(0.01, missing=missing) is None
        wakers: list[threading.Thread] = []  # the one that looks after the head is another
        monkeypatch.setattr(
            wire.head._condition, "notify_all", lambda: wakers.append(threading.current_thread())
        )
        wire.say(FRAGMENT, b"w1", sequence)
        assert (threading.current_thread() in wakers) == wakes


def test_worker_that_comes_back_joins_the_stream_without_the_learner() -> None:
    with wired(lease_s=5.0) as wire:
        opened(wire)
        wire.answers[m.ResetCommand] = lambda _: m.ResetReply(infos=[])
        wire.processes.gone[1] = Ended(1, None)
        come_back(wire, 1, b"again")
        assert wire.sent[-1][0] == b"again"
        assert isinstance(wire.sent[-1][1], m.StreamCommand)
        assert wire.head is not None
        assert wire.head.peers[1].lost_fragments == 1


def test_fragment_of_a_lost_worker_that_comes_after_all_is_counted() -> None:
    with wired(lease_s=5.0) as wire:
        sequence = opened(wire)
        assert wire.head is not None
        wire.processes.gone[1] = Ended(1, None)
        until(lambda: wire.head is not None and wire.head.peers[1].state is not State.READY)
        wire.say(FRAGMENT, b"w1", sequence)
        assert wire.head.peers[1].late_fragments == 1
        assert "hello" in wire.last(m.Refused).reason


def test_fragment_of_a_stream_that_has_ended_is_counted() -> None:
    with wired(lease_s=5.0) as wire:
        sequence = opened(wire)
        assert wire.head is not None
        wire.answers[m.StopStream] = lambda _: m.StreamEnded(abandoned=1)
        ended = wire.head.end_stream()
        assert [reply.peer.rank for reply in ended] == [0, 1]
        wire.say(FRAGMENT, b"w1", sequence)
        assert [peer.lost_fragments for peer in wire.head.peers] == [1, 1]
        assert [peer.late_fragments for peer in wire.head.peers] == [0, 1]
        assert wire.head.late_replies == 1
        wire.answers[m.StepCommand] = lambda _: m.Ack()
        assert len(wire.head.call(lambda _: (m.StepCommand(), ()), m.Ack)) == 2


def test_stream_ends_though_a_worker_falls_silent() -> None:
    with wired() as wire:
        opened(wire)
        assert wire.head is not None
        wire.answers[m.StopStream] = lambda peer: m.StreamEnded(abandoned=0) if peer == b"w0" else None
        with beating(wire, b"w0"):
            ended = wire.head.end_stream()
        assert [reply.peer.rank for reply in ended] == [0]
        assert wire.head.peers[1].lost_fragments == 1
