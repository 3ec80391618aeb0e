"""Workers as steps of the allocation that the head runs in: an srun for each, so that each is replaceable."""

from __future__ import annotations

import atexit
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterenv.errors import LaunchError
from clusterenv.launchers.base import WorkerState, WorkerStatus, end_of_log
from clusterenv.launchers.slurm_allocation import StepsRequest
from clusterenv.launchers.slurm_commands import Slurm, clean_environment
from clusterenv.launchers.slurm_states import shell_status

AT_EXIT_S = 2.0
"""How long steps may take to end when the interpreter exits without a `cancel`."""
KILLED_WITHIN_S = 5.0
"""How long srun may take to end after it was killed before the wait for it is given up."""
LOOK_EVERY_S = 0.02
MOST_OF_SRUN = 3
"""Lines that srun adds at most after the end of a task."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """One srun, and where in the worker's log its output begins."""

    process: subprocess.Popen[bytes]
    log_from: int
    step_id: str | None = None
    host: str | None = None


class StepsLauncher:
    """Starts each worker as a step; ends it by a signal through Slurm, since srun would kill it at once."""

    def __init__(self, request: StepsRequest, environ: Mapping[str, str]) -> None:
        """Be ready to start `request`; nothing runs yet."""
        self._request = request
        self._environ = dict(environ)
        self._slurm = Slurm(clean_environment(environ))
        self._steps: dict[int, _Step] = {}
        self._old: list[_Step] = []
        self._moves: dict[int, int] = {}
        self._lock = threading.RLock()  # a signal handler may cancel while this thread is inside
        self._used = False
        self._cancelled = False
        self._owner_pid = os.getpid()

    def request(self) -> StepsRequest:
        """What `submit` would start; asking has no effect."""
        return self._request

    def submit(self) -> None:
        """Start a step for every worker, or none.

        Raises:
            LaunchError: if srun could not be started, or if this launcher was used before.
        """
        with self._lock:
            if self._used:
                raise LaunchError("this launcher has started or cancelled its workers before; make a new one")
            self._used = True
            atexit.register(self._cancel_at_exit)
            try:
                for rank in range(len(self._request.commands)):
                    self._steps[rank] = self._start(rank, 0)
            except BaseException:
                self.cancel(timeout_s=0.0)
                raise

    def respawn(self, rank: int, incarnation: int) -> None:
        """Start the worker of `rank` again as `incarnation`; what is left of the old one is killed.

        On its own node if it has ended there; on the next one if Slurm does not know that it has, since then
        its node is probably lost.

        Raises:
            LaunchError: if srun could not be started, or the workers were cancelled.
        """
        with self._lock:
            if self._cancelled:
                raise LaunchError("the workers were cancelled; none is started again")
            old = self._steps[rank]
            if old.process.poll() is None:
                self._moves[rank] = self._moves.get(rank, 0) + 1
                self._old.append(old)
                old.process.terminate()  # srun kills the task
            self._steps[rank] = self._start(rank, incarnation)

    def poll(self) -> list[WorkerStatus]:
        """The status of every worker, by rank; Slurm is not asked."""
        with self._lock:
            return [self._status(rank) for rank in range(len(self._request.commands))]

    def log_tail(self, rank: int, lines: int = 20) -> str:
        """The last `lines` lines that worker `rank` has written, or its srun if it could not start it."""
        said = end_of_log(self._request.log_path(rank), lines + MOST_OF_SRUN).splitlines()
        while said and re.match(r"srun: error: \S+: task 0: ", said[-1]):  # how it ended, which `poll` tells
            said.pop()
        return "\n".join(said[-lines:])

    def cancel(self, timeout_s: float) -> None:
        """End every step: those that do not follow SIGTERM within `timeout_s` are killed.

        May be called at any time, from any thread and any number of times.
        """
        if os.getpid() != self._owner_pid:  # a fork of the head: the steps are not its own
            return
        self._used = self._cancelled = True
        try:
            self._ask_to_leave(timeout_s)
        finally:  # also when a second Ctrl-C ends the wait
            for step in self._running():
                step.process.terminate()  # srun kills its tasks
            self._wait(KILLED_WITHIN_S)
            for step in self._running():
                step.process.kill()
            self._wait(KILLED_WITHIN_S)
            atexit.unregister(self._cancel_at_exit)

    # ----------------------------------------------------------------------------------------------------

    def _start(self, rank: int, incarnation: int) -> _Step:
        request, moves = self._request, self._moves.get(rank, 0)
        argv, log_path = request.argv(rank, moves), request.log_path(rank)
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(log, os.fsencode(f"$ {request.line(rank, incarnation, moves)}\n"))
                begin = os.lseek(log, 0, os.SEEK_END)
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=request.environment(rank, incarnation, self._environ),
                    start_new_session=True,  # Ctrl-C reaches the head alone
                )
            finally:
                os.close(log)
        except OSError as error:
            raise LaunchError(
                f"worker {rank} could not be started: {error}; its command is {argv}"
            ) from error
        return _Step(process, begin)

    def _status(self, rank: int) -> WorkerStatus:
        step = self._steps.get(rank)
        state, code, number, detail = WorkerState.PENDING, None, None, "not started"
        step_id = None
        if step is not None:
            step_id = self._step_id(rank, step)
            returned = step.process.poll()
            if returned is not None:
                code, number = (None, -returned) if returned < 0 else shell_status(returned)
                state = WorkerState.FAILED if returned else WorkerState.EXITED
                detail = f"step {step_id}" if step_id else "srun could not start a step"
            elif step_id is not None:
                state, detail = WorkerState.RUNNING, f"step {step_id}"
            else:
                said = end_of_log(self._request.log_path(rank), 1)
                detail = (
                    f"srun waits: {said}" if said.startswith("srun:") else "srun has not started a step yet"
                )
        return WorkerStatus(
            rank=rank,
            state=state,
            pid=None,
            host=None if step is None else step.host,
            job_id=step_id or self._request.allocation.job_id,
            exit_code=code,
            signal=number,
            log_path=self._request.log_path(rank),
            detail=detail,
        )

    def _step_id(self, rank: int, step: _Step) -> str | None:
        """The number of a step, which it says at its birth; None before."""
        if step.step_id is None:
            with suppress(FileNotFoundError), self._request.log_path(rank).open("rb") as log:
                log.seek(step.log_from)
                found = re.search(rb"^== step (\d+\.\d+) on (\S+),", log.read(4096), re.MULTILINE)
                if found:
                    step.step_id, step.host = found[1].decode(), found[2].decode()
        return step.step_id

    def _cancel_at_exit(self) -> None:
        self.cancel(AT_EXIT_S)

    def _running(self) -> list[_Step]:
        with self._lock:
            every = [*self._steps.values(), *self._old]
        return [step for step in every if step.process.poll() is None]

    def _ask_to_leave(self, timeout_s: float) -> None:
        """Send SIGTERM to the tasks of all steps, also of those that only begin now, and wait for the end."""
        deadline = time.monotonic() + timeout_s
        told: set[str] = set()
        while (running := self._running()) and time.monotonic() < deadline:
            for rank, step in list(self._steps.items()):
                self._step_id(rank, step)
            begun = {step.step_id for step in running if step.step_id is not None} - told
            if begun:
                self._tell(sorted(begun), deadline - time.monotonic())
                told |= begun
            time.sleep(LOOK_EVERY_S)

    def _tell(self, step_ids: Sequence[str], timeout_s: float) -> None:
        try:
            self._slurm.signal(step_ids, "TERM", timeout_s=timeout_s)
        except LaunchError as error:
            _log.warning("steps could not be told to end, so they will be killed: %s", error)

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._running() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
