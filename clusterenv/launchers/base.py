"""What a launcher is: it makes a request that can be printed, submits it, polls it and cancels it."""

from __future__ import annotations

import enum
import signal as signals
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from clusterenv.worker_start import PRELOAD_VARIABLE

LOG_END_BYTES = 16 * 1024
"""A log is quoted from its last bytes only, so that a worker with a huge log costs no more than any other."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What numeric libraries read, when they load, for the number of their threads."""

WORKER_DEFAULTS: Mapping[str, str] = {
    # A runner for each core: with threads of their own they would only take the cores from each other.
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    # A worker that dies by a signal must have its last words in the log: nothing stays in a buffer, and a
    # segmentation fault leaves a traceback.
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}
"""Environment variables of every worker, where the user has not set them."""


def worker_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to a worker's environment. A user's OMP_NUM_THREADS speaks for the other libraries too.

    Torch is most of what a launch waits for: where the head does without it, workers import it with the first
    agent that needs it.
    """
    chosen = {*environ, *(THREAD_VARIABLES if "OMP_NUM_THREADS" in environ else ())}
    defaults = {**WORKER_DEFAULTS, PRELOAD_VARIABLE: "torch" if "torch" in sys.modules else ""}
    return {name: value for name, value in defaults.items() if name not in chosen}


INCARNATION_VARIABLE = "CLUSTERENV_INCARNATION"
"""Tells a worker which of those of its rank it is, from 0."""


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What starts one worker."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment, or replacing what is there."""
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Likewise, but the values appear in no script, log or message."""

    def incarnated(self, incarnation: int) -> WorkerCommand:
        """What starts a replacement of the worker."""
        return replace(self, env={**self.env, INCARNATION_VARIABLE: str(incarnation)})


class WorkerState(enum.Enum):
    """Where a worker's process or job is, in the words of every launcher."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What the launcher knows about one worker; EXITED is exit code 0, FAILED any other end."""

    rank: int
    state: WorkerState
    pid: int | None
    host: str | None
    job_id: str | None
    exit_code: int | None
    signal: int | None
    log_path: Path
    detail: str = ""
    """What else the launcher knows, such as "Slurm job 12 is PENDING (Resources)"."""

    @property
    def ending(self) -> str:
        """How it ended, as the end of a sentence that begins with "the worker"."""
        if self.signal is not None:
            hint = ", often sent when memory runs out" if self.signal == signals.SIGKILL else ""
            return f"was ended by signal {self.signal} ({_signal_name(self.signal)}{hint})"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        told = "has not started" if self.state is WorkerState.PENDING else f"is {self.state.value}"
        return f"{told}: {self.detail}" if self.detail else told


class Request(Protocol):
    """Everything that is about to be started, as a value."""

    def script(self) -> str:
        """The request as text that a person can read and, but for secrets, run."""


class Launcher(Protocol):
    """Starts workers somewhere and makes sure that they end."""

    def request(self) -> Request:
        """What `submit` would start; asking has no effect."""

    def submit(self) -> None:
        """Start every worker, or none.

        Raises:
            LaunchError: if one could not be started, or if this launcher was used before.
        """

    def poll(self) -> list[WorkerStatus]:
        """The status of every worker, by rank."""

    def log_tail(self, rank: int, lines: int = 20) -> str:
        """The last `lines` lines that worker `rank` has written, without a newline at the end."""

    def respawn(self, rank: int, incarnation: int) -> None:
        """End what is left of one worker and start a replacement under the same rank.

        Raises:
            LaunchError: if it could not be started, or `cancel` was called.
        """

    def cancel(self, timeout_s: float) -> None:
        """End every worker: those that do not follow the request to end within `timeout_s` are killed.

        May be called at any time, from any thread and any number of times.
        """


@runtime_checkable
class AsksAround(Protocol):
    """A launcher that has to ask somebody what became of its workers, and does so only now and then."""

    def look_soon(self) -> None:
        """Ask within moments, since something has happened that the answer may explain."""


def end_of_log(path: Path, lines: int, most_bytes: int = LOG_END_BYTES) -> str:
    """The last `lines` lines of the file at `path`, in its last bytes; nothing if it cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - most_bytes))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:  # a real-time signal
        return "no name"
