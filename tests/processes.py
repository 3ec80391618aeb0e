"""Waiting for things that processes do, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil


def wait_until(done: Callable[[], object], within_s: float = 30.0) -> None:
    """Return once `done()` is true; fail after `within_s`."""
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, f"not done within {within_s} s"
        time.sleep(0.01)


def alive(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that still run; a zombie, which nobody has asked about yet, does not."""
    return [pid for pid in pids if _runs(pid)]


def running(words: list[str]) -> list[int]:
    """The processes whose command line is `words`."""
    found = psutil.process_iter(["pid", "cmdline"])
    return alive(each.info["pid"] for each in found if each.info["cmdline"] == words)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
