"""Runners as one: in this process, or in processes that have a contiguous slice of the environments each."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterenv.commands import (
    Act,
    Call,
    Collect,
    Command,
    Failed,
    FetchStep,
    GiveUp,
    News,
    Observe,
    Reply,
    Reset,
    RunnerReady,
    RunnerSetup,
    SetAttr,
    ShareSteps,
    Step,
)
from clusterenv.errors import ClusterEnvError, RunnerLost, SetupTimeout, StepTimeout
from clusterenv.lane import Lane
from clusterenv.runner import Runner
from clusterenv.runner_handle import RunnerHandle, loss_of, start_runner, wait_for_ends
from clusterenv.runner_process import send
from clusterenv.segments import Segment
from clusterenv.slices import contiguous, merge, merge_ready, split, split_setup
from clusterenv.worker_start import start_forkserver

if TYPE_CHECKING:
    from clusterenv.layout import SpaceLayout

_log = logging.getLogger(__name__)

AGENT_TIMEOUT_S: Final = 60.0
"""Least limit for what is no environment's time: an agent may import much when it arrives or first acts."""

ATTACH_S: Final = 10.0
"""Seconds that runners have to attach memory, which they do between two commands."""

GONE_S: Final = 5.0
"""Seconds in which a process that got SIGKILL is expected to be gone."""


class Pool(Protocol):
    """A vector of environments that carries out one command at a time."""

    num_envs: int
    action_layout: SpaceLayout
    """Known once started."""

    def start(self, deadline_s: float) -> RunnerReady:
        """All environments are built.

        Raises:
            SetupTimeout: after `deadline_s`; nothing is left running.
            EnvError: if an environment could not be built, likewise.
            SpaceError: if a space cannot be batched or environments differ, likewise.
            RunnerLost: if a runner ended, likewise.
        """

    def share(self) -> Segment | None:
        """The memory through which a head on this machine may have steps made; None if there is none.

        Called once, after `start`.
        """

    def lane_work(self) -> tuple[int, int]:
        """Rows stepped through it, and the number of the step in work (0: none)."""

    def submit(self, command: Command | FetchStep) -> None:
        """The runners work on `command`; `poll` gives the answer before the next one may be submitted."""

    def tell(self, news: News) -> None:
        """The runners get `news` at once, in the middle of a Collect too; there is no answer."""

    def poll(self) -> Reply | None:
        """The answer if all runners have given theirs (Failed if one failed), else None; never waits."""

    def fds(self) -> list[int]:
        """Descriptors that become readable when `poll` or `check` may have news."""

    def check(self, now: float) -> None:
        """All is well at `now` (of the monotonic clock).

        Raises:
            RunnerLost: if a runner has ended.
            StepTimeout: if one made no progress for `step_timeout_s`; it has been killed.
        """

    def pids(self) -> list[int]:
        """Of the runners."""

    def close(self, timeout_s: float) -> None:
        """All environments are closed and no runner is left, some `timeout_s` later; may be repeated."""


class InlinePool:
    """One runner in the calling process, whose threads and global state it leaves alone."""

    action_layout: SpaceLayout

    def __init__(self, setup: RunnerSetup, runners: int = 1) -> None:
        """Build nothing yet; there is one runner whatever `runners` says."""
        self.num_envs = setup.num_envs
        self._runner = Runner(setup)
        self._reply: Reply | None = None

    def start(self, deadline_s: float) -> RunnerReady:
        """See Pool; nothing can interrupt an environment that takes longer."""
        ready = self._runner.build()
        self.action_layout = ready.action_layout
        return ready

    def share(self) -> Segment | None:
        """See Pool: none."""
        return None

    def lane_work(self) -> tuple[int, int]:
        """See Pool."""
        return 0, 0

    def submit(self, command: Command | FetchStep) -> None:
        """See Pool; returns when it has been carried out."""
        assert self._reply is None, "the answer to the last command was not taken"
        assert not isinstance(command, FetchStep), "no step comes through shared memory here"
        self._reply = self._runner.handle(command)

    def tell(self, news: News) -> None:
        """See Pool."""
        self._runner.take(news)

    def poll(self) -> Reply | None:
        """See Pool."""
        reply, self._reply = self._reply, None
        return reply

    def fds(self) -> list[int]:
        """See Pool: none, since answers are there at once."""
        return []

    def check(self, now: float) -> None:
        """See Pool."""

    def pids(self) -> list[int]:
        """See Pool."""
        return [os.getpid()]

    def close(self, timeout_s: float) -> None:
        """See Pool."""
        self._runner.close()


