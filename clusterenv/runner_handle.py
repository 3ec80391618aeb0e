"""A runner's process, as the worker that started it knows it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

from clusterenv.commands import RunnerSetup
from clusterenv.errors import RunnerLost
from clusterenv.lending import Borrower
from clusterenv.lifetime import describe_exit, kill_tree
from clusterenv.runner_process import RUNNER, Answer, Offer, Tick, receive, serve

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

EXIT_S: Final = 1.0
"""Seconds between the end of a runner's pipe and that of its process, at most."""


@dataclass(slots=True)
class RunnerHandle:
    """What the worker knows of one runner."""

    number: int
    process: ForkServerProcess
    connection: Connection
    place: str
    """For messages: which runner, with which environments."""
    replies: list[Any] = field(default_factory=list)
    asked: int = 0
    """How often it was asked for a step through shared memory, when `check` last looked."""
    progress: int = -1
    progress_at: float = 0.0
    agent_works: bool = False
    lost: bool = False
    """The process has ended or its pipe has."""
    borrower: Borrower = field(default_factory=lambda: Borrower(borrows=True))
    answers: list[Answer] = field(default_factory=list)
    """To what it has offered; not yet sent."""

    def take(self, now: float) -> bool:
        """Whether there was a message to take, and not the end of the pipe."""
        try:
            message = receive(self.connection, self.borrower)
        except (EOFError, OSError):
            return False
        if isinstance(message, Offer):
            mapped = self.borrower.accepts(RUNNER, message.segment)
            self.answers.append(Answer(message.segment.nonce, mapped))
            return True
        if not isinstance(message, Tick):
            self.replies.append(message)
            return True
        self.agent_works = message.agent_works
        if message.progress != self.progress:
            self.progress, self.progress_at = message.progress, now
        return True

    def kill(self) -> None:
        """The process and all that it started have been killed, if it was alive."""
        if self.process.is_alive():
            kill_tree(self.process.pid or 0)


def loss_of(runner: RunnerHandle) -> RunnerLost:
    """How the runner ended; it has ended now."""
    runner.process.join(EXIT_S)  # a closed pipe is seen before the exit that closed it
    code = runner.process.exitcode
    if code is None:
        runner.kill()
        return RunnerLost(f"{runner.place} closed its pipe; it was killed")
    return RunnerLost(f"{runner.place} ended: {describe_exit(code)}", exit_code=code)


def wait_for_ends(runners: Sequence[RunnerHandle], within_s: float) -> None:
    """Return once all processes have ended, or the time is up."""
    deadline = time.monotonic() + within_s
    sentinels: list[Any] = [runner.process.sentinel for runner in runners]
    while sentinels and (left := deadline - time.monotonic()) > 0:
        for sentinel in wait(sentinels, left):
            sentinels.remove(sentinel)


def start_runner(number: int, setup: RunnerSetup) -> RunnerHandle:
    """A new process that builds its environments."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=True)
    with theirs:
        process = context.Process(target=serve, args=(theirs, setup), name=f"clusterenv-runner-{number}")
        process.start()
    last = setup.first_env + setup.num_envs - 1
    place = f"runner {number} (pid {process.pid}, environments {setup.first_env} to {last})"
    return RunnerHandle(
        number=number, process=process, connection=ours, place=place, progress_at=time.monotonic()
    )
