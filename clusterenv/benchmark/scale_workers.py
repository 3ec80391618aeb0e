"""Many simulated workers in one process: sockets, keys and messages are real, environments a timer.

Each has the two connections of a worker and says what a worker says: hello, ready, heartbeats, answers, and
requests for weights whenever there are new ones.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Semaphore
from pathlib import Path

import msgspec
import zmq

from clusterenv.benchmark.descriptors import allow_descriptors
from clusterenv.errors import ConnectError, DeadlineError
from clusterenv.run_records import CONNECTION_FILE
from clusterenv.service import beat_interval_s, hello
from clusterenv.transport import Connection, Envelope
from clusterenv.transport import messages as m
from clusterenv.transport.codec import Side, decode, encode
from clusterenv.transport.dialing import Line, random_routing_id
from clusterenv.transport.sockets import (
    EXPRESS_SUFFIX,
    Socket,
    has_message,
    is_express,
    receive_parts,
    send_parts,
)
from clusterenv.usage import LOOK_EVERY_S

Frames = list[bytes]

AT_ONCE = 64
"""Connections that are made at the same time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A message and its frames, as they travel."""

    message: m.FragmentReply
    frames: Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What one process simulates; the same for all its workers."""

    ranks: range
    folder: Path
    """Where the run's folder with the connection file appears."""
    fragment_s: float
    """Seconds that a fragment takes the timer that stands for environments."""
    timeout_s: float
    """For the connection file to appear, and for the head to answer anything."""
    digests: tuple[str, str]
    fragments: dict[int, Answer]
    """By number of steps; environments are numbered from 0."""
    step_frames: Frames
    obs_frames: Frames


