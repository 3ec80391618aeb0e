"""Processor seconds and memory of this process, and of those it has started."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import psutil

LOOK_EVERY_S: Final = 5.0
LARGEST_SHARE: Final = 0.01
"""Of the time that may be spent on looking, since memory is slow to count on some systems."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes have used until they were looked at."""

    cpu_s: float = 0.0
    """Processor seconds so far, of those that live."""
    memory_bytes: int = 0
    """Memory now; a page that k processes share counts 1/k for each (PSS), so that sums are right."""


class UsageWatch:
    """Looks at this process now and then, seldom enough to cost nothing."""

    def __init__(self, *, descendants: bool) -> None:
        """Look at this process, and with `descendants` at all that come from it."""
        self._own = psutil.Process()
        self._descendants = descendants
        self._next_look = 0.0

    def look(self) -> Usage:
        """The use now.

        Raises:
            OSError: if it cannot be seen, as where no descriptor is left.
        """
        began = time.monotonic()
        processes = [self._own]
        if self._descendants:
            processes += self._own.children(recursive=True)
        seen = [usage for usage in map(_usage, processes) if usage is not None]
        ended = time.monotonic()
        self._next_look = ended + max(LOOK_EVERY_S, (ended - began) / LARGEST_SHARE)
        return Usage(sum(usage.cpu_s for usage in seen), sum(usage.memory_bytes for usage in seen))

    def look_if_due(self) -> Usage | None:
        """The use now; None if the last look was a short time ago, or nothing can be seen."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        try:
            return self.look()
        except OSError:
            self._next_look = now + LOOK_EVERY_S
            return None


def _usage(process: psutil.Process) -> Usage | None:
    """The use of one process; None if it has ended or is not ours to look at."""
    try:
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_full_info()
    except psutil.Error:
        return None
    return Usage(times.user + times.system, getattr(memory, "pss", memory.rss))
