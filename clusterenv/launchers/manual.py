"""Workers that somebody else starts: the command lines are shown, and the head waits."""

from __future__ import annotations

import shlex
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterenv.errors import LaunchError
from clusterenv.launchers.base import WorkerCommand, WorkerState, WorkerStatus, end_of_log


@dataclass(frozen=True, slots=True)
class ManualRequest:
    """The command lines of the workers, by rank."""

    commands: tuple[WorkerCommand, ...]
    run_dir: Path

    def line(self, rank: int, incarnation: int = 0) -> str:
        """What starts the worker of `rank` on any host that sees the run's folder."""
        command = self.commands[rank]
        words = [f"{name}={shlex.quote(value)}" for name, value in command.env.items()]
        again = ("--incarnation", str(incarnation)) if incarnation else ()
        return " ".join([*words, shlex.join([*command.argv, *again])])

    def script(self) -> str:
        """One line for each worker."""
        return "".join(f"{self.line(rank)}\n" for rank in range(len(self.commands)))


class ManualLauncher:
    """Shows what to start and knows nothing of what becomes of it; the head hears of workers by the wire."""

    def __init__(self, request: ManualRequest, show: Callable[[str], object] | None = None) -> None:
        """Be ready to `show` the lines, on standard error unless given."""
        self._request = request
        self._show = show
        self._lock = threading.Lock()
        self._used = False
        self._cancelled = False
        self._statuses = self._all(WorkerState.PENDING)

    def request(self) -> ManualRequest:
        """What `submit` would show; asking has no effect."""
        return self._request

    def submit(self) -> None:
        """Show the command line of every worker.

        Raises:
            LaunchError: if this launcher was used before.
        """
        with self._lock:
            if self._used:
                raise LaunchError("this launcher has started or cancelled its workers before; make a new one")
            self._used = True
        count = len(self._request.commands)
        head = socket.gethostname()
        self._say(f"The head on {head} waits for {count} worker(s); start each on its host:\n")
        self._say(self._request.script())

    def respawn(self, rank: int, incarnation: int) -> None:
        """Show how to start the worker of `rank` again.

        Raises:
            LaunchError: if the workers were cancelled.
        """
        if self._cancelled:
            raise LaunchError("the workers were cancelled; none is started again")
        self._say(f"Worker {rank} is lost; start it again:\n{self._request.line(rank, incarnation)}\n")

    def poll(self) -> list[WorkerStatus]:
        """Every worker is PENDING, since somebody may start it at any time, until `cancel`."""
        return list(self._statuses)

    def _all(self, state: WorkerState) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(
                rank=rank,
                state=state,
                pid=None,
                host=None,
                job_id=None,
                exit_code=None,
                signal=None,
                log_path=self._log_path(rank),
                detail="to be started by hand",
            )
            for rank in range(len(self._request.commands))
        )

    def log_tail(self, rank: int, lines: int = 20) -> str:
        """The end of `worker-<rank>.log` in the run's folder, if somebody writes it."""
        return end_of_log(self._log_path(rank), lines)

    def cancel(self, timeout_s: float) -> None:
        """Expect no worker any more; those that run end when the head says goodbye or falls silent."""
        self._used = self._cancelled = True
        self._statuses = self._all(WorkerState.EXITED)

    def _log_path(self, rank: int) -> Path:
        return self._request.run_dir / f"worker-{rank}.log"

    def _say(self, text: str) -> None:
        if self._show is not None:
            self._show(text)
        else:
            sys.stderr.write(text)
            sys.stderr.flush()
