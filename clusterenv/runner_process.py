"""A Runner in a process of its own: answers through a pipe, tells its progress, ends with the pipe."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.forkserver
import os
import pickle
import random
import select
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, cast

import numpy as np

from clusterenv.batches import StepBatch
from clusterenv.commands import (
    Command,
    Done,
    Failed,
    FetchStep,
    LaneCommand,
    News,
    Reply,
    RunnerSetup,
    ShareSteps,
    Step,
)
from clusterenv.lane import Lane
from clusterenv.layout import SpaceLayout
from clusterenv.lending import LARGE_BYTES, Borrower, Lender
from clusterenv.lifetime import end_with_parent, let_forks_end
from clusterenv.runner import Runner
from clusterenv.segments import Segment

RUNNER = "runner"
"""Who lends at the other end of a pipe."""

LOOK_S = 1.0
"""Seconds after which an idle runner looks whether its worker is still there, announced or not."""


@dataclass(frozen=True, slots=True)
class Tick:
    """How far the command in work is."""

    progress: int
    """A count that grows with every call of an environment or the agent."""
    agent_works: bool


def tick_interval_s(step_timeout_s: float) -> float:
    """Seconds between two ticks: often enough to see that an environment hangs soon after its limit."""
    return min(1.0, step_timeout_s / 4)


@dataclass(frozen=True, slots=True)
class Offer:
    """Memory in which a runner may leave large arrays; the worker answers."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a worker has mapped the memory with this nonce."""

    nonce: int
    mapped: bool


@dataclass(frozen=True, slots=True)
class _WithLent:
    """A value some of whose arrays are lent."""

    blob: bytes
    frames: list[bytes]
    table: bytes


def send(connection: Connection, value: object, lender: Lender | None = None) -> None:
    """`value` has been written to the pipe, but for what `lender` lends of it."""
    lent = None if lender is None or not lender.lends else _lent(value, lender)
    connection.send_bytes(pickle.dumps(value if lent is None else lent, protocol=5))
    offer = None if lender is None else lender.offer()
    if offer is not None:
        connection.send_bytes(pickle.dumps(Offer(offer), protocol=5))


def _lent(value: object, lender: Lender) -> _WithLent | None:
    frames: list[memoryview | bytes] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        """Whether it is small and part of the pickle."""
        try:
            raw = buffer.raw()
        except BufferError:  # it is strided
            return True
        if len(raw) >= LARGE_BYTES:
            frames.append(raw)
        return len(raw) < LARGE_BYTES

    blob = pickle.dumps(value, protocol=5, buffer_callback=stays)
    lent = lender.lend(frames)
    if lent is None:
        return None
    left, table = lent
    return _WithLent(blob, [bytes(frame) for frame in left], table)


def receive(connection: Connection, borrower: Borrower | None = None) -> object:
    """The next value from the pipe; waits for it.

    Raises:
        EOFError: if the other end is closed.
        OSError: if it broke.
    """
    message: object = pickle.loads(connection.recv_bytes())
    if borrower is None or not isinstance(message, _WithLent):
        return message
    frames = [memoryview(frame) for frame in message.frames]
    value: object = pickle.loads(
        message.blob, buffers=borrower.fetch(RUNNER, frames, memoryview(message.table))
    )
    return value


def serve(connection: Connection, setup: RunnerSetup) -> None:
    """Build the environments, then answer commands until the other end of the pipe closes."""
    _live_no_longer_than_the_worker()
    _settle_in(setup)
    runner = Runner(setup, own_process=True)
    line = _Line(connection, runner, tick_interval_s(setup.step_timeout_s))
    with contextlib.suppress(EOFError, OSError), contextlib.closing(runner):
        line.send(line.build())
        while True:
            message = line.next_message()
            if isinstance(message, News):
                runner.take(message)
            else:
                line.answer(cast("Command | LaneCommand", message))


def _live_no_longer_than_the_worker() -> None:
    end_with_parent()
    let_forks_end()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the head's to handle
    # The forkserver, whose end ends this process, lives until nobody holds this descriptor. A runner that
    # hangs would hold it for ever.
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
        server._forkserver_address = None