def simulate(simulation: Simulation, ready: Semaphore) -> None:
    """Serve the head until it says close, falls silent, or the process that started this one is gone.

    Raises:
        LaunchError: if the system does not allow so many connections.
        ConnectError: if the head cannot be reached.
        DeadlineError: if there is none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the head's, which then says close
    count = len(simulation.ranks)
    allow_descriptors(5 * count + 8 * AT_ONCE + 256, f"{count} simulated workers in one process")
    ready.release()
    connection = _wait_for_connection(simulation)
    with zmq.Context() as context:
        context.max_sockets = 4 * len(simulation.ranks) + 4 * AT_ONCE + 8
        crowd = _Crowd(simulation, connection, context)
        try:
            crowd.connect()
            crowd.run()
        finally:
            crowd.close()


def _wait_for_connection(simulation: Simulation) -> Connection:
    end = time.monotonic() + simulation.timeout_s
    while time.monotonic() < end:
        for path in simulation.folder.glob(f"*/{CONNECTION_FILE}"):
            return Connection.read(path)
        time.sleep(0.01)
    raise DeadlineError(f"no head has written a connection file within {simulation.timeout_s:g} s")


class _Crowd:
    """All workers of a process, their timers, and the descriptors that tell of news."""

    def __init__(self, simulation: Simulation, connection: Connection, context: zmq.Context[Socket]) -> None:
        self._simulation = simulation
        self._connection = connection
        self._context = context
        self._epoll = select.epoll()
        self._listening: dict[int, tuple[_SimulatedWorker, Socket]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._workers: list[_SimulatedWorker] = []
        self._parent = os.getppid()
        self._heard_at = time.monotonic()
        self._hello = hello(0)

    def connect(self) -> None:
        """Connect all workers, two lines each; they say hello as soon as they are connected."""
        for first in range(0, len(self._simulation.ranks), AT_ONCE // 2):
            ranks = self._simulation.ranks[first : first + AT_ONCE // 2]
            ids = [random_routing_id() for _ in ranks]
            lines = self._lines([*ids, *(own + EXPRESS_SUFFIX for own in ids)])
            for rank, main, express in zip(ranks, lines, lines[len(ids) :], strict=False):
                self._join(_SimulatedWorker(rank, self, (main, express)))

    def _lines(self, ids: Sequence[bytes]) -> list[Socket]:
        """A connection for each routing id; both sides have then proven their keys."""
        lines = [self._dial(own) for own in ids]
        end = time.monotonic() + self._simulation.timeout_s
        while not all(line.ready for line in lines):
            if time.monotonic() > end:
                raise ConnectError(next(line for line in lines if not line.ready).explain())
            self._serve(0.001)
            for number, line in enumerate(lines):
                line.update()
                if line.ended and time.monotonic() >= line.retry_at:  # such as a handshake that took too long
                    line.close()
                    lines[number] = self._dial(line.routing_id)
        for line in lines:
            line.socket.disable_monitor()
            line.monitor.close(linger=0)
        return [line.socket for line in lines]

    def _dial(self, routing_id: bytes) -> Line:
        return Line(self._context, self._connection, self._connection.endpoints[0], [], routing_id)

    def _join(self, worker: _SimulatedWorker) -> None:
        self._workers.append(worker)
        for socket in worker.sockets:
            self._listening[socket.fileno()] = (worker, socket)
            self._epoll.register(socket.fileno(), select.EPOLLIN)
        worker.send(msgspec.structs.replace(self._hello, rank=worker.rank), [], 0)

    def run(self) -> None:
        """Until all workers have left."""
        while not all(worker.left for worker in self._workers):
            now = time.monotonic()
            self._serve(1.0)
            if os.getppid() != self._parent or now - self._heard_at > self._simulation.timeout_s:
                return

    def _serve(self, longest_s: float) -> None:
        """Wait for news or a timer, for so long at most, and do what is due."""
        due_s = self._timers[0][0] - time.monotonic() if self._timers else longest_s
        for fd, _ in self._epoll.poll(min(longest_s, max(0.0, due_s))):
            worker, socket = self._listening[fd]
            for envelope in self._read(socket):
                worker.on_message(envelope)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _read(self, socket: Socket) -> Iterator[Envelope]:
        """All that waits: a descriptor tells of changes only."""
        while has_message(socket):
            self._heard_at = time.monotonic()
            parts, _ = receive_parts(socket, self._connection.max_message_bytes)
            yield decode(
                [part.buffer for part in parts],
                sender=Side.HEAD,
                run_id=self._connection.run_id,
                max_message_bytes=self._connection.max_message_bytes,
            )

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` in so many seconds."""
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, do))

    def send(self, worker: _SimulatedWorker, message: m.Message, frames: Frames, sequence: int) -> None:
        """Send a message of `worker`, and read what came while that was done."""
        parts, _ = encode(
            message,
            frames,
            run_id=self._connection.run_id,
            incarnation=0,
            sequence=sequence,
            max_message_bytes=self._connection.max_message_bytes,
        )
        socket = worker.sockets[1 if is_express(message) else 0]
        send_parts(socket, parts)
        for envelope in list(self._read(socket)):
            self.after(0.0, partial(worker.on_message, envelope))

    @property
    def simulation(self) -> Simulation:
        """What is simulated."""
        return self._simulation

    def close(self) -> None:
        """End all connections once what was sent is on its way."""
        for worker in self._workers:
            for socket in worker.sockets:
                socket.close(linger=500)
        self._epoll.close()


