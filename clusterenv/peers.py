"""What the head knows of each worker, and the error that says what became of one."""

from __future__ import annotations

import enum
import signal as signals
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clusterenv.commands import KINDS
from clusterenv.errors import ClusterEnvError, EnvError, LaunchError, WorkerLost
from clusterenv.lane import Lane
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
"""Delay before the first restart, doubled with each further one within the hour, and its bound."""

FATAL = ("timeout", "runner_lost", "setup", "spaces")
"""Kinds of failure after which a worker ends."""


class State(enum.StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    BUILDING = "building"
    RETURNING = "returning"
    """Built again after a loss; its environments are being reset."""
    READY = "ready"
    AWAY = "away"
    """Lost; a replacement is due."""
    GONE = "gone"
    """Lost for good."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a worker ended, as its launcher saw it."""

    exit_code: int | None
    signal: int | None
    job_id: str | None = None
    detail: str = ""
    """What else its launcher says of it."""


class Processes(Protocol):
    """What a launcher can tell and do about the workers' processes."""

    def ended(self) -> Mapping[int, Ended]:
        """The workers, by rank, whose process is gone."""

    def pending(self) -> Mapping[int, str]:
        """The workers, by rank, that wait in a queue, and why."""

    def look_soon(self) -> None:
        """Find out within moments what became of the workers: one was lost without the launcher's word."""

    def log_path(self, rank: int) -> Path | None:
        """Where the worker's output goes."""

    def log_tail(self, rank: int) -> str:
        """The last lines of the worker's output."""

    def respawn(self, rank: int, incarnation: int) -> None:
        """End what is left of a worker and start a replacement."""


NOTHING_USED = m.Used(cpu_s=0.0, memory_bytes=0)


@dataclass(slots=True)
class Peer:
    """What the head knows of one worker."""

    rank: int
    first_env: int
    num_envs: int
    welcome: m.Welcome
    blobs: list[bytes]
    address: bytes | None = None
    incarnation: int = 0
    hello: m.Hello | None = None
    state: State = State.STARTING
    since: float = field(default_factory=time.monotonic)
    """When it entered its state."""
    heard_at: float = 0.0
    sent_at: float = 0.0
    expected: int = 0
    """Sequence number of the command that it has not answered; 0: none."""
    reply: Envelope | None = None
    failure: m.Failure | None = None
    posted: int = 0
    """Sequence number of the command that it was sent last, until its answer is here, late or not."""
    lane: Lane | None = None
    """Memory to step its environments through, if it is on this host."""
    lane_sequence: int = 0
    """Sequence number of the step asked for there whose answer was not taken; 0: none."""
    working_on: int = 0
    steps: int = 0
    earlier_steps: int = 0
    """Steps of incarnations that are gone."""
    used: m.Used = NOTHING_USED
    """What its processes use, as last told."""
    rate: float = 0.0
    rate_mark: tuple[float, int] = (0.0, 0)
    policy: m.PolicyInfo | None = None
    last_error: str | None = None
    loss: WorkerLost | None = None
    loss_told: bool = True
    """Whether a step has shown the last loss to the caller."""
    first_loss: str = ""
    lost_at: list[float] = field(default_factory=list)
    respawn_at: float = 0.0
    catching_up: int = 0
    """Sequence number of the step of its return that it has not answered."""
    agent: int = 0
    """Number of the agent that it was given when it came back."""
    fresh: Envelope | None = None
    """The observations of the reset after its return, until a step shows them."""
    room: int = 0
    """Fragments of a stream that it may have under way."""
    served_version: int = 0
    """Of the weights that it was sent last."""
    late_fragments: int = 0
    """Fragments of streams that came when nobody took them any more."""
    lost_fragments: int = 0
    """Fragments of streams that were under way and never came."""
    env_rebuilds: int = 0
    """Environments that raised and were built anew."""

    def enter(self, state: State) -> None:
        """Be in `state` from now on."""
        self.state, self.since = state, time.monotonic()

    def give_up_fragment(self) -> None:
        """What it was making in a stream, if anything, will not come."""
        self.lost_fragments += self.room > 0
        self.room = 0

    @property
    def waits_in_memory(self) -> bool:
        """Whether its answer lies in the memory shared with it, until the caller takes it."""
        asked = self.lane is not None and self.lane_sequence == self.expected != 0
        return asked and self.lane is not None and not self.lane.any_busy

    @property
    def shares_memory(self) -> bool:
        """Whether it is a local worker, and the options let it share memory with this process."""
        return bool(self.welcome.head_host)

    @property
    def env_indices(self) -> range:
        """Global numbers of the worker's environments."""
        return range(self.first_env, self.first_env + self.num_envs)

    @property
    def is_present(self) -> bool:
        """Whether a process of its present incarnation is connected."""
        return self.state in (State.BUILDING, State.RETURNING, State.READY)

    @property
    def host(self) -> str | None:
        """The worker's host name, once it has said hello."""
        return None if self.hello is None else self.hello.host

    @property
    def rows(self) -> slice:
        """The worker's rows in a batch of all environments."""
        return slice(self.first_env, self.first_env + self.num_envs)


def restart_delay_s(lost_at: Sequence[float], now: float, max_restarts: int) -> float | None:
    """Seconds until a worker is started again after losses at `lost_at`, the last included; None: never."""
    recent = [at for at in lost_at if now - at < 3600.0]
    if len(recent) > max_restarts:
        return None
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (len(recent) - 1)))


