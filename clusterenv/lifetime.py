"""Processes that do not outlive the one that needs them, and what is said of those that ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from types import FrameType
from typing import Final

import psutil

PR_SET_PDEATHSIG: Final = 1
MOST_DESCRIPTORS: Final = 1 << 16
OUTLIVED: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def end_with_parent() -> None:
    """The kernel kills this process as soon as the thread that started it ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def outlive_signals() -> None:
    """The signals of a job's end do nothing to this process, whose parent ends it.

    By handlers and not by SIG_IGN, which the programs that environments start would inherit.
    """
    for number in OUTLIVED:
        signal.signal(number, _heard)


def let_forks_end() -> None:
    """What is forked from here ends by signals again, as `Process.terminate` and `Pool` need it."""
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_end_by_signals)


def _heard(_: int, __: FrameType | None) -> None:
    """Do nothing."""


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, OUTLIVED)  # one that comes before the child is ready is not lost


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OUTLIVED)


def _end_by_signals() -> None:
    for number in OUTLIVED:
        if signal.getsignal(number) is _heard:  # and not a handler of the environment's own
            signal.signal(number, signal.SIG_DFL)
    _let_through()


def kill_tree(pid: int) -> None:
    """The process `pid` and all that descend from it have been sent SIGKILL."""
    try:
        process = psutil.Process(pid)
        process.suspend()  # so that it starts no more children while they are listed
        descendants = [child.pid for child in process.children(recursive=True)]
    except psutil.Error:
        descendants = []
    for victim in (pid, *descendants):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """The words for an exit code, which is negative for a signal, as in `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def raise_descriptor_limit() -> None:
    """This process may open as many descriptors as its hard limit grants, up to `MOST_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
