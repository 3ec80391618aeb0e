"""Several processes that do the same thing over one window of time, and use no core while they wait."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from clusterenv.benchmark.twins import Advance
from clusterenv.errors import DeadlineError, EnvError
from clusterenv.launchers.base import THREAD_VARIABLES

READY_S = 120.0
"""How long a process may take to import its libraries and build its environments."""
LATE_S = 60.0
"""How long after the end of a window a step that was begun in it may last."""
HEAD_START_S = 0.05
"""From the order to start until the start, so that all processes have read it."""
WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    seconds: float


class Processes:
    """Fresh processes, each of which makes an `Advance` once and then runs it in every window."""

    def __init__(self, make: Callable[..., Advance], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Start a process for each tuple of arguments of `make` and wait until all are ready.

        Raises:
            EnvError: if `make` raises in one of them.
            DeadlineError: if one is not ready in time.
        """
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[SpawnProcess] = []
        try:
            with _single_threaded():
                for values in arguments:
                    self._start(make, values)
            self._answers(READY_S)
        except BaseException:
            self.close()
            raise

    def _start(self, make: Callable[..., Advance], arguments: tuple[Any, ...]) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipes.append(ours)
        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        process.start()
        self._processes.append(process)
        theirs.close()

    def measure(self, seconds: float) -> float:
        """Environment steps per second, summed over the processes, in a window that begins now."""
        window = _Window(time.monotonic() + HEAD_START_S, seconds)
        for pipe in self._pipes:
            pipe.send(window)
        return sum(self._answers(HEAD_START_S + seconds + LATE_S))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _answers(self, timeout_s: float) -> list[float]:
        deadline = time.monotonic() + timeout_s
        rates = []
        for pipe in self._pipes:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise DeadlineError(f"a process of the benchmark did not answer within {timeout_s:g} s")
            try:
                answer = pipe.recv()
            except EOFError:
                raise EnvError("a process of the benchmark has died") from None
            if isinstance(answer, _Failure):
                raise EnvError(answer.message, remote_traceback=answer.traceback)
            rates.append(answer)
        return rates


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    traceback: str


def _serve(pipe: Connection[Any, Any], make: Callable[..., Advance], arguments: tuple[Any, ...]) -> None:
    """The life of one process: make, warm up, then a window for each order, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
    import torch

    torch.set_num_threads(1)
    try:
        advance = make(*arguments)
        _run(advance, _Window(time.monotonic(), WARM_UP_S))
        pipe.send(0.0)
        while True:
            pipe.send(_run(advance, pipe.recv()))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 (whatever an environment raises is told to the parent)
        pipe.send(_Failure(f"{type(error).__name__}: {error}", traceback.format_exc()))


def _run(advance: Advance, window: _Window) -> float:
    """Environment steps per second over the window."""
    end = window.start_s + window.seconds
    while (wait_s := window.start_s - time.monotonic()) > 0:
        time.sleep(wait_s)
    steps = 0
    start = now = time.monotonic()
    while now < end:
        steps += advance()
        now = time.monotonic()
    return steps / (now - start) if steps else 0.0


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes that start inside have numeric libraries of one thread."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