def lost(
    peer: Peer,
    what: str,
    processes: Processes | None,
    ended: Ended | None = None,
    reason: str | None = None,
) -> WorkerLost:
    """The error for a worker that is gone: `what` goes on from "worker 3 (host n1, environments 6 to 7)"."""
    first, last = peer.env_indices[0], peer.env_indices[-1]
    return WorkerLost(
        f"worker {peer.rank} (host {peer.host or 'unknown'}, environments {first} to {last}) {what}",
        rank=peer.rank,
        host=peer.host,
        env_indices=peer.env_indices,
        reason=reason or ("exited" if ended is not None else "silent"),
        exit_code=None if ended is None else ended.exit_code,
        signal=None if ended is None else ended.signal,
        job_id=None if ended is None else ended.job_id,
        log_path=None if processes is None else processes.log_path(peer.rank),
        log_tail="" if processes is None else processes.log_tail(peer.rank),
    )


def failed(peer: Peer, failure: m.Failure, processes: Processes | None) -> ClusterEnvError:
    """The error for a failure that a worker reported."""
    where = f"worker {peer.rank} on {peer.host}"
    kind = KINDS.get(failure.kind, ClusterEnvError)
    if issubclass(kind, EnvError):
        return kind(
            f"{where}: {failure.message}",
            env_index=failure.env_index,
            action=failure.action,
            remote_traceback=failure.traceback,
            worker=peer.rank,
            host=peer.host,
        )
    if failure.kind in KINDS or failure.kind == "internal":
        return kind(f"{where}: {failure.message}\n\n{failure.traceback}".rstrip())
    if failure.kind in ("setup", "spaces"):
        return LaunchError(f"{where}: {failure.message}")
    code = failure.exit_code
    ended = Ended(code, -code if code is not None and code < 0 else None)
    return lost(peer, failure.message, processes, ended, failure.kind)


def log_tails(processes: Processes | None, ranks: Sequence[int]) -> str:
    """The end of the logs of some workers, for an error."""
    if processes is None:
        return ""
    tails = [(processes.log_path(rank), processes.log_tail(rank)) for rank in ranks[:3]]
    return "".join(f"\nThe end of {path}:\n{tail.rstrip()}" for path, tail in tails if tail.strip())


def listed(ranks: Sequence[int]) -> str:
    """Some ranks as words."""
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"


def how_it_ended(ended: Ended) -> str:
    """The words after "the worker"."""
    if ended.signal is not None:
        try:
            name = f" ({signals.Signals(ended.signal).name})"
        except ValueError:
            name = ""
        ending = f"was killed by signal {ended.signal}{name}"
    else:
        ending = "ended" if ended.exit_code is None else f"ended with exit code {ended.exit_code}"
    return f"{ending} ({ended.detail})" if ended.detail else ending


def worker_stats(peer: Peer, published: int) -> dict[str, Any]:
    """One entry of `stats()["workers"]`."""
    policy = peer.policy
    version = 0 if policy is None else policy.policy_version
    return {
        "rank": peer.rank,
        "host": peer.host,
        "pid": peer.hello.pid if peer.is_present and peer.hello is not None else None,
        "state": str(peer.state),
        "steps": peer.earlier_steps + peer.steps,
        "steps_per_s": peer.rate,
        "cpu_s": peer.used.cpu_s,
        "memory_bytes": peer.used.memory_bytes,
        "policy_version": version,
        "policy_lag": max(0, published - version) if policy is not None else 0,
        "kl": 0.0 if policy is None else policy.kl,
        "sync_count": 0 if policy is None else policy.sync_count,
        "syncs_by_reason": {} if policy is None else dict(policy.syncs_by_reason),
        "checks": 0 if policy is None else policy.checks,
        "check_us": 0.0 if policy is None else 1e6 * policy.check_s / max(policy.checks, 1),
        "kl_threshold": peer.welcome.kl_threshold if policy is None else policy.kl_threshold,
        "late_fragments": peer.late_fragments,
        "lost_fragments": peer.lost_fragments,
        "restarts": peer.incarnation,
        "env_rebuilds": peer.env_rebuilds,
        "last_error": peer.last_error,
    }