def _settle_in(setup: RunnerSetup) -> None:
    """What an environment may expect of its process."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a crash in native code leaves its traceback in the worker's log
    if setup.cpus:
        os.sched_setaffinity(0, setup.cpus)
    sys.path[:] = dict.fromkeys([*setup.sys_path, *sys.path])
    _seed_global_generators(setup)


def _seed_global_generators(setup: RunnerSetup) -> None:
    """Runners fork from one process: left alone, all of them would draw the same numbers."""
    entropy = np.random.SeedSequence([setup.noise_seed, setup.first_env])
    for_random, for_numpy, for_torch = entropy.generate_state(3).tolist()
    random.seed(for_random)
    np.random.seed(for_numpy)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(for_torch)
    else:
        sys.meta_path.insert(0, _SeedsTorch(for_torch))


class _SeedsTorch(MetaPathFinder):
    """Finds torch as the other finders do, and seeds it as it is imported, before anybody draws from it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:  # many only look whether torch is installed
            self._seed_after(spec.loader)
        return spec

    def _seed_after(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_seed(module: ModuleType) -> None:
            execute(module)
            module.manual_seed(self._seed)

        loader.exec_module = execute_and_seed  # type: ignore[method-assign]


class _Line:
    """Answers and ticks on one pipe, and steps that come through shared memory."""

    def __init__(self, connection: Connection, runner: Runner, interval_s: float) -> None:
        self._connection = connection
        self._runner = runner
        self._interval_s = interval_s
        self._busy = False
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        runner.look_for_news = self._look_for_news
        self._layouts: tuple[SpaceLayout, SpaceLayout] | None = None
        self._lane: Lane | None = None
        self._lender = Lender(is_near=True)
        self._number = 0  # of this runner on the lane
        self._told = 0  # how often something other than a step was announced there
        self._last_step: Reply = Failed(kind="state", message="no step came through shared memory")
        threading.Thread(target=self._tick, name="clusterenv-tick", daemon=True).start()

    def build(self) -> object:
        """The environments exist, or what went wrong."""
        try:
            ready = self._runner.build()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - travels to the worker, which raises it
            return Failed.of(error)
        self._layouts = ready.obs_layout, ready.action_layout
        return ready

    def next_message(self) -> object:
        """What comes next through the pipe, once all steps on the lane are answered."""
        lane, number = self._lane, self._number
        while lane is None:
            message = self._receive()
            if message is not None:
                return message
        asked, look = lane.asked[number], lane.look[number]
        announced = False
        while True:
            count = look.count
            if lane.is_busy(number):
                self._step(lane)
                continue
            told = (count - asked.count) % (1 << 32)
            if not announced or told != self._told:
                self._told = told
                if self._poller.poll(0):
                    message = self._receive()
                    if message is not None:
                        return message
                    announced = False  # another may be there too
                    continue
            announced = look.wait(count, LOOK_S)

    def _step(self, lane: Lane) -> None:
        reply = self._last_step = self._handle(Step(actions=lane.asked_actions(self._number)))
        lane.answer(self._number, reply if isinstance(reply, StepBatch) else None)

    def answer(self, command: Command | LaneCommand) -> None:
        if isinstance(command, ShareSteps):
            self.send(self._attach(command))
        elif isinstance(command, FetchStep):
            self.send(self._last_step)
        else:
            self.send(self._handle(command))

    def _handle(self, command: Command) -> Reply:
        self._busy = True
        reply = self._runner.handle(command)
        if os.getpid() != self._pid:
            os._exit(1)  # an environment has forked, and its child came back here: it must not answer too
        self._busy = False
        return reply

    def _attach(self, command: ShareSteps) -> Reply:
        assert self._layouts is not None
        try:
            self._lane = Lane.attach(command.segment, self._layouts, command.slices)
        except OSError as error:
            return Failed.of(error)
        self._number = command.runner
        return Done()

    def _receive(self) -> object | None:
        """The message that comes next; None if it was one that needed no more than to be taken."""
        message = receive(self._connection)
        if not isinstance(message, Answer):
            return message
        with self._sending:
            self._lender.on_answer(message.nonce, mapped=message.mapped)
        return None

    def send(self, value: object) -> None:
        with self._sending:
            send(self._connection, value, self._lender)

    def _look_for_news(self) -> None:
        """The worker sends nothing else while a command is in work."""
        while self._poller.poll(0):
            try:
                message = self._receive()
            except (EOFError, OSError):
                self._runner.abandon()
                return
            if message is not None:
                self._runner.take(cast("News", message))

    def _tick(self) -> None:
        """For as long as the process lives, and only while an answer is awaited, so that nothing piles up."""
        pause = threading.Event()
        try:
            while True:
                pause.wait(self._interval_s)
                if self._busy:
                    self.send(Tick(self._runner.progress, self._runner.agent_works))
        except OSError:
            self._runner.abandon()
