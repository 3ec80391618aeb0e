"""A subject of `bench throughput` in processes of its own, all of which are gone once it is closed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import Any

import psutil

from clusterenv.benchmark.contenders import Shape
from clusterenv.benchmark.subjects import SUBJECTS
from clusterenv.errors import ClusterEnvError
from clusterenv.launchers.base import THREAD_VARIABLES

TOKEN_VARIABLE = "CLUSTERENV_BENCHMARK_SUBJECT"
"""Marks all processes of a subject, whoever their parent is."""
_OURS = secrets.token_hex(16)
"""How the marks of all subjects of this process begin."""
LEAVE_S = 10.0
"""How long a subject may take to end by itself."""
GONE_S = 10.0
"""How long the system may take to end what was killed."""


class SubjectFailed(ClusterEnvError):
    """A subject cannot be measured; the message is the reason."""


class SubjectMissing(ClusterEnvError):
    """What a subject or its task needs is not installed; the message is the command that installs it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one window of time has shown."""

    steps_per_s: float
    cpu_us_per_step: float
    """Processor time of all processes of the subject."""


class SubjectProcess:
    """One subject on one task, ready to be measured; it waits meanwhile."""

    def __init__(self, name: str, task: str, shape: Shape, *, python: str, patience_s: float) -> None:
        """Start it with the interpreter `python` and return once it has made its first steps.

        Raises:
            SubjectMissing: if a package is not there.
            SubjectFailed: if it raises, or is not ready within `patience_s`.
        """
        self._patience_s = patience_s
        self._spins = SUBJECTS[name].spins
        self._token = f"{_OURS}-{secrets.token_hex(4)}"
        ours, theirs = socket.socketpair()
        self._pipe: Connection[Any, Any] = Connection(ours.detach())
        self._log = TemporaryFile()  # noqa: SIM115 - `close` closes it
        with theirs:
            self._process = self._start(python, theirs.fileno())
        try:
            self._tell({"subject": name, "task": task, "shape": asdict(shape)})
            self.versions: dict[str, str] = self._answer(patience_s)["versions"]
            """Of the packages that it runs with."""
        except BaseException:
            self.close()
            raise
        self._rest()

    def _start(self, python: str, fd: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [python, "-m", "clusterenv.benchmark.subject_child", str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=self._environ(python),
                pass_fds=[fd],
                start_new_session=True,
            )
        except OSError as error:
            self._pipe.close()
            self._log.close()
            raise SubjectFailed(f"{python} cannot be run: {error.strerror}") from error

    def _environ(self, python: str) -> dict[str, str]:
        """Ours, with one thread for numeric libraries; our interpreter finds modules where we do."""
        environ = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), TOKEN_VARIABLE: self._token}
        if python == sys.executable:
            environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        return environ

    def measure(self, seconds: float) -> Sample:
        """What a window of about so many seconds shows.

        Raises:
            SubjectFailed: if it raises, dies, makes no step, or takes `patience_s` longer.
        """
        self._go_on()
        before_s = self._cpu_s()
        began = time.monotonic()
        self._tell({"seconds": seconds})
        rate = self._answer(seconds + self._patience_s)["rate"]
        took_s = time.monotonic() - began
        cpu_s = self._cpu_s() - before_s
        self._rest()
        if not rate:
            raise SubjectFailed(f"not a step in {seconds:g} s{self._last_words()}")
        return Sample(rate, 1e6 * cpu_s / (rate * took_s))

    def close(self) -> None:
        """End it, in good order if it does so within LEAVE_S; none of its processes is left."""
        self._go_on()
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S if self._process.poll() is None else 0)
        _end_marked(self._token)
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _tell(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self._pipe.send_bytes(json.dumps(order).encode())

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        if not self._pipe.poll(timeout_s):
            raise SubjectFailed(f"no answer within {timeout_s:g} s{self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise SubjectFailed(f"its process died{self._last_words()}") from None
        if "missing" in answer:
            raise SubjectMissing(answer["missing"])
        if "failed" in answer:
            raise SubjectFailed(answer["failed"])
        return answer

    def _last_words(self) -> str:
        """The last line that it wrote, if any."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip()]
        return f"; its last words: {told[-1][:200]}" if told else ""

    def _rest(self) -> None:
        if self._spins:
            self._signal(signal.SIGSTOP)

    def _go_on(self) -> None:
        if self._spins:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in _marked(self._token):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _cpu_s(self) -> float:
        """Processor time that its living processes have used."""
        total = 0.0
        for process in _marked(self._token):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


def end_all() -> None:
    """No subject of this process is left, not even one that a signal has found half started."""
    _end_marked(_OURS)


def _end_marked(token: str) -> None:
    end = time.monotonic() + GONE_S
    while (left := list(_marked(token))) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


def _marked(token: str) -> Iterator[psutil.Process]:
    """The processes whose mark begins with `token`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(TOKEN_VARIABLE, "").startswith(token):
                yield process