class _SimulatedWorker:
    """One worker: answers at once, but for fragments of a stream."""

    def __init__(self, rank: int, crowd: _Crowd, sockets: tuple[Socket, Socket]) -> None:
        self.rank = rank
        self.sockets = sockets
        self.left = False
        self._crowd = crowd
        self._answers = crowd.simulation.fragments
        self._policy = next(iter(self._answers.values())).message.policy
        self._then: Callable[[], None] | None = None
        self._interval_s = 1.0
        self._steps = 0
        self._stream = 0
        self._room = 0
        self._num_steps = 0
        self._tell_use_at = 0.0
        self._working = False
        self._fragments = 0

    def send(self, message: m.Message, frames: Frames, sequence: int) -> None:
        """Send a message."""
        self._crowd.send(self, message, frames, sequence)

    def on_message(self, envelope: Envelope) -> None:
        """Do what a worker does."""
        message, sequence, simulation = envelope.message, envelope.sequence, self._crowd.simulation
        if isinstance(message, m.Welcome):
            self._on_welcome(message)
        elif isinstance(message, m.AgentMessage):
            self.send(m.Ack(), [], sequence)
        elif isinstance(message, m.ResetCommand):
            self.send(m.ResetReply(infos=[]), simulation.obs_frames, sequence)
        elif isinstance(message, m.StepCommand):
            self.send(m.StepReply(num_final=0, infos=[], final_infos=[]), simulation.step_frames, sequence)
        elif isinstance(message, m.RolloutCommand):
            steps = message.num_steps
            self._freshen(message.version, lambda: self._send_fragment(sequence, steps))
        elif isinstance(message, m.WeightsReply):
            self._on_weights(message.version)
        elif isinstance(message, m.CloseCommand | m.Refused):
            self.send(m.Goodbye(reason="closed"), [], sequence)
            self.left = True
        else:
            self._on_stream_message(message, sequence)

    def _on_welcome(self, welcome: m.Welcome) -> None:
        self._answers = {
            steps: Answer(_renumbered(answer.message, welcome.first_env), answer.frames)
            for steps, answer in self._answers.items()
        }
        self._interval_s = beat_interval_s(welcome.lease_s, welcome.num_workers)
        obs, actions = self._crowd.simulation.digests
        self.send(m.Ready(obs_digest=obs, action_digest=actions, pids=[], threads=1), [], 0)
        self._crowd.after(random.uniform(0.0, self._interval_s), self._beat)

    def _on_stream_message(self, message: m.Message, sequence: int) -> None:
        if isinstance(message, m.StreamCommand):
            self._stream, self._room, self._num_steps = sequence, message.room, message.num_steps
            phase_s = random.uniform(0.0, self._crowd.simulation.fragment_s)
            self._freshen(message.version, lambda: self._crowd.after(phase_s, self._begin_fragment))
        elif isinstance(message, m.Room):
            self._room += message.fragments
            self._begin_fragment()
        elif isinstance(message, m.Published):
            self._freshen(message.version, lambda: None)
        elif isinstance(message, m.StopStream):
            self._stream, self._room = 0, 0
            self.send(m.StreamEnded(abandoned=0), self._crowd.simulation.obs_frames, sequence)

    def _freshen(self, version: int, then: Callable[[], None]) -> None:
        """Go on once the weights are those of `version`, or newer."""
        if version <= self._policy.policy_version:
            then()
            return
        self._then = then
        self.send(m.PullRequest(have_version=self._policy.policy_version, reason="first"), [], 0)

    def _on_weights(self, version: int) -> None:
        syncs = self._policy.sync_count + 1
        self._policy = msgspec.structs.replace(
            self._policy, policy_version=version, sync_count=syncs, syncs_by_reason={"first": syncs}
        )
        then, self._then = self._then, None
        if then is not None:
            then()

    def _begin_fragment(self) -> None:
        if self._stream and self._room > 0 and not self._working:
            self._room -= 1
            self._working = True
            stream = self._stream
            self._crowd.after(self._crowd.simulation.fragment_s, lambda: self._end_fragment(stream))

    def _end_fragment(self, stream: int) -> None:
        self._working = False
        if stream == self._stream:
            self._send_fragment(stream, self._num_steps)
        self._begin_fragment()

    def _send_fragment(self, sequence: int, num_steps: int) -> None:
        answer = self._answers[num_steps]
        self._fragments += 1
        self._steps += num_steps
        reply = msgspec.structs.replace(answer.message, policy=self._policy, fragment=self._fragments)
        self.send(reply, answer.frames, sequence)

    def _beat(self) -> None:
        if not self.left:
            self.send(m.Heartbeat(steps=self._steps, working_on=self._stream), [], 0)
            if self._steps and time.monotonic() >= self._tell_use_at:
                self._tell_use_at = time.monotonic() + LOOK_EVERY_S
                self.send(m.Used(cpu_s=0.0, memory_bytes=0), [], 0)
            self._crowd.after(self._interval_s, self._beat)


def _renumbered(fragment: m.FragmentReply, first_env: int) -> m.FragmentReply:
    """The same of environments that are numbered from `first_env`."""
    episodes = [msgspec.structs.replace(each, env_id=first_env + each.env_id) for each in fragment.episodes]
    return msgspec.structs.replace(fragment, episodes=episodes)
