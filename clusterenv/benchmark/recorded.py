"""Whether `rollout` is still as fast, beside what anybody could write, as it was when that was recorded."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Final

from clusterenv.benchmark.rollout import RolloutBenchmark
from clusterenv.benchmark.tasks import TASKS
from clusterenv.errors import ClusterEnvError, ConfigError

RECORDED: Final[Mapping[str, Mapping[str, float]]] = {
    "CartPole-v1": {"hand_written": 1.79, "bare": 0.70},
    "Busy": {"hand_written": 1.00, "bare": 0.90},
}
"""Rate of `rollout` by that of another: medians of 5, for 2 workers x 32 environments on two quiet cores."""


class SlowerThanRecorded(ClusterEnvError):
    """`rollout` has lost more of its lead than noise explains."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedBenchmark:
    """Ratios of `rollout` to hand-written processes and bare loops, as a quick check that none has been lost.

    The best of a few tries counts, since what else a machine does can only take away.
    """

    tasks: tuple[str, ...] = tuple(RECORDED)
    """Tasks, by name."""
    tries: int = 3
    """Tries at most for each task; the first in which every ratio is reached is the last."""
    seconds: float = 1.0
    """Length of a measurement."""
    least: float = 0.7
    """Share of the recorded ratio that must be reached."""

    def __post_init__(self) -> None:
        """Check every value."""
        for name in self.tasks:
            if name not in RECORDED:
                raise ConfigError("tasks", name, f"one or more of {', '.join(RECORDED)}")
        if self.tries < 1:
            raise ConfigError("tries", self.tries, "a whole number from 1")
        for option in ("seconds", "least"):
            if not getattr(self, option) > 0:
                raise ConfigError(option, getattr(self, option), "a number above 0")

    def run(self) -> None:
        """Measure and print.

        Raises:
            SlowerThanRecorded: if a ratio was below `least` times the recorded one in every try.
        """
        reached = {task: self._best_of(task) for task in self.tasks}
        lost = [
            f"{task}: rollout / {other} is {ratio:.2f}; recorded {RECORDED[task][other]:.2f}"
            for task, ratios in reached.items()
            for other, ratio in ratios.items()
            if ratio < self.least * RECORDED[task][other]
        ]
        if lost:
            raise SlowerThanRecorded(
                f"below {self.least:g} of the recorded ratio at best of {self.tries}: {'; '.join(lost)}. "
                "See with `clusterenv bench profile` what takes the time, or run it alone"
            )

    def _best_of(self, task: str) -> dict[str, float]:
        """By what it is compared with, the greatest ratio of the tries."""
        best = dict.fromkeys(RECORDED[task], 0.0)
        benchmark = RolloutBenchmark(env_id=TASKS[task].env_id, seconds=self.seconds, repeats=1)
        for _ in range(self.tries):
            report = benchmark.measure()
            best = {other: max(was, report.ratio("clusterenv", other).median) for other, was in best.items()}
            if all(best[other] >= self.least * RECORDED[task][other] for other in best):
                break
        for other, ratio in best.items():
            sys.stdout.write(f"{task}: rollout / {other} {ratio:.2f}, recorded {RECORDED[task][other]:.2f}\n")
        return best
