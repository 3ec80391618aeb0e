"""Workers as child processes of the head, on its own machine."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import LocalConfig
from clusterenv.launchers.base import (
    WorkerCommand,
    WorkerState,
    WorkerStatus,
    end_of_log,
    worker_defaults,
)

AT_EXIT_S = 2.0
"""How long workers may take to end when the interpreter exits without a `cancel`."""
KILLED_WITHIN_S = 2.0
"""How long the kernel may take to end a killed process before the wait for it is given up."""
LOOK_EVERY_S = 0.01

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """One worker to be started: its command with the whole of what is added to the environment."""

    rank: int
    command: WorkerCommand
    cpus: tuple[int, ...]
    log_path: Path

    def script(self) -> str:
        """The shell line that would start it; secrets are left out."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.command.env.items()]
        words += [f"{name}='<secret>'" for name in self.command.secret_env]
        words += ["taskset", "--cpu-list", ",".join(map(str, self.cpus)), shlex.join(self.command.argv)]
        return " ".join([*words, ">>", shlex.quote(str(self.log_path)), "2>&1"])


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """The workers to be started, by rank."""

    processes: tuple[LocalProcess, ...]

    @classmethod
    def make(
        cls,
        config: LocalConfig,
        command_for: Callable[[int], WorkerCommand],
        *,
        run_dir: Path,
        granted_cpus: Sequence[int],
        environ: Mapping[str, str],
    ) -> LocalRequest:
        """What `config` asks for, given the cores and the environment of the head."""
        shares = share_cpus(granted_cpus, config.nodes, config.cpus_per_node)
        defaults = worker_defaults(environ)
        return cls(
            tuple(
                LocalProcess(
                    rank=rank,
                    command=WorkerCommand(
                        argv=command.argv, env={**defaults, **command.env}, secret_env=command.secret_env
                    ),
                    cpus=cpus,
                    log_path=run_dir / f"worker-{rank}.log",
                )
                for rank, cpus in enumerate(shares)
                for command in (command_for(rank),)
            )
        )

    def script(self) -> str:
        """One shell line for each worker."""
        return "".join(f"{process.script()} &\n" for process in self.processes)


def share_cpus(granted: Sequence[int], nodes: int, cpus_per_node: int | None) -> list[tuple[int, ...]]:
    """The cores of each worker: apart where there are enough of `granted`, else used in turn.

    Without `cpus_per_node` all cores are dealt out, the first workers having one more than the others if need
    be. With it, workers take that many each, from the first granted core on.
    """
    count = len(granted)
    if cpus_per_node is None and nodes <= count:
        least, more = divmod(count, nodes)
        bounds = [rank * least + min(rank, more) for rank in range(nodes + 1)]
        return [tuple(granted[bounds[rank] : bounds[rank + 1]]) for rank in range(nodes)]
    width = min(cpus_per_node or 1, count)
    return [tuple(granted[(rank * width + i) % count] for i in range(width)) for rank in range(nodes)]


