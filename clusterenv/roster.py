"""Who the workers are: greets those that come, notices those that are lost, and brings replacements back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clusterenv.config import EnvConfig
from clusterenv.errors import LaunchError, SetupTimeout, WorkerLost
from clusterenv.peers import (
    FATAL,
    Ended,
    Peer,
    Processes,
    State,
    failed,
    how_it_ended,
    listed,
    log_tails,
    lost,
    restart_delay_s,
)
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

logger = logging.getLogger(__name__)

Post = Callable[[Peer, m.Message, Sequence[Any], int], None]

MOST_INCARNATIONS = 1 << 31
"""A worker that claims to be of a later one is refused: the next of its rank could not be numbered."""

CATCH_UP = 1 << 40
"""Sequence numbers from here on belong to a worker's return, those below to calls."""


class Roster:
    """The workers by rank and by address. All methods but `keep` are called under `condition`."""

    def __init__(
        self,
        peers: list[Peer],
        config: EnvConfig,
        digests: tuple[str, str],
        condition: threading.Condition,
        post: Post,
    ) -> None:
        """Expect `peers`; `digests` of their spaces (observation, action) must agree."""
        self.peers = peers
        self.by_address: dict[bytes, Peer] = {}
        self.former: dict[bytes, Peer] = {}
        """By address: the workers whose process there is given up."""
        self.gone: list[Peer] = []
        """Those that are lost for good."""
        self.may_have_failed = False
        """Whether a worker may have reported a failure, or been lost, since nobody found any."""
        self.processes: Processes | None = None
        self.begun = False
        """Whether all have been ready once: only then losses are mended."""
        self.closing = False
        self.waiting: Mapping[int, str] = {}
        """The workers, by rank, that wait in a queue, and why."""
        self.agent: tuple[m.AgentMessage, bytes] | None = None
        self.seed = 0
        self._config = config
        self._digests = digests
        self._condition = condition
        self._post = post
        self._catch_up = CATCH_UP

    # --- coming -----------------------------------------------------------------------------------------

    def on_hello(self, envelope: Envelope, hello: m.Hello) -> str | None:
        """Welcome a worker; else the reason why it is refused."""
        if envelope.incarnation >= MOST_INCARNATIONS:
            return f"incarnation {envelope.incarnation} is more than there can be"
        if hello.rank >= len(self.peers):
            return f"rank {hello.rank} is not of this run of {len(self.peers)} workers"
        peer = self.peers[hello.rank]
        newer = envelope.incarnation > peer.incarnation
        if peer.address is not None and newer:
            self.lose(peer, f"was replaced by its incarnation {envelope.incarnation}", reason="replaced")
        if peer.address is not None:
            pid = None if peer.hello is None else peer.hello.pid
            return f"rank {hello.rank} is already here from {peer.host} (pid {pid})"
        if envelope.incarnation < peer.incarnation or peer.state is State.GONE:
            return f"incarnation {envelope.incarnation} of worker {hello.rank} is no longer wanted"
        peer.address, peer.incarnation, peer.hello = envelope.peer, envelope.incarnation, hello
        peer.heard_at = time.monotonic()
        peer.enter(State.BUILDING)
        self.by_address[envelope.peer] = peer
        self._post(peer, peer.welcome, peer.blobs, 0)
        return None

    def on_ready(self, peer: Peer, ready: m.Ready) -> None:
        """Its environments are built: let it take part, after a reset if the run has begun without it."""
        if peer.state is not State.BUILDING:
            return  # it has said so before
        if (ready.obs_digest, ready.action_digest) != self._digests:
            what = (
                "its environments have other spaces than the one built on the head; all environments must "
                "have equal spaces, and head and workers the same versions"
            )
            self.fail(peer, m.Failure(kind="spaces", message=what))
        elif self.begun:
            peer.enter(State.RETURNING)
            seeds: list[int | None] = [
                derived_seed(self.seed, env, peer.incarnation) for env in peer.env_indices
            ]
            reset = m.ResetCommand(noise_seed=None, seeds=seeds, mask=None, has_options=False)
            self._advance(peer, reset, ())
        else:
            peer.enter(State.READY)

    def _advance(self, peer: Peer, message: m.Message, frames: Sequence[Any]) -> None:
        self._catch_up += 1
        peer.catching_up = self._catch_up
        self._post(peer, message, frames, self._catch_up)

    def on_catch_up(self, peer: Peer, envelope: Envelope) -> None:
        """Go on with a worker's return: the reset is done, or the agent has arrived."""
        peer.catching_up = 0
        if isinstance(envelope.message, m.Failure):
            self.fail(peer, envelope.message)
            return
        if isinstance(envelope.message, m.ResetReply):
            peer.fresh = envelope
        if self.agent is None or peer.agent == self.agent[0].agent:
            peer.enter(State.READY)
            return
        agent, blob = self.agent  # it may be another one than when the last was sent
        peer.agent = agent.agent
        self._advance(peer, agent, (blob,))

    def are_ready(self, least: int | None) -> bool:
        """Whether all workers are ready, or `least` of them while all others are in a queue."""
        ready = sum(peer.state is State.READY for peer in self.peers)
        queued = [peer for peer in self.peers if peer.rank in self.waiting]
        wanted = len(self.peers) if least is None else max(least, len(self.peers) - len(queued))
        return ready >= wanted

    def raise_start_failures(self, waited_s: float, queue_timeout_s: float | None) -> None:
        """Return if all is well `waited_s` after the start.

        Raises:
            SetupTimeout, EnvError, WorkerLost, LaunchError: if a worker is late, or has failed or ended.
        """
        for peer in self.peers:
            if peer.failure is not None:
                raise failed(peer, peer.failure, self.processes)
            if peer.loss is not None:
                raise peer.loss
        limits = {
            State.STARTING: ("connect_timeout_s", self._config.connect_timeout_s, "reach the head"),
            State.BUILDING: ("setup_timeout_s", self._config.setup_timeout_s, "build its environments"),
        }
        now = time.monotonic()
        for state, (name, limit_s, what) in limits.items():
            late = [p.rank for p in self.peers if p.state is state and now - p.since > limit_s]
            if late:
                raise SetupTimeout(
                    f"worker {listed(late)} did not {what} within {name} = {limit_s:g} s"
                    f"{log_tails(self.processes, late)}"
                )
        if queue_timeout_s is not None and self.waiting and waited_s > queue_timeout_s:
            raise SetupTimeout(
                f"worker {listed(sorted(self.waiting))} did not start within queue_timeout_s = "
                f"{queue_timeout_s:g} s: {next(iter(self.waiting.values()))}"
            )

    # --- going ------------------------------------------------------------------------------------------

    def on_goodbye(self, peer: Peer, goodbye: m.Goodbye) -> None:
        """A worker leaves of its own will, or because the run closes."""
        if self.closing:
            self._is_gone(peer)
        else:
            self.lose(peer, f"left: {goodbye.reason}", reason=goodbye.reason)

    def fail(self, peer: Peer, failure: m.Failure) -> None:
        """Take a failure that a worker reports: of its present command, or one after which it ends."""
        peer.last_error = failure.message
        self.may_have_failed = True
        if not self.begun or (failure.kind not in FATAL and peer.state is State.READY):
            peer.failure = failure
            return
        error = failed(peer, failure, self.processes)
        if isinstance(error, WorkerLost):
            code = failure.exit_code
            ended = Ended(code, -code if code is not None and code < 0 else None)
            self.lose(peer, failure.message, ended, failure.kind)
        else:
            self.lose(peer, f"failed when it came back: {error}", reason=failure.kind)

    def lose(self, peer: Peer, what: str, ended: Ended | None = None, reason: str | None = None) -> None:
        """A worker is lost: `what` goes on from its name. A replacement is due if the options say so."""
        if peer.state in (State.AWAY, State.GONE) or self.closing:
            return
        if ended is None and self.processes is not None:
            self.processes.look_soon()
        now = time.monotonic()
        peer.lost_at.append(now)
        restarts = self.begun and self._config.on_worker_loss == "restart"
        delay = restart_delay_s(peer.lost_at, now, self._config.max_restarts) if restarts else None
        if restarts and delay is None:
            what = (
                f"{what}; it was started again max_restarts = {self._config.max_restarts} times within an "
                f"hour. The first loss: {peer.first_loss}"
            )
        error = lost(peer, what, self.processes, ended, reason)
        if peer.address is not None:
            self.by_address.pop(peer.address, None)
            self.former[peer.address] = peer
        peer.address, peer.policy, peer.fresh, peer.reply = None, None, None, None
        peer.expected, peer.catching_up, peer.rate, peer.served_version = 0, 0, 0.0, 0
        peer.agent, peer.posted, peer.lane, peer.lane_sequence = 0, 0, None, 0
        peer.give_up_fragment()
        peer.earlier_steps += peer.steps
        peer.steps = 0
        peer.last_error = str(error).splitlines()[0]
        peer.first_loss = peer.first_loss or str(error)
        peer.loss, peer.loss_told = error, False
        self.may_have_failed = True
        if delay is None:
            self._is_gone(peer)
        else:
            peer.enter(State.AWAY)
            peer.respawn_at = now + delay
        if self._config.on_worker_loss != "raise":
            logger.warning("%s", peer.last_error)

    def _is_gone(self, peer: Peer) -> None:
        if peer.state is not State.GONE:
            peer.enter(State.GONE)
            self.gone.append(peer)

    def keep(self) -> None:
        """Look at processes and leases, and start what is due; called now and then, without the lock."""
        processes = self.processes
        ended = {} if processes is None else processes.ended()
        pending = {} if processes is None else processes.pending()
        with self._condition:
            now = time.monotonic()
            for rank, how in ended.items():
                self.lose(self.peers[rank], how_it_ended(how), how)
            self.waiting = {
                rank: why for rank, why in pending.items() if self.peers[rank].state is State.STARTING
            }
            for rank in self.waiting:
                self.peers[rank].since = now  # the time to connect begins when it runs
            for peer in self.peers:
                self._check(peer, now)
            due = [p for p in self.peers if p.state is State.AWAY and now >= p.respawn_at]
            for peer in due:
                peer.incarnation += 1
                peer.enter(State.STARTING)
            self._condition.notify_all()
        for peer in due:
            assert processes is not None  # without processes nobody is lost
            try:
                processes.respawn(peer.rank, peer.incarnation)
            except LaunchError as error:
                with self._condition:
                    self.lose(peer, f"could not be started again: {error}")

    def _check(self, peer: Peer, now: float) -> None:
        """Lose a worker that is silent, does not take its command, or does not come back in time."""
        config, in_state_s = self._config, now - peer.since
        silent_s = now - peer.heard_at
        connected = peer.state in (State.READY, State.BUILDING, State.RETURNING)
        if connected and silent_s > config.lease_s:
            self.lose(peer, f"sent nothing for {silent_s:.1f} s (limit lease_s = {config.lease_s:g} s)")
        elif peer.state is State.READY and self._idles(peer, now):
            self.lose(peer, f"lives but has not taken its command for {now - peer.sent_at:.1f} s")
        elif not self.begun:
            return
        elif peer.state is State.STARTING and in_state_s > config.connect_timeout_s:
            limit = f"connect_timeout_s = {config.connect_timeout_s:g} s"
            self.lose(peer, f"did not reach the head within {limit}", reason="timeout")
        elif peer.state in (State.BUILDING, State.RETURNING) and in_state_s > config.setup_timeout_s:
            limit = f"setup_timeout_s = {config.setup_timeout_s:g} s"
            self.lose(peer, f"did not build its environments within {limit}", reason="timeout")

    def _idles(self, peer: Peer, now: float) -> bool:
        """Whether a command was sent long ago and heartbeats since then do not speak of it."""
        waits = peer.expected and peer.reply is None and peer.failure is None and not peer.waits_in_memory
        heard_since = peer.heard_at > peer.sent_at and peer.working_on != peer.expected
        return bool(waits) and heard_since and now - peer.sent_at > 2 * self._config.lease_s


def derived_seed(seed: int, env: int, incarnation: int) -> int:
    """The seed of a restarted environment: never one that another environment of the run has."""
    return int(np.random.SeedSequence([seed, env, incarnation]).generate_state(1, np.uint32)[0])
