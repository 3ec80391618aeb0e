"""The head's part of a stream: batches of what workers make on their own, and new versions told to them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from clusterenv.acting import Acting
from clusterenv.batches import Fragment
from clusterenv.checks import is_number
from clusterenv.comparing import Sample
from clusterenv.config import EnvConfig
from clusterenv.errors import CallTimeout, ClusterEnvError, ConfigError, StateError
from clusterenv.head import Head
from clusterenv.intake import Arrival
from clusterenv.layout import SpaceLayout
from clusterenv.outcomes import Fresh
from clusterenv.policy_sync import compares
from clusterenv.rollout import Part, Rollout, side_by_side
from clusterenv.stepping import Stepping
from clusterenv.transport import messages as m

Call = Callable[[Callable[[], Rollout | None]], Rollout | None]


class Stream:
    """The batches of `ClusterEnv.stream`, without an end of their own.

    Dropping it closes it, and so does leaving its loop if no variable holds it, or an error.
    """

    def __init__(self, streaming: Streaming, call: Call) -> None:
        """Draw from `streaming`, just opened, by way of `call`, which knows what errors mean for the run."""
        self._streaming = streaming
        self._number = streaming.opened
        self._call = call
        self._thread = threading.get_ident()
        self._busy = False

    def __iter__(self) -> Self:
        """The stream itself."""
        return self

    def __next__(self) -> Rollout:
        """The next batch; see `take`."""
        if self.closed:
            raise StopIteration
        return self.take()

    def take(self, timeout: float | None = None) -> Rollout:
        """The next batch, once the agent's present state is published, within `timeout` seconds if given.

        Raises:
            CallTimeout: if it is not there in time; it may be called again, and nothing is lost.
            EnvError, AgentError: if an environment or the agent raised on a worker; the stream is closed.
            WorkerLost: as in `rollout`; the environments are closed.
            StateError: if the stream is closed, or another thread is in a call of it.
        """
        if self.closed:
            raise StateError("the stream is closed; open another")
        if timeout is not None and not (is_number(timeout) and timeout >= 0):
            raise ConfigError("timeout", timeout, "a number of seconds from 0, or None")
        with self._streaming.alone():
            try:
                batch = self._do(lambda: self._streaming.take(timeout))
            except CallTimeout:
                raise
            except BaseException:
                self.close()
                raise
        assert batch is not None
        return batch

    @property
    def closed(self) -> bool:
        """Whether no batch follows."""
        return not self._streaming.is_open or self._streaming.opened != self._number

    def close(self) -> None:
        """Workers stop within a step, and other calls may be made again; may be called again.

        What nobody has taken is counted in `stats()`.

        Raises:
            StateError: if another thread is in a call of the stream.
        """
        if not self.closed:
            self._do(self._streaming.close)

    def _do(self, what: Callable[[], Rollout | None]) -> Rollout | None:
        self._busy = True
        try:
            return self._call(what)
        finally:
            self._busy = False

    def __enter__(self) -> Self:
        """The stream itself; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close, if that can be done here: garbage may be collected in the middle of anything."""
        if self.closed:
            return
        self._streaming.is_dropped = True
        if threading.get_ident() == self._thread and not self._busy:
            with contextlib.suppress(ClusterEnvError):
                self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What `ClusterEnv.stream` was asked for."""

    num_steps: int
    fragments: int
    sync_at: str
    queue: int


