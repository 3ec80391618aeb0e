"""What every learner of a run counts: steps, updates, episodes, returns and time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterenv.learners.resources import LearnerUsage
from clusterenv.learners.results import WINDOW, Returns

if TYPE_CHECKING:
    from clusterenv.rollout import Rollout


class Tally:
    """The counters of a run, of which its loop asks whether it is over."""

    def __init__(self) -> None:
        """Nothing has been done yet, and the clock starts."""
        self.steps = self.updates = self.episodes = 0
        self.ended = "steps"
        """Why the run ends, if nothing interrupts it: "steps", "duration" or "return"."""
        self.usage = LearnerUsage()
        """Of this learner's process."""
        self._returns = Returns()
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between an interruption and its resumption."""
        return time.monotonic() - self._started

    def reached(self, goal: float | None) -> bool:
        """Whether a full window of episodes has a mean return of `goal` or above; never without a goal."""
        mean = self._returns.mean
        return goal is not None and len(self._returns.last) == WINDOW and mean is not None and mean >= goal

    def count(self, rollout: Rollout) -> None:
        """Take in one update made with `rollout`."""
        self.steps += int(rollout.valid.sum())
        self.updates += 1
        self.episodes += len(rollout.episodes)
        self._returns.take(
            (episode.episode_return for episode in rollout.episodes),
            (episode.length for episode in rollout.episodes),
        )
