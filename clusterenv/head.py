"""The learner's side of the wire: one command at a time to all workers, and their answers.

All of it runs on the caller's thread; what the workers send is taken in by the `Switchboard`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

from clusterenv import sharing
from clusterenv.config import EnvConfig
from clusterenv.errors import LaunchError, ProtocolError, StateError, UseAfterClose
from clusterenv.intake import Arrival, Intake
from clusterenv.outcomes import Absent, Fresh, Outcome, Pending, Reply, Returned
from clusterenv.peers import Peer, State, failed
from clusterenv.switchboard import Switchboard
from clusterenv.transport import messages as m

M = TypeVar("M", bound=m.Message)
T = TypeVar("T")
CommandFor = Callable[[Peer], tuple[m.Message, Sequence[Any]]]
"""What to send to a worker: message and frames."""

MOVES = (m.ResetReply, m.StepReply, m.ActReply, m.FragmentReply)
"""Answers to commands that move environments."""

POLL_S = 0.2
"""Seconds between two looks at processes and leases."""


class Head(Switchboard):
    """Talks to all workers in step: a command to each, an answer from each, or one typed error."""

    def __init__(
        self, welcomes: Sequence[tuple[m.Welcome, list[bytes]]], config: EnvConfig, digests: tuple[str, str]
    ) -> None:
        """Expect one worker for each Welcome; `digests` of its spaces (observation, action) must agree."""
        super().__init__(welcomes, config, digests)
        self._calling = threading.Lock()
        self._pid = os.getpid()
        self._sequence = 0
        self.unseen: set[int] = set()
        """Ranks of workers that were told to move environments, until their answers are kept."""

    def seeded(self, seed: int) -> None:
        """Environments that are built again get seeds derived from `seed`."""
        with self._condition:
            self._roster.seed = seed

    def introduce(self, agent: m.AgentMessage, blob: bytes) -> None:
        """Every worker acts with this agent from now on, those that come back too."""
        with self._condition:
            self._roster.agent = (agent, blob)
        self.call(lambda _: (agent, (blob,)), m.Ack, fresh=Fresh.KEEP)
        with self._condition:
            for peer in self.peers:
                peer.policy = None

    def wait_ready(self, least: int | None = None, queue_timeout_s: float | None = None) -> None:
        """Return when every worker has built its environments.

        Args:
            least: do not wait for more workers than this while the others are in a queue.
            queue_timeout_s: seconds that workers may wait in a queue; none: without bound.

        Raises:
            SetupTimeout: if one has not within `connect_timeout_s` plus `setup_timeout_s`, counted from the
                end of its wait in a queue, or if that takes too long; names it.
            EnvError: if an environment raised while it was built.
            WorkerLost: if a worker's process ended.
        """
        with self._condition:
            look_at = begin = time.monotonic()
            while not self._roster.are_ready(least):
                now = time.monotonic()
                if self._roster.may_have_failed or now >= look_at:  # with thousands, not at every message
                    self._roster.raise_start_failures(now - begin, queue_timeout_s)
                    look_at = now + POLL_S
                self._condition.wait(POLL_S)
            self._roster.begun = True

    def wait_present(self) -> None:
        """Return when no worker is on its way; those in a queue or lost for good stay away.

        Raises:
            WorkerLost: as in `call`.
        """
        on_the_way = (State.STARTING, State.BUILDING, State.RETURNING, State.AWAY)
        with self._condition:
            while any(p.state in on_the_way and p.rank not in self._roster.waiting for p in self.peers):
                self._raise_losses()
                self._condition.wait(POLL_S)

    def call(self, command: CommandFor, expected: type[M], *, fresh: Fresh = Fresh.SKIP) -> list[Outcome[M]]:
        """Send each worker its command and return, by rank, what became of it.

        Args:
            command: gives what to send to a worker.
            expected: the kind of answer.
            fresh: what to do with a worker that has come back.

        Raises:
            EnvError: if an environment raised, AgentError: if the agent did; the workers live on.
            WorkerLost: if a worker is lost and `on_worker_loss` is "raise", its restarts are used up, or
                every worker is away and none comes back within `connect_timeout_s`.
        """
        with self._alone():
            return self._finish(self._begin(command, expected, fresh, self.peers))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread makes a call meanwhile, and no other process."""
        if not self._calling.acquire(blocking=False):
            raise StateError("another call is in progress; one ClusterEnv serves one thread at a time")
        try:
            self._refuse_fork()
            yield
        finally:
            self._calling.release()

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("this process was forked from the one that launched the workers; launch its own")

    def begin(
        self,
        command: CommandFor,
        expected: type[M],
        *,
        fresh: Fresh = Fresh.SKIP,
        peers: Sequence[Peer] | None = None,
    ) -> Pending[M]:
        """Send each worker (or those of `peers`) its command as `call` does, without waiting for answers.

        None of them may have a command in work.

        Raises:
            WorkerLost: as in `call`.
        """
        with self._alone():
            return self._begin(command, expected, fresh, self.peers if peers is None else peers)

    def _begin(
        self, command: CommandFor, expected: type[M], fresh: Fresh, peers: Sequence[Peer]
    ) -> Pending[M]:
        with self._condition:
            self._wait_for_one()
            self._sequence += 1
            pending = Pending(expected, fresh, self._sequence)
            for peer in peers:
                outcome = self._without_asking(peer, fresh)
                if outcome is None:
                    self._ask(peer, *command(peer), may_share=len(peers) == len(self.peers))
                    pending.asked.append(peer)
                    pending.unanswered.append(peer)
                else:
                    pending.outcomes[peer.rank] = outcome
            if expected in MOVES:
                self.unseen |= {peer.rank for peer in pending.asked}
        return pending

    def wait(self, pendings: Sequence[Pending[Any]], timeout_s: float | None = None) -> list[Pending[Any]]:
        """Those whose answers are all there, as soon as there is one; none after `timeout_s`.

        Raises:
            WorkerLost: as in `call`.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._condition:
            while True:
                self._raise_losses()
                done = [pending for pending in pendings if self._is_answered(pending)]
                left = POLL_S if end is None else end - time.monotonic()
                if done or left <= 0:
                    return done
                self._pause(pendings, min(POLL_S, left))

    def finish(self, pending: Pending[M]) -> list[Outcome[M]]:
        """Wait for the answers to a command that was begun, and return as `call` does.

        Raises:
            EnvError, AgentError, WorkerLost: as in `call`.
        """
        with self._alone():
            return self._finish(pending)

    def _finish(self, pending: Pending[M]) -> list[Outcome[M]]:
        with self._condition:
            try:
                while not self._is_answered(pending):
                    self._raise_losses()
                    self._pause([pending], POLL_S)
                self._raise_losses()
                self._raise_failures(pending.asked)
                for peer in pending.asked:
                    pending.outcomes[peer.rank] = self._outcome(peer, pending.expected, pending.fresh)
            finally:
                for peer in pending.asked:
                    peer.expected, peer.reply, peer.failure = 0, None, None  # what comes now is late
        return [pending.outcomes[rank] for rank in sorted(pending.outcomes)]

    def _without_asking(self, peer: Peer, fresh: Fresh) -> Absent | Returned | None:
        """What is known of a worker before it is asked anything; None: ask it."""
        if fresh is Fresh.SHOW and not peer.loss_told:
            return self._absent(peer, fresh)
        if peer.state is not State.READY:
            return self._absent(peer, fresh)
        if fresh is Fresh.WAIT and not (peer.loss_told and peer.fresh is None):
            return self._absent(peer, fresh)
        if fresh is Fresh.KEEP:
            return None
        back, peer.fresh = peer.fresh, None
        if back is not None and fresh is Fresh.SHOW:
            assert isinstance(back.message, m.ResetReply)
            return Returned(peer, back.message, back.frames)
        return None

    @staticmethod
    def _absent(peer: Peer, fresh: Fresh) -> Absent:
        just_lost = not peer.loss_told
        if fresh not in (Fresh.KEEP, Fresh.WAIT):
            peer.loss_told = True
        return Absent(peer, just_lost)

    def _ask(self, peer: Peer, message: m.Message, frames: Sequence[Any], *, may_share: bool) -> None:
        peer.expected, peer.reply, peer.failure = self._sequence, None, None
        peer.sent_at = time.monotonic()
        if not (may_share and sharing.ask(peer, message, frames, self._sequence)):
            self._post(peer, message, frames, self._sequence)

    def _outcome(self, peer: Peer, expected: type[M], fresh: Fresh) -> Outcome[M]:
        reply = peer.reply
        if reply is None:
            return self._absent(peer, fresh)
        if not isinstance(reply.message, expected):
            what = f"answered with {type(reply.message).__name__}; expected {expected.__name__}"
            self._roster.lose(peer, what)
            self._raise_losses()
            return self._absent(peer, fresh)
        return Reply(peer, reply.message, reply.frames)

    def read(self, peer: Peer, read: Callable[[], T], fresh: Fresh) -> T | Absent:
        """What `read` makes of a worker's answer to a call with `fresh`; one that cannot be read loses it.

        Raises:
            WorkerLost: as in `call`.
        """
        try:
            return read()
        except ProtocolError as error:
            with self._condition:
                self.refused_peers += 1
                what = f"sent an answer that cannot be read: {error}"
                self._roster.lose(peer, what, reason="malformed")
                self._raise_losses()
                return self._absent(peer, fresh)

    def _wait_for_one(self) -> None:
        """Wait until a worker is there."""
        end = time.monotonic() + self._config.connect_timeout_s
        while True:
            self._raise_losses()
            if any(peer.state is State.READY for peer in self.peers):
                return
            if time.monotonic() > end:
                self._raise_absence()
            self._condition.wait(POLL_S)

    def _raise_absence(self) -> None:
        """Raise for one of the workers, all of which are away; they may also be waiting in a queue."""
        losses = [peer.loss for peer in self.peers if peer.loss is not None]
        if losses:
            raise losses[0]

    def _raise_losses(self) -> None:
        """Raise for a worker that is lost for good, unless the run goes on without it."""
        if self._roster.closing:
            raise UseAfterClose("these environments were closed while a call was in progress")
        gone = self._roster.gone
        if gone and (self._config.on_worker_loss != "drop" or len(gone) == len(self.peers)):
            first = min(gone, key=lambda peer: peer.rank)
            if first.loss is None:
                raise LaunchError(f"worker {first.rank} is gone: {first.last_error}")
            raise first.loss

    def _raise_failures(self, asked: Sequence[Peer]) -> None:
        for peer in asked:
            if peer.failure is not None:
                raise failed(peer, peer.failure, self._roster.processes)

    # --- streams ----------------------------------------------------------------------------------------

    def open_stream(self, command: m.StreamCommand) -> None:
        """Workers make fragments from now on; those that come back join them.

        Raises:
            WorkerLost: as in `call`.
        """
        with self._alone(), self._condition:
            self._wait_for_one()
            self._sequence += 1
            self._intake = Intake(self._sequence, command, self.peers, self._post)
            for peer in self.peers:
                self.unseen.add(peer.rank)
                peer.loss_told = True
                if peer.state is State.READY:
                    self._intake.join(peer, self.published_version)

    def newest_fragments(self) -> dict[int, Arrival]:
        """The last one that has come of each worker, by rank."""
        with self._condition:
            return {} if self._intake is None else dict(self._intake.newest)

    def announce(self, news: CommandFor, ranks: Container[int] | None = None) -> None:
        """Tell each worker that streams, or those of `ranks`, of the newest version."""
        with self._condition:
            if self._intake is None:
                return
            for peer in self.peers:
                if self._intake.has(peer) and (ranks is None or peer.rank in ranks):
                    self._post(peer, *news(peer), self._intake.sequence)

    def next_fragment(self, timeout_s: float | None, missing: int = 1) -> Arrival | None:
        """The fragment of the open stream that came first; None if there is none within `timeout_s`.

        Of `missing` fragments that are all waited for, some may have come before the first is given out.

        Raises:
            EnvError, AgentError, WorkerLost: as in `call`, at once, whatever has come.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        alone_since = None
        self._refuse_fork()
        with self._condition:
            while True:
                self._raise_losses()
                if self._roster.may_have_failed:
                    self._raise_failures(self.peers)
                    self._roster.may_have_failed = False
                intake = self._intake
                if intake is None:
                    raise StateError("the stream was closed while a batch was waited for")
                intake.allow_one()
                if intake.arrived:
                    return intake.take()
                if any(peer.state is State.READY for peer in self.peers):
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > self._config.connect_timeout_s:
                    self._raise_absence()
                left = POLL_S if end is None else end - time.monotonic()
                if left <= 0:
                    return None
                intake.wait_for(missing)
                self._condition.wait(min(POLL_S, left))

    def end_stream(self) -> list[Reply[m.StreamEnded]]:
        """The stream has ended in all workers: what those say that were there until its end."""
        with self._alone(), self._condition:
            intake = self._intake
            if intake is None:
                return []
            if not self._roster.closing:
                intake.stop()
            while not self._roster.closing and any(intake.has(peer) for peer in self.peers):
                self._condition.wait(POLL_S)
            ended = []
            for peer in self.peers:
                if peer.expected != intake.sequence:
                    continue
                if peer.reply is not None and isinstance(peer.reply.message, m.StreamEnded):
                    peer.lost_fragments += peer.reply.message.abandoned
                    ended.append(Reply(peer, peer.reply.message, peer.reply.frames))
                peer.expected, peer.reply, peer.failure, peer.room = 0, None, None, 0
            self._intake = None
            return ended

    def say_goodbye(self, reason: str, timeout_s: float) -> None:
        """Ask every worker to end, and wait a while for their goodbyes; never raises."""
        end = time.monotonic() + timeout_s
        with self._condition:
            self._roster.closing = True
            present = [peer for peer in self.peers if peer.state is State.READY]
            for peer in self.peers:
                self._post(peer, m.CloseCommand(reason=reason), (), 0)
            while any(p.state is State.READY for p in present) and time.monotonic() < end:
                self._condition.wait(max(0.0, min(POLL_S, end - time.monotonic())))