class LocalLauncher:
    """Starts each worker in a session of its own, so that Ctrl-C reaches the head alone; ends the session."""

    def __init__(self, request: LocalRequest) -> None:
        """Be ready to start `request`; nothing runs yet."""
        self._request = request
        self._host = socket.gethostname()
        self._children: list[_Child] = []
        self._lock = threading.RLock()  # a signal handler may cancel while this thread is inside
        self._used = False
        self._cancelled = False
        self._owner_pid = os.getpid()

    def request(self) -> LocalRequest:
        """What `submit` would start; asking has no effect."""
        return self._request

    def submit(self) -> None:
        """Start every worker, or none.

        Raises:
            LaunchError: if one could not be started, or if this launcher was used before.
        """
        with self._lock:
            if self._used:
                raise LaunchError("this launcher has started or cancelled its workers before; make a new one")
            self._used = True
            atexit.register(self._cancel_at_exit)
            try:
                for process in self._request.processes:
                    self._children.append(_Child(_start(process)))
            except BaseException:
                self.cancel(timeout_s=0.0)
                raise

    def respawn(self, rank: int, incarnation: int) -> None:
        """End what is left of one worker and start a replacement, which writes to the same log.

        Raises:
            LaunchError: if it could not be started, or `cancel` was called.
        """
        process = self._request.processes[rank]
        with self._lock:
            if self._cancelled:
                raise LaunchError("the workers of this launcher were cancelled")
            old = self._children[rank]
            old.kill()
            deadline = time.monotonic() + KILLED_WITHIN_S
            while not old.has_ended() and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY_S)
            command = process.command.incarnated(incarnation)
            self._children[rank] = _Child(_start(replace(process, command=command)))

    def poll(self) -> list[WorkerStatus]:
        """The status of every worker, by rank."""
        with self._lock:
            return [self._status(process) for process in self._request.processes]

    def log_tail(self, rank: int, lines: int = 20) -> str:
        """The last `lines` lines that worker `rank` has written, without a newline at the end."""
        return end_of_log(self._request.processes[rank].log_path, lines)

    def cancel(self, timeout_s: float) -> None:
        """End every worker: those that do not follow SIGTERM within `timeout_s` are killed.

        May be called at any time, from any thread and any number of times. What the workers themselves have
        started ends with them, unless it has left their session.
        """
        if os.getpid() != self._owner_pid:  # a fork of the head: the workers are not its own
            return
        self._used = self._cancelled = True
        try:
            self._each(_Child.terminate)
            self._wait(timeout_s)
        finally:  # also when a second Ctrl-C ends the wait
            self._each(_Child.kill)
            self._wait(KILLED_WITHIN_S)
            atexit.unregister(self._cancel_at_exit)
        left = [child.process.pid for child in self._children if not child.has_ended()]
        if left:
            _log.warning("workers with pids %s were killed but have not ended", left)

    def _cancel_at_exit(self) -> None:
        self.cancel(AT_EXIT_S)

    def _each(self, action: Callable[[_Child], None]) -> None:
        with self._lock:
            for child in self._children:
                action(child)

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._all_ended() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)

    def _all_ended(self) -> bool:
        with self._lock:
            return all([child.has_ended() for child in self._children])

    def _status(self, process: LocalProcess) -> WorkerStatus:
        pid, code, state = None, None, WorkerState.PENDING
        if process.rank < len(self._children):
            child = self._children[process.rank]
            pid, state = child.process.pid, WorkerState.RUNNING
            if child.has_ended():
                code = child.process.returncode
                state = WorkerState.FAILED if code else WorkerState.EXITED
        return WorkerStatus(
            rank=process.rank,
            state=state,
            pid=pid,
            host=self._host,
            job_id=None,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            log_path=process.log_path,
        )


class _Child:
    """A started worker; waited for only after its session was killed, since then its pid may be another's."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def has_ended(self) -> bool:
        """Whether it has; if so, nothing of its session runs any more."""
        if self.process.returncode is not None:
            return True
        try:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        except ChildProcessError:  # this process ignores SIGCHLD, so that the kernel has waited for it
            return self.process.poll() is not None
        self.kill()
        self.process.wait()
        return True

    def terminate(self) -> None:
        """Ask the worker to end; it ends its own children."""
        if not self.has_ended():
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the whole session of the worker, unless that was done."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _start(process: LocalProcess) -> subprocess.Popen[bytes]:
    command = process.command
    try:
        log = os.open(process.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(log, os.fsencode(f"$ {process.script()}\n"))
            with _on_cpus(process.cpus):
                return subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **command.env, **command.secret_env},
                    start_new_session=True,
                )
        finally:
            os.close(log)
    except OSError as error:
        raise LaunchError(
            f"worker {process.rank} could not be started: {error}; its command is {process.script()}"
        ) from error


@contextmanager
def _on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Let this thread, and so the processes that it starts, run on `cpus` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
