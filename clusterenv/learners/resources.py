"""What a run takes of processors and memory, for its metrics: the learner, and all workers together."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import psutil
import torch

from clusterenv.usage import UsageWatch

RATE_OVER_S: Final = 1.0
NEARLY_FULL: Final = 0.95

_log = logging.getLogger(__name__)


class Resources:
    """Looks at the learner's process, reads what workers tell of theirs, and keeps the greatest memory."""

    def __init__(self) -> None:
        """Count from now on."""
        self._watch = UsageWatch(descendants=False)
        self._cpu_before_s = -time.process_time()
        self._learner_memory = self._learner_peak = 0
        self._workers_memory = self._workers_peak = self._peak = 0
        self._workers_cpu_s = self._workers_cpu_before_s = 0.0
        self._learner_rate, self._workers_rate = _Rate(), _Rate()
        self._warned = False

    def row(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """What is known now; `stats` is that of `ClusterEnv`."""
        usage = self._watch.look_if_due()
        if usage is not None:
            self._learner_memory = usage.memory_bytes
            self._warn_when_full()
        self._workers_memory = sum(worker["memory_bytes"] for worker in stats["workers"])
        self._workers_cpu_s = sum(worker["cpu_s"] for worker in stats["workers"])
        self._learner_peak = max(self._learner_peak, self._learner_memory)
        self._workers_peak = max(self._workers_peak, self._workers_memory)
        self._peak = max(self._peak, self._learner_memory + self._workers_memory)
        return self.totals() | {
            "learner_cpu_percent": self._learner_rate(time.process_time()),
            "workers_cpu_percent": self._workers_rate(self._workers_cpu_s),
            "learner_memory_bytes": self._learner_memory,
            "workers_memory_bytes": self._workers_memory,
            "threads": torch.get_num_threads(),
        }

    def totals(self) -> dict[str, Any]:
        """Processor seconds so far, and the greatest memory that was seen."""
        return {
            "learner_cpu_s": time.process_time() + self._cpu_before_s,
            "workers_cpu_s": self._workers_cpu_s + self._workers_cpu_before_s,
            "learner_memory_peak_bytes": self._learner_peak,
            "workers_memory_peak_bytes": self._workers_peak,
            "memory_peak_bytes": self._peak,
        }

    def go_on_from(self, totals: Mapping[str, Any]) -> None:
        """Count on from what `totals` gave before the run was resumed."""
        self._cpu_before_s += totals["learner_cpu_s"]
        self._workers_cpu_before_s = totals["workers_cpu_s"]
        self._learner_peak = totals["learner_memory_peak_bytes"]
        self._workers_peak = totals["workers_memory_peak_bytes"]
        self._peak = totals["memory_peak_bytes"]

    def _warn_when_full(self) -> None:
        memory = psutil.virtual_memory()
        if memory.percent < 100 * NEARLY_FULL or self._warned:
            return
        self._warned = True
        _log.warning(
            "the memory of this machine is nearly full (%d of %d MB are left): fewer environments, shorter"
            " rollouts (num_steps) or fewer workers need less; at its end the system kills a process",
            memory.available >> 20,
            memory.total >> 20,
        )


class _Rate:
    """Processor seconds a second, in percent of one core, since the count changed last but one."""

    def __init__(self) -> None:
        self._mark: tuple[float, float] | None = None
        self._percent: float | None = None

    def __call__(self, count: float) -> float | None:
        """The newest rate; None before there is one."""
        now = time.monotonic()
        if self._mark is None:
            self._mark = (now, count) if count > 0 else None
        elif count != self._mark[1] and now - self._mark[0] >= RATE_OVER_S:
            self._percent = max(0.0, 100 * (count - self._mark[1]) / (now - self._mark[0]))
            self._mark = (now, count)
        return self._percent
