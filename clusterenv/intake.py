"""The fragments of an open stream as they arrive: of each worker a bounded number, counted if late."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from clusterenv.peers import Peer, State
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

WORKERS_A_WAKE = 16
"""For so many workers one fragment more may come before the learner, which needs many, is woken."""

Post = Callable[[Peer, m.Message, Sequence[Any], int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A fragment that the learner has not taken yet."""

    peer: Peer
    incarnation: int
    message: m.FragmentReply
    frames: list[memoryview]


class Intake:
    """What the head knows of one stream. Every method is called under the head's lock, on any thread.

    A worker has as many places as the command has room. A fragment takes one, from when it may be begun until
    the learner takes it.
    """

    def __init__(self, sequence: int, command: m.StreamCommand, peers: Sequence[Peer], post: Post) -> None:
        """No worker takes part yet; `command` is what each is sent, but for `version` and `yields`.

        Without room in it, a worker makes a fragment only when `allow` says so.
        """
        self.sequence = sequence
        self.closed = False
        self.arrived: deque[Arrival] = deque()
        self.newest: dict[int, Arrival] = {}
        """By rank: the last fragment of each worker, taken or not."""
        self._wanted = 1
        self._command = command
        self._peers = peers
        self._post = post

    def join(self, peer: Peer, version: int) -> None:
        """A worker that is ready takes part, from its next free moment on, with `version` as the newest."""
        peer.fresh, peer.loss_told = None, True
        peer.expected, peer.reply, peer.failure = self.sequence, None, None
        peer.sent_at = time.monotonic()
        peer.room = self._command.room
        beside_learner = self._command.room > 0 and peer.host == socket.gethostname()
        command = msgspec.structs.replace(self._command, version=version, yields=beside_learner)
        self._post(peer, command, (), self.sequence)

    def has(self, peer: Peer) -> bool:
        """Whether a worker takes part and has neither ended nor failed."""
        waits = peer.reply is None and peer.failure is None
        return peer.state is State.READY and peer.expected == self.sequence and waits

    def on_fragment(self, peer: Peer, envelope: Envelope) -> None:
        """A fragment has come."""
        assert isinstance(envelope.message, m.FragmentReply)
        if self.closed or peer.room <= 0:
            peer.late_fragments += 1
            return
        peer.room -= 1
        peer.policy = envelope.message.policy
        arrival = Arrival(peer, envelope.incarnation, envelope.message, envelope.frames)
        self.arrived.append(arrival)
        self.newest[peer.rank] = arrival

    def wait_for(self, missing: int) -> None:
        """The learner sleeps, has taken what there was, and needs so many more fragments."""
        taking_part = sum(self.has(peer) for peer in self._peers)
        self._wanted = max(1, min(missing, taking_part // WORKERS_A_WAKE))

    @property
    def is_due(self) -> bool:
        """Whether the learner is woken for what has come, perhaps since its sender has to wait."""
        return bool(self.arrived) and (len(self.arrived) >= self._wanted or not self.arrived[-1].peer.room)

    def take(self) -> Arrival:
        """The fragment that came first; its place is free again."""
        arrival = self.arrived.popleft()
        peer = arrival.peer
        if self._command.room and peer.incarnation == arrival.incarnation and self.has(peer):
            self.allow(peer)
        return arrival

    def allow_one(self) -> None:
        """Where workers make fragments only when they are wanted, one is wanted."""
        if self._command.room or self.arrived:
            return
        taking_part = [peer for peer in self._peers if self.has(peer)]
        if taking_part and not any(peer.room for peer in taking_part):
            self.allow(taking_part[0])

    def allow(self, peer: Peer) -> None:
        """A worker may make one more fragment."""
        peer.room += 1
        self._post(peer, m.Room(fragments=1), (), self.sequence)

    def stop(self) -> None:
        """Workers give up what is under way; what comes from now on is late, and so is what nobody took."""
        self.closed = True
        for arrival in self.arrived:
            arrival.peer.late_fragments += 1
        self.arrived.clear()
        self.newest.clear()
        for peer in [peer for peer in self._peers if self.has(peer)]:
            self._post(peer, m.StopStream(), (), self.sequence)
