"""What the workers send, taken as it comes: greetings, heartbeats, answers, and requests for weights.

`on_message` runs on the I/O thread and never touches the agent; `keep` runs now and then on a thread of its
own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from clusterenv import sharing
from clusterenv.config import EnvConfig
from clusterenv.errors import ProtocolError
from clusterenv.intake import Intake
from clusterenv.layout import SpaceLayout
from clusterenv.outcomes import Pending
from clusterenv.peers import Peer, Processes, State
from clusterenv.policy import Snapshot
from clusterenv.roster import CATCH_UP, Roster
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

logger = logging.getLogger(__name__)


LOOK_S = 0.05
"""Seconds between two looks at what messages say, while an answer comes through shared memory."""

PEERS_LOGGED = 1024
"""Peers that are remembered, so that what each does wrong is logged once."""


QUIET = (m.Heartbeat, m.PullRequest, m.Used)
"""What no caller waits for: thousands of workers would wake it all the time."""

REBUILDS_LOGGED = 1024
"""Environments of one worker that were built anew, with a line in the log for each."""


class Link(Protocol):
    """What carries messages to the workers."""

    def send(
        self, peer: bytes, message: m.Message, frames: Sequence[Any], *, incarnation: int, sequence: int
    ) -> int:
        """Queue a message and return its size in bytes."""


class Switchboard:
    """Hears all workers, answers what needs no thought, and keeps what a caller waits for."""

    def __init__(
        self, welcomes: Sequence[tuple[m.Welcome, list[bytes]]], config: EnvConfig, digests: tuple[str, str]
    ) -> None:
        """Expect one worker for each Welcome; `digests` of its spaces (observation, action) must agree."""
        self._config = config
        self._link: Link | None = None
        self._condition = threading.Condition()
        peers = [Peer(w.rank, w.first_env, w.num_envs, w, blobs) for w, blobs in welcomes]
        self._roster = Roster(peers, config, digests, self._condition, self._post)
        self._snapshot: Snapshot | None = None
        self._intake: Intake | None = None
        self.layouts: tuple[SpaceLayout, SpaceLayout] | None = None
        """Of one environment's spaces (observation, action), for steps through shared memory."""
        self.peers = peers
        self._logged: set[bytes] = set()
        self.late_replies = 0
        self.refused_peers = 0
        self.weight_bytes_sent = 0
        self.check_bytes_sent = 0
        self.checks_sent = 0
        self.check_s = 0.0

    def attach(self, link: Link, processes: Processes | None) -> None:
        """Send through `link` from now on; `processes` are the workers', as their launcher sees them."""
        self._link = link
        self._roster.processes = processes

    @property
    def waiting(self) -> Mapping[int, str]:
        """The workers, by rank, that wait in a queue, and why."""
        return self._roster.waiting

    @property
    def published_version(self) -> int:
        """The newest version of the policy; 0 before the first."""
        snapshot = self._snapshot
        return 0 if snapshot is None else snapshot.version

    def publish(self, snapshot: Snapshot) -> None:
        """Answer pulls with `snapshot` from now on."""
        with self._condition:
            self._snapshot = snapshot

    def keep(self) -> None:
        """Notice lost workers and start replacements that are due."""
        self._roster.keep()

    # --- answers ----------------------------------------------------------------------------------------

    def _is_answered(self, pending: Pending[Any]) -> bool:
        """Whether each worker has answered, failed, or been lost since (it may be back already)."""
        while pending.unanswered:
            peer = pending.unanswered[-1]
            waits = peer.reply is None and peer.failure is None and peer.state is State.READY
            if waits and peer.expected == pending.sequence and not self._take_shared(peer):
                return False
            pending.unanswered.pop()
        return True

    def _take_shared(self, peer: Peer) -> bool:
        """Whether the answer of a worker has come through memory, or the worker is lost with it."""
        if not sharing.is_asked(peer) or peer.lane is None or peer.lane.any_busy:
            return False
        try:
            peer.reply = sharing.take(peer)
        except ProtocolError as error:
            self.refused_peers += 1
            self._roster.lose(peer, f"gave an answer that cannot be read: {error}", reason="malformed")
            return True
        if peer.reply is None:
            self._post(peer, m.FetchStepCommand(), (), peer.expected)
        return peer.reply is not None

    def _pause(self, pendings: Sequence[Pending[Any]], timeout_s: float) -> None:
        """Wait for news of the workers, whichever way they come; the lock is free meanwhile."""
        shared = [p.unanswered[-1] for p in pendings if p.unanswered and sharing.is_asked(p.unanswered[-1])]
        lane = shared[0].lane if shared else None
        if lane is None:
            self._condition.wait(timeout_s)
            return
        self._condition.release()
        try:
            lane.wait(min(LOOK_S, timeout_s))
        finally:
            self._condition.acquire()

    # --- on the I/O thread ------------------------------------------------------------------------------

    def on_message(self, envelope: Envelope) -> None:
        """Take one message of a worker."""
        with self._condition:
            message = envelope.message
            peer = self._roster.by_address.get(envelope.peer)
            if isinstance(message, m.Hello):
                self._on_hello(envelope, message)
            elif peer is None:
                if isinstance(message, m.FragmentReply) and envelope.peer in self._roster.former:
                    self._roster.former[envelope.peer].late_fragments += 1
                self._refuse(envelope, "say hello first")
            else:
                peer.heard_at = time.monotonic()
                self._on_message_of(peer, envelope)
            if not (isinstance(message, QUIET) or self._can_wait(message)):
                self._condition.notify_all()

    def _can_wait(self, message: m.Message) -> bool:
        """Whether a caller needs more fragments than have come, and sleeps until a few more have."""
        return isinstance(message, m.FragmentReply) and self._intake is not None and not self._intake.is_due

    def _on_hello(self, envelope: Envelope, hello: m.Hello) -> None:
        try:
            refusal = self._roster.on_hello(envelope, hello)
        except Exception as error:  # noqa: BLE001 - a Welcome that cannot be sent is the launch's failure
            what = f"cannot be told what to run: {error}"
            self.peers[hello.rank].failure = m.Failure(kind="setup", message=what)
            self._roster.may_have_failed = True
        else:
            if refusal is not None:
                self._refuse(envelope, refusal)

    def _on_message_of(self, peer: Peer, envelope: Envelope) -> None:
        message = envelope.message
        if envelope.sequence == peer.posted and not self._is_one_of_many(peer, envelope):
            peer.posted = 0
        if isinstance(message, m.ResetReply | m.StepReply | m.ActReply | m.FragmentReply):
            self._on_rebuilt(peer, message.rebuilt)
        if isinstance(message, m.Heartbeat):
            self._on_heartbeat(peer, message)
        elif isinstance(message, m.Used):
            peer.used = message
        elif isinstance(message, m.PullRequest):
            self._on_pull(peer)
        elif isinstance(message, m.Ready):
            if self.layouts is not None:
                sharing.join(peer, message.shared, len(message.pids), self.layouts)
            self._roster.on_ready(peer, message)
        elif isinstance(message, m.Goodbye):
            self._roster.on_goodbye(peer, message)
        elif envelope.sequence >= CATCH_UP:
            if envelope.sequence == peer.catching_up:
                self._roster.on_catch_up(peer, envelope)
                if peer.state is State.READY and self._intake is not None and not self._intake.closed:
                    self._intake.join(peer, self.published_version)
        elif isinstance(message, m.Failure) and envelope.sequence in (0, peer.expected):
            self._roster.fail(peer, message)
            peer.give_up_fragment()
        elif isinstance(message, m.FragmentReply) and self._streams(peer, envelope):
            assert self._intake is not None
            self._intake.on_fragment(peer, envelope)
        elif envelope.sequence != peer.expected or not peer.expected or peer.reply is not None:
            self.late_replies += 1  # its call ended without it
            peer.late_fragments += isinstance(message, m.FragmentReply)
        else:
            peer.reply = envelope
            if isinstance(message, m.ActReply | m.FragmentReply):
                peer.policy = message.policy

    def _on_rebuilt(self, peer: Peer, rebuilt: Sequence[m.Rebuilt]) -> None:
        for each in rebuilt:
            peer.env_rebuilds += 1
            if peer.env_rebuilds <= REBUILDS_LOGGED:
                where = f"worker {peer.rank} on {peer.host}"
                logger.warning("%s has built environment %d anew: %s", where, each.env_id, each.error)

    def _is_one_of_many(self, peer: Peer, envelope: Envelope) -> bool:
        """Whether the same command will be answered again, or its answer is not this."""
        message = envelope.message
        if isinstance(message, m.FragmentReply):
            return self._streams(peer, envelope)
        return isinstance(message, m.PullRequest | m.Heartbeat | m.Used)

    def _streams(self, peer: Peer, envelope: Envelope) -> bool:
        intake = self._intake
        return intake is not None and envelope.sequence == intake.sequence == peer.expected

    def _refuse(self, envelope: Envelope, reason: str) -> None:
        assert self._link is not None
        self.refused_peers += 1
        if self._first_time(envelope.peer):
            logger.warning("refused a message: %s", reason)
        refusal = m.Refused(reason=reason)
        self._link.send(envelope.peer, refusal, (), incarnation=envelope.incarnation, sequence=0)

    def _first_time(self, address: bytes) -> bool:
        """Whether nothing was logged of `address` yet; true for so many addresses only."""
        if address in self._logged or len(self._logged) >= PEERS_LOGGED:
            return False
        self._logged.add(address)
        return True

    def _on_heartbeat(self, peer: Peer, beat: m.Heartbeat) -> None:
        now = time.monotonic()
        since, steps = peer.rate_mark
        if now - since >= 1.0:
            peer.rate = max(0, beat.steps - steps) / (now - since) if since else 0.0
            peer.rate_mark = (now, beat.steps)
        peer.steps = beat.steps
        peer.working_on = beat.working_on
        self._post(peer, m.HeartbeatAck(), (), 0)

    def _on_pull(self, peer: Peer) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            if self._first_time(peer.address or b""):
                logger.warning("worker %d asked for weights before any were published", peer.rank)
            return
        self.weight_bytes_sent += snapshot.nbytes
        peer.served_version = snapshot.version
        self._post(peer, m.WeightsReply(version=snapshot.version), (snapshot.payload,), 0)

    def _post(self, peer: Peer, message: m.Message, frames: Sequence[Any], sequence: int) -> None:
        peer.posted = sequence or peer.posted
        if self._link is not None and peer.address is not None:
            self._link.send(peer.address, message, frames, incarnation=peer.incarnation, sequence=sequence)