class ProcessPool:
    """Runners as processes, forked from a server that has imported what they need.

    They end with this process, however it ends. Not thread-safe.
    """

    action_layout: SpaceLayout

    def __init__(self, setup: RunnerSetup, runners: int) -> None:
        """Start nothing yet; there are no more runners than environments."""
        self.num_envs = setup.num_envs
        self._setup = setup
        self._slices = contiguous(setup.num_envs, min(runners, setup.num_envs))
        self._runners: list[RunnerHandle] = []
        self._poller = select.poll()
        self._by_fd: dict[int, RunnerHandle] = {}  # those that the poller watches
        self._limit_s: float | None = None  # without progress, for the command in work
        self._may_give_up = False  # whether that heeds a GiveUp
        self._layouts: tuple[SpaceLayout, SpaceLayout] | None = None
        self._lane: Lane | None = None
        self._teller: ThreadPoolExecutor | None = None
        self._told: list[Future[None]] = []

    def start(self, deadline_s: float) -> RunnerReady:
        """See Pool."""
        deadline = time.monotonic() + deadline_s
        atexit.register(self.close, 0.0)
        try:
            start_forkserver()
            for number, setup in enumerate(split_setup(self._setup, self._slices)):
                self._watch(start_runner(number, setup))
            answers = self._wait_for_answers(
                deadline, f"was not built within setup_timeout_s = {deadline_s:g} s"
            )
            ready = merge_ready(answers, self._slices)
        except BaseException:
            self.close(0.0)
            raise
        self.action_layout = ready.action_layout
        self._layouts = ready.obs_layout, ready.action_layout
        return ready

    def share(self) -> Segment | None:
        """See Pool; None too, with a warning, where the memory or a runner's way to it is missing."""
        assert self._layouts is not None, "start comes first"
        try:
            lane = Lane.create(self._layouts, self._slices)
            if lane is None:
                return None
            self._lane = lane  # a runner that has attached waits there from then on
            self._have_attached(lane.segment)
        except (SetupTimeout, RunnerLost):
            self.close(0.0)
            raise
        except (OSError, ClusterEnvError) as error:
            _log.warning("steps come by messages, not through shared memory: %s", error)
            return None
        return lane.segment

    def _have_attached(self, segment: Segment) -> None:
        for number, runner in enumerate(self._runners):
            send(runner.connection, ShareSteps(segment=segment, slices=self._slices, runner=number))
        deadline = time.monotonic() + ATTACH_S
        self._wait_for_answers(deadline, f"did not attach shared memory within {ATTACH_S:g} s")

    def lane_work(self) -> tuple[int, int]:
        """See Pool."""
        lane = self._lane
        return (0, 0) if lane is None else (lane.steps, lane.sequence if lane.any_busy else 0)

    def submit(self, command: Command | FetchStep) -> None:
        """See Pool."""
        assert self._limit_s is None, "the answer to the last command was not taken"
        for told in self._told:
            told.result()  # soon, since no runner is busy any more
        self._told.clear()
        now = time.monotonic()
        runs_envs = isinstance(command, Reset | Step | Call | SetAttr | Act | Collect | Observe)
        self._may_give_up = isinstance(command, Collect) and command.sync_at is not None
        limit_s = self._setup.step_timeout_s
        self._limit_s = limit_s if runs_envs else max(limit_s, AGENT_TIMEOUT_S)
        parts = (
            [command] * len(self._slices) if isinstance(command, FetchStep) else split(command, self._slices)
        )
        for runner, part in zip(self._runners, parts, strict=True):
            runner.progress_at, runner.agent_works = now, False
            self._send(runner, part)

    def tell(self, news: News) -> None:
        """See Pool."""
        self._tell(self._runners, news)

    def _tell(self, runners: Sequence[RunnerHandle], message: object) -> None:
        """A thread writes it, since large weights fill a pipe that a busy runner does not read."""
        if self._teller is None:
            self._teller = ThreadPoolExecutor(1, thread_name_prefix="clusterenv-teller")
        self._told.append(self._teller.submit(self._send_all, list(runners), message))

    def _send_all(self, runners: Sequence[RunnerHandle], message: object) -> None:
        for runner in runners:
            self._send(runner, message)

    def _send(self, runner: RunnerHandle, message: object) -> None:
        try:
            send(runner.connection, message)
        except OSError:
            runner.lost = True  # `check` tells how it ended
        self._have_look(runner)

    def _have_look(self, runner: RunnerHandle) -> None:
        """A runner that waits for steps looks at its pipe."""
        if self._lane is not None:
            self._lane.look[runner.number].ring()

    def poll(self) -> Reply | None:
        """See Pool."""
        answers = self._take()
        if answers is None:
            return None
        self._limit_s = None
        failed = next((answer for answer in answers if isinstance(answer, Failed)), None)
        return failed or merge(answers, self._slices)

    def fds(self) -> list[int]:
        """See Pool."""
        return list(self._by_fd)

    def check(self, now: float) -> None:
        """See Pool."""
        self._drain(now)
        for runner in self._runners:
            if runner.lost:
                raise loss_of(runner)
            limit_s = self._limit_for(runner, now)
            if limit_s is None or runner.replies:
                continue
            if now - runner.progress_at <= limit_s:
                continue
            runner.kill()
            runner.process.join(GONE_S)
            runner.lost = True
            setting = "" if limit_s == AGENT_TIMEOUT_S else "step_timeout_s = "
            raise StepTimeout(
                f"{runner.place} made no progress for {now - runner.progress_at:.1f} s "
                f"(limit {setting}{limit_s:g} s); it was killed"
            )

    def _limit_for(self, runner: RunnerHandle, now: float) -> float | None:
        """Seconds that a runner may be without progress; None if it has nothing to do."""
        if self._limit_s is not None:
            return max(self._limit_s, AGENT_TIMEOUT_S) if runner.agent_works else self._limit_s
        if self._lane is None or not self._lane.is_busy(runner.number):
            return None
        asked = self._lane.asked[runner.number].count
        if asked != runner.asked:  # it was told so since the last look
            runner.asked, runner.progress_at = asked, now
        return self._setup.step_timeout_s

    def pids(self) -> list[int]:
        """See Pool."""
        return [runner.process.pid or 0 for runner in self._runners]

    def close(self, timeout_s: float) -> None:
        """See Pool."""
        atexit.unregister(self.close)
        runners, timeout_s = self._runners, self._have_told(timeout_s)
        self._runners = []
        self._by_fd.clear()
        self._poller = select.poll()
        for runner in runners:
            runner.connection.close()  # an idle runner ends now, a busy one after the step under way
            self._have_look(runner)
        wait_for_ends(runners, timeout_s)
        for runner in runners:
            runner.kill()
        wait_for_ends(runners, GONE_S)
        for runner in runners:
            with contextlib.suppress(ValueError):  # not even SIGKILL has ended it yet
                runner.process.close()

    def _have_told(self, within_s: float) -> float:
        """Nothing more is written to the runners; returns what is left of the time."""
        deadline = time.monotonic() + within_s
        if futures.wait(self._told, within_s).not_done:
            for runner in self._runners:
                runner.kill()  # it does not read, and a pipe must not be closed under the one who writes
        if self._teller is not None:
            self._teller.shutdown()
        return max(0.0, deadline - time.monotonic())

    def _watch(self, runner: RunnerHandle) -> None:
        self._runners.append(runner)
        for fd in (runner.connection.fileno(), runner.process.sentinel):
            self._by_fd[fd] = runner
            self._poller.register(fd, select.POLLIN)

    def _drain(self, now: float) -> None:
        """Take all that has arrived."""
        while ready := self._poller.poll(0):
            for fd, _ in ready:
                runner = self._by_fd[fd]
                if fd == runner.connection.fileno() and runner.take(now):
                    while runner.answers:
                        self._tell([runner], runner.answers.pop())
                    continue
                runner.lost = True
                self._poller.unregister(fd)
                del self._by_fd[fd]

    def _take(self) -> list[Any] | None:
        """One answer of each runner, once all have given theirs."""
        self._drain(time.monotonic())
        if not all(runner.replies for runner in self._runners):
            failed = any(isinstance(reply, Failed) for runner in self._runners for reply in runner.replies)
            if failed and self._may_give_up:
                self._may_give_up = False
                self.tell(GiveUp())  # nobody wants what the others make
            return None
        return [runner.replies.pop(0) for runner in self._runners]

    def _wait_for_answers(self, deadline: float, late: str) -> list[Any]:
        while (answers := self._take()) is None:
            left = deadline - time.monotonic()
            for runner in self._runners:
                if runner.lost:
                    raise loss_of(runner)
                if left <= 0 and not runner.replies:
                    raise SetupTimeout(f"{runner.place} {late}; it was killed")
            self._poller.poll(1000 * max(0.0, left))
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error()
        return answers
