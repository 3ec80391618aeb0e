"""What a run takes of processors and memory, for its metrics: all learners, and all workers together."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from clusterenv.learners.available_memory import available_memory
from clusterenv.usage import LOOK_EVERY_S, UsageWatch

RATE_OVER_S: Final = 1.0
NEARLY_FULL: Final = 0.95

_log = logging.getLogger(__name__)


class LearnerUsage:
    """What the process of one learner uses, from now on."""

    def __init__(self) -> None:
        """Look at this process."""
        self._watch = UsageWatch(descendants=False)
        self._began_s = time.process_time()
        self._memory_bytes = 0

    @property
    def cpu_s(self) -> float:
        """Processor seconds so far."""
        return time.process_time() - self._began_s

    @property
    def memory_bytes(self) -> int:
        """Memory, looked at now if that was not done lately."""
        usage = self._watch.look_if_due()
        if usage is not None:
            self._memory_bytes = usage.memory_bytes
        return self._memory_bytes

    def told(self) -> dict[str, float]:
        """Both, for the first of several learners."""
        return {"cpu_s": self.cpu_s, "memory_bytes": self.memory_bytes}


class Resources:
    """What all learners use, what workers tell of theirs, and the greatest memory that was seen."""

    def __init__(self, usage: LearnerUsage) -> None:
        """Count from now on; `usage` is that of this process."""
        self._usage = usage
        self._others_cpu_s = self._cpu_before_s = 0.0
        self._learner_memory = self._learner_peak = 0
        self._workers_memory = self._workers_peak = self._peak = 0
        self._workers_cpu_s = self._workers_cpu_before_s = 0.0
        self._learner_rate, self._workers_rate = _Rate(), _Rate()
        self._next_look = 0.0

    def row(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """What is known now; `stats` are those of `ClusterEnv`, with `learners` if there are several."""
        others = stats.get("learners", [{}])[1:]
        self._others_cpu_s = sum(other["cpu_s"] for other in others)
        self._learner_memory = self._usage.memory_bytes + sum(int(other["memory_bytes"]) for other in others)
        self._warn_when_full()
        self._workers_memory = sum(worker["memory_bytes"] for worker in stats["workers"])
        self._workers_cpu_s = sum(worker["cpu_s"] for worker in stats["workers"])
        self._learner_peak = max(self._learner_peak, self._learner_memory)
        self._workers_peak = max(self._workers_peak, self._workers_memory)
        self._peak = max(self._peak, self._learner_memory + self._workers_memory)
        return self.totals() | {
            "learner_cpu_percent": self._learner_rate(self._usage.cpu_s + self._others_cpu_s),
            "workers_cpu_percent": self._workers_rate(self._workers_cpu_s),
            "learner_memory_bytes": self._learner_memory,
            "workers_memory_bytes": self._workers_memory,
            "threads": torch.get_num_threads(),
        }

    def totals(self) -> dict[str, Any]:
        """Processor seconds so far, and the greatest memory that was seen."""
        return {
            "learner_cpu_s": self._usage.cpu_s + self._others_cpu_s + self._cpu_before_s,
            "workers_cpu_s": self._workers_cpu_s + self._workers_cpu_before_s,
            "learner_memory_peak_bytes": self._learner_peak,
            "workers_memory_peak_bytes": self._workers_peak,
            "memory_peak_bytes": self._peak,
        }

    def go_on_from(self, totals: Mapping[str, Any]) -> None:
        """Count on from what `totals` gave before the run was resumed."""
        self._cpu_before_s = totals["learner_cpu_s"]
        self._workers_cpu_before_s = totals["workers_cpu_s"]
        self._learner_peak = totals["learner_memory_peak_bytes"]
        self._workers_peak = totals["workers_memory_peak_bytes"]
        self._peak = totals["memory_peak_bytes"]

    def _warn_when_full(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        memory = available_memory()
        if memory.left_bytes > (1 - NEARLY_FULL) * memory.total_bytes:
            return
        self._next_look = math.inf  # said once
        _log.warning(
            "the memory of %s is nearly full (%d of %d MB are left): fewer environments, shorter"
            " rollouts (num_steps) or fewer workers need less; at its end the system kills a process",
            memory.whose,
            memory.left_bytes >> 20,
            memory.total_bytes >> 20,
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
