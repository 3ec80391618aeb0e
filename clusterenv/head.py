"""The learner's side of the wire: who the workers are, one command at a time to all, weights on request.

`on_message` runs on the I/O thread and never touches the agent; everything else runs on the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from clusterenv.config import EnvConfig
from clusterenv.errors import (
    ClusterEnvError,
    SetupTimeout,
    WorkerLost,
)
from clusterenv.peers import FATAL, Ended, Peer, Processes, failed, how_it_ended, listed, log_tails, lost
from clusterenv.policy import Snapshot
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=m.Message)

POLL_S = 0.2
"""Seconds between two looks at processes and leases while a call waits."""


class Link(Protocol):
    """What carries messages to the workers."""

    def send(
        self, peer: bytes, message: m.Message, frames: Sequence[Any], *, incarnation: int, sequence: int
    ) -> int:
        """Queue a message and return its size in bytes."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[M]):
    """What one worker answered."""

    peer: Peer
    message: M
    frames: list[memoryview]


class Head:
    """Talks to all workers in step: a command to each, a reply from each, or one typed error."""

    def __init__(
        self, welcomes: Sequence[tuple[m.Welcome, list[bytes]]], config: EnvConfig, digests: tuple[str, str]
    ) -> None:
        """Expect one worker for each Welcome; `digests` of its spaces (observation, action) must agree."""
        self.peers = [Peer(w.rank, w.first_env, w.num_envs, w, blobs, policy=None) for w, blobs in welcomes]
        self._config = config
        self._digests = digests
        self._link: Link | None = None
        self._processes: Processes | None = None
        self._condition = threading.Condition()
        self._by_address: dict[bytes, Peer] = {}
        self._sequence = 0
        self._snapshot: Snapshot | None = None
        self.late_replies = 0
        self.refused_peers = 0
        self.weight_bytes_sent = 0
        self.check_bytes_sent = 0

    def attach(self, link: Link, processes: Processes | None) -> None:
        """Send through `link` from now on; ask `processes` how a silent worker ended."""
        self._link = link
        self._processes = processes

    # --- on the I/O thread ------------------------------------------------------------------------------

    def on_message(self, envelope: Envelope) -> None:
        """Take one message of a worker."""
        with self._condition:
            if isinstance(envelope.message, m.Hello):
                self._on_hello(envelope, envelope.message)
                return
            peer = self._by_address.get(envelope.peer)
            if peer is None:
                self._refuse(envelope, "say hello first")
                return
            peer.heard_at = time.monotonic()
            message = envelope.message
            if isinstance(message, m.Heartbeat):
                self._on_heartbeat(peer, message)
            elif isinstance(message, m.PullRequest):
                self._on_pull(peer)
            elif isinstance(message, m.Ready):
                self._on_ready(peer, message)
            elif isinstance(message, m.Goodbye):
                peer.state = "gone"
                peer.last_error = peer.last_error or message.reason
                self._condition.notify_all()
            else:
                self._on_reply(peer, envelope)

    def _on_hello(self, envelope: Envelope, hello: m.Hello) -> None:
        if hello.rank >= len(self.peers):
            self._refuse(envelope, f"rank {hello.rank} is not of this run of {len(self.peers)} workers")
            return
        peer = self.peers[hello.rank]
        if peer.address is not None:
            self._refuse(
                envelope, f"rank {hello.rank} is already here from {peer.host} (pid {self._pid(peer)})"
            )
            return
        peer.address = envelope.peer
        peer.incarnation = envelope.incarnation
        peer.hello = hello
        peer.state = "building"
        peer.heard_at = time.monotonic()
        self._by_address[envelope.peer] = peer
        self._post(peer, peer.welcome, peer.blobs, 0)
        self._condition.notify_all()

    @staticmethod
    def _pid(peer: Peer) -> int | None:
        return None if peer.hello is None else peer.hello.pid

    def _refuse(self, envelope: Envelope, reason: str) -> None:
        assert self._link is not None
        self.refused_peers += 1
        logger.warning("refused a message: %s", reason)
        refusal = m.Refused(reason=reason)
        self._link.send(envelope.peer, refusal, (), incarnation=envelope.incarnation, sequence=0)

    def _on_ready(self, peer: Peer, ready: m.Ready) -> None:
        if (ready.obs_digest, ready.action_digest) == self._digests:
            peer.state = "ready"
            peer.env_pids = list(ready.pids)
        else:
            peer.failure = m.Failure(
                kind="spaces",
                message="its environments have other spaces than the one built on the head; "
                "all environments must have equal spaces, and head and workers the same versions",
            )
        self._condition.notify_all()

    def _on_heartbeat(self, peer: Peer, beat: m.Heartbeat) -> None:
        now = time.monotonic()
        since, steps = peer.rate_mark
        if now - since >= 1.0:
            peer.rate = (beat.steps - steps) / (now - since) if since else 0.0
            peer.rate_mark = (now, beat.steps)
        peer.steps = beat.steps
        peer.working_on = beat.working_on
        self._post(peer, m.HeartbeatAck(), (), 0)

    def _on_pull(self, peer: Peer) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            logger.warning("worker %d asked for weights before any were published", peer.rank)
            return
        self.weight_bytes_sent += snapshot.nbytes
        self._post(peer, m.WeightsReply(version=snapshot.version), (snapshot.payload,), 0)

    def _on_reply(self, peer: Peer, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, m.Failure):
            if envelope.sequence not in (0, peer.expected):
                self.late_replies += 1
                return
            peer.failure = message
            peer.last_error = message.message
        elif envelope.sequence != peer.expected or peer.reply is not None:
            self.late_replies += 1  # its call ended without it
            return
        else:
            peer.reply = envelope
            if isinstance(message, m.ActReply | m.FragmentReply):
                peer.policy = message.policy
        self._condition.notify_all()

    def _post(self, peer: Peer, message: m.Message, frames: Sequence[Any], sequence: int) -> None:
        if self._link is not None and peer.address is not None:
            self._link.send(peer.address, message, frames, incarnation=peer.incarnation, sequence=sequence)

    # --- on the caller's thread -------------------------------------------------------------------------

    def publish(self, snapshot: Snapshot) -> None:
        """Answer pulls with `snapshot` from now on."""
        with self._condition:
            self._snapshot = snapshot

    def wait_ready(self) -> None:
        """Return when every worker has built its environments.

        Raises:
            SetupTimeout: if one has not within `connect_timeout_s` plus `setup_timeout_s`; names it.
            EnvError: if an environment raised while it was built.
            WorkerLost: if a worker's process ended.
        """
        connect_by = time.monotonic() + self._config.connect_timeout_s
        ready_by = connect_by + self._config.setup_timeout_s

        def done() -> bool:
            now = time.monotonic()
            absent = [peer.rank for peer in self.peers if peer.state == "starting"]
            if absent and now > connect_by:
                raise SetupTimeout(
                    f"worker {listed(absent)} did not reach the head within connect_timeout_s = "
                    f"{self._config.connect_timeout_s:g} s{log_tails(self._processes, absent)}"
                )
            building = [peer.rank for peer in self.peers if peer.state == "building"]
            if building and now > ready_by:
                raise SetupTimeout(
                    f"worker {listed(building)} did not build its environments within setup_timeout_s = "
                    f"{self._config.setup_timeout_s:g} s{log_tails(self._processes, building)}"
                )
            return all(peer.state == "ready" for peer in self.peers)

        self._wait(done, leases=False)

    def call(
        self, command: Callable[[Peer], tuple[m.Message, Sequence[Any]]], expected: type[M]
    ) -> list[Reply[M]]:
        """Send each worker its command and return the replies by rank.

        Raises:
            EnvError: if an environment raised, AgentError: if the agent did; the workers live on.
            WorkerLost: if a worker ended, fell silent for `lease_s`, or an environment hung.
        """
        with self._condition:
            self._sequence += 1
            sequence = self._sequence
            now = time.monotonic()
            for peer in self.peers:
                if peer.state != "ready":
                    raise self._lost(peer, f"is {peer.state}: {peer.last_error}")
                message, frames = command(peer)
                peer.expected, peer.reply, peer.failure, peer.sent_at = sequence, None, None, now
                self._post(peer, message, frames, sequence)
        try:
            self._wait(lambda: all(peer.reply or peer.failure for peer in self.peers), leases=True)
        finally:
            for peer in self.peers:
                peer.expected = 0  # what comes now is late
        replies = []
        for peer in self.peers:
            envelope, peer.reply = peer.reply, None
            if envelope is None or not isinstance(envelope.message, expected):
                seen = "nothing" if envelope is None else type(envelope.message).__name__
                raise self._lost(peer, f"answered with {seen}; expected {expected.__name__}")
            replies.append(Reply(peer, envelope.message, envelope.frames))
        return replies

    def _wait(self, done: Callable[[], bool], *, leases: bool) -> None:
        """Wait until `done()`, or raise the first failure; while workers start they have no leases."""
        look_at = time.monotonic() + POLL_S
        with self._condition:
            while not done():
                self._raise_failures(at_once=not leases)
                self._condition.wait(POLL_S)
                if time.monotonic() >= look_at:
                    self._look(leases)
                    look_at = time.monotonic() + POLL_S
            self._raise_failures(at_once=True)

    def _raise_failures(self, *, at_once: bool) -> None:
        """Raise a failure: one that ends its worker at once, another when all have answered or `at_once`."""
        failures = [peer for peer in self.peers if peer.failure is not None]
        fatal = [peer for peer in failures if peer.failure is not None and peer.failure.kind in FATAL]
        if fatal:
            raise self._failed(fatal[0])
        if failures and (at_once or all(peer.reply or peer.failure for peer in self.peers)):
            raise self._failed(failures[0])
        gone = [peer for peer in self.peers if peer.state == "gone"]
        if gone:
            raise self._lost(gone[0], f"left: {gone[0].last_error}")

    def _look(self, leases: bool) -> None:
        """Raise if a process has ended, a lease has run out, or a worker never took its command."""
        if self._processes is not None:
            for rank, ended in self._processes.ended().items():
                peer = self.peers[rank]
                if peer.reply is None and peer.failure is None:
                    peer.state, peer.last_error = "lost", how_it_ended(ended)
                    raise self._lost(peer, how_it_ended(ended), ended)
        lease_s = self._config.lease_s
        now = time.monotonic()
        for peer in self.peers if leases else ():
            if peer.reply is not None or peer.failure is not None:
                continue
            silent_s = now - peer.heard_at
            idle_s = now - peer.sent_at if peer.working_on != peer.expected else 0.0
            if silent_s > lease_s:
                what = f"sent nothing for {silent_s:.1f} s (limit lease_s = {lease_s:g} s)"
            elif peer.heard_at > peer.sent_at and idle_s > 2 * lease_s:
                what = f"lives but has not taken its command for {idle_s:.1f} s"
            else:
                continue
            peer.state, peer.last_error = "lost", what
            raise self._lost(peer, what)

    def say_goodbye(self, reason: str, timeout_s: float) -> None:
        """Ask every worker to end, and wait a while for their goodbyes; never raises."""
        end = time.monotonic() + timeout_s
        with self._condition:
            for peer in self.peers:
                self._post(peer, m.CloseCommand(reason=reason), (), 0)
            waiting = [peer for peer in self.peers if peer.state == "ready"]
            while any(peer.state == "ready" for peer in waiting) and time.monotonic() < end:
                self._condition.wait(max(0.0, min(POLL_S, end - time.monotonic())))

    def _failed(self, peer: Peer) -> ClusterEnvError:
        assert peer.failure is not None
        if peer.failure.kind in FATAL:
            peer.state = "lost"
        return failed(peer, peer.failure, self._processes)

    def _lost(self, peer: Peer, what: str, ended: Ended | None = None) -> WorkerLost:
        return lost(peer, what, self._processes, ended)