class Streaming:
    """At most one stream at a time."""

    def __init__(
        self,
        head: Head,
        acting: Acting,
        stepping: Stepping,
        config: EnvConfig,
        layouts: tuple[SpaceLayout, SpaceLayout],
        *,
        on_demand: bool,
    ) -> None:
        """None is open. With `on_demand` workers make a fragment only when it is waited for."""
        self._head = head
        self._acting = acting
        self._stepping = stepping
        self._config = config
        self._obs, self._actions = layouts
        self._on_demand = on_demand
        self._agent: object = None
        self._fragments = 1
        self._num_steps = 0
        self._parts: list[tuple[Arrival, Fragment]] = []
        self._announced = 0
        self._sampled: dict[int, tuple[Arrival, Sample]] = {}
        self._compared: dict[int, tuple[int, int, int]] = {}
        self._using = threading.RLock()
        self.opened = 0
        """Streams so far."""
        self.is_open = False
        self.is_dropped = False
        """Whether nobody holds the stream that is open, which any call may therefore close."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread uses the stream meanwhile.

        Raises:
            StateError: if one does.
        """
        if not self._using.acquire(blocking=False):
            raise StateError("another thread is in a call of the stream; one thread at a time may use it")
        try:
            yield
        finally:
            self._using.release()

    def open(self, agent: object, options: StreamOptions) -> None:
        """Workers begin to make fragments.

        Raises:
            AgentError: if they cannot act with the agent.
            WorkerLost: as in any call.
        """
        version = self._acting.publish(agent).version
        command = m.StreamCommand(
            version=version,
            num_steps=options.num_steps,
            room=0 if self._on_demand else options.queue,
            sync_at=options.sync_at,
            max_lag=self._config.stream_max_lag,
            yields=False,
        )
        self._agent, self._fragments, self._announced = agent, options.fragments, version
        self._num_steps = options.num_steps
        self._head.open_stream(command)
        self.opened += 1
        self.is_open, self.is_dropped = True, False

    def publish(self, agent: object) -> int:
        """Workers compare with the agent's present state from now on; returns its version.

        Raises:
            StateError: if it is not the agent of the stream.
            AgentError: if its state has changed its names or shapes.
        """
        if agent is not self._agent:
            raise StateError("publish another agent than that of the open stream; close the stream first")
        with self.alone():
            return self._publish(agent)

    def _publish(self, agent: object) -> int:
        snapshot = self._acting.publish(agent, known=True)
        version = snapshot.version
        is_new = version != self._announced
        behind = self._behind(version)
        if is_new or behind:
            self._announced = version
            samples = self._samples(behind)
            self._head.announce(self._acting.news(snapshot, samples), None if is_new else samples)
            for rank in samples:
                self._compared[rank] = _comparison(behind[rank], version)
        return version

    def _behind(self, version: int) -> dict[int, Arrival]:
        """Fragments, by rank, of policies with which `version` has still to be compared."""
        if not compares(self._config.sync):
            return {}
        return {
            rank: arrival
            for rank, arrival in self._newest().items()
            if arrival.message.policy.policy_version != version
            and self._compared.get(rank) != _comparison(arrival, version)
        }

    def _newest(self) -> dict[int, Arrival]:
        """By rank, the last fragment of each worker that still acts with the policy of that."""
        return {
            rank: arrival
            for rank, arrival in self._head.newest_fragments().items()
            if arrival.peer.incarnation == arrival.incarnation
            and arrival.peer.served_version <= arrival.message.policy.policy_version
        }

    def _samples(self, arrivals: Mapping[int, Arrival]) -> dict[int, Sample]:
        """States of the fragments, by rank; none of those that have no rows to compare."""
        samples = {}
        for rank, arrival in arrivals.items():
            if rank not in self._sampled or self._sampled[rank][0] is not arrival:
                fragment = self._read(arrival)
                if fragment is None:
                    continue
                sample = self._acting.sample(arrival.peer, arrival.message, fragment)
                self._sampled[rank] = (arrival, sample)
            if len(self._sampled[rank][1].env_ids):
                samples[rank] = self._sampled[rank][1]
        return samples

    def take(self, timeout_s: float | None) -> Rollout:
        """The next batch, after the agent's present state was published.

        Raises:
            CallTimeout: if it is not there within `timeout_s`; nothing is lost.
            EnvError, AgentError, WorkerLost: as in any call.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        version = self.publish(self._agent)
        while len(self._parts) < self._fragments:
            left = None if end is None else max(0.0, end - time.monotonic())
            arrival = self._head.next_fragment(left, self._fragments - len(self._parts))
            if arrival is None:
                raise CallTimeout(
                    f"{len(self._parts)} of {self._fragments} fragments came within timeout = {timeout_s:g} s"
                )
            fragment = self._read(arrival)
            if fragment is not None:
                self._parts.append((arrival, fragment))
        parts, self._parts = self._parts, []
        return self._batch(parts, version)

    def _read(self, arrival: Arrival) -> Fragment | None:
        """What a worker has sent; None, and the worker is lost, if that cannot be read."""
        fragment = self._head.read(arrival.peer, lambda: self._fragment(arrival), Fresh.SKIP)
        return fragment if isinstance(fragment, Fragment) else None

    def _fragment(self, arrival: Arrival) -> Fragment:
        return self._acting.fragment(arrival.peer, arrival.message, arrival.frames, self._num_steps)

    def _batch(self, taken: Sequence[tuple[Arrival, Fragment]], version: int) -> Rollout:
        parts = [
            Part(
                fragment,
                worker=arrival.peer.rank,
                first_env=arrival.peer.first_env,
                kl=arrival.message.policy.kl,
            )
            for arrival, fragment in taken
        ]
        return side_by_side(
            parts,
            obs_layout=self._obs,
            action_layout=self._actions,
            published_version=version,
            kl=[0.0 if peer.policy is None else peer.policy.kl for peer in self._head.peers],
            nest_state=self._acting.nest_state,
        )

    def close(self) -> None:
        """The stream has ended in all workers, and `step` and `rollout` go on from where it has left them."""
        with self.alone():
            if self.is_open:
                self._close()

    def _close(self) -> None:
        self._acting.remember(self._samples(self._newest()))
        newest = self._head.newest_fragments()
        ends = self._head.end_stream()
        for arrival, _ in self._parts:
            arrival.peer.late_fragments += 1
        self._parts, self._agent, self.is_open = [], None, False
        self._sampled.clear()
        self._compared.clear()
        for ended in ends:
            newest.pop(ended.peer.rank, None)
            self._head.read(
                ended.peer, partial(self._stepping.stands_at, ended.peer, ended.frames), Fresh.SKIP
            )
        for arrival in newest.values():  # of a worker that cannot say any more where it stands
            fragment = self._read(arrival)
            if fragment is not None:
                self._stepping.stood_at(arrival.peer, [leaf.copy() for leaf in fragment.last_obs])


def _comparison(arrival: Arrival, version: int) -> tuple[int, int, int]:
    """Of the policy that acted in a fragment with `version`: equal for equal policies of the same worker."""
    return arrival.incarnation, arrival.message.policy.policy_version, version
