"""What a run came to, for comparisons: `benchmark_metrics.json`, and the returns that it tells of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

WINDOW = 100
"""Episodes behind the mean return that is shown, logged and compared with a goal."""
FINAL = 10
"""Episodes behind the final return."""
FORMAT = 1


class Returns:
    """The last episodes of a run, and the best that were seen."""

    def __init__(self) -> None:
        """No episode has ended."""
        self.last: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self._best: float | None = None
        self._greatest: float | None = None

    def take(self, returns: Iterable[float], lengths: Iterable[int]) -> None:
        """These episodes have ended, in this order."""
        for value in returns:
            self.last.append(value)
            self._greatest = value if self._greatest is None else max(self._greatest, value)
            if len(self.last) == WINDOW:
                mean = sum(self.last) / WINDOW
                self._best = mean if self._best is None else max(self._best, mean)
        self.lengths.extend(lengths)

    @property
    def mean(self) -> float | None:
        """Mean return of the last 100 episodes; None before the first has ended."""
        return float(np.mean(self.last)) if self.last else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes; None before the first has ended."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def summary(self) -> dict[str, float | None]:
        """Returns by name; None where no episode has ended."""
        return {
            "final_return": float(np.mean(list(self.last)[-FINAL:])) if self.last else None,
            "last_100_return": self.mean,
            "best_return": self.mean if self._best is None else self._best,
            "greatest_episode_return": self._greatest,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on needs."""
        return {
            "last": list(self.last),
            "lengths": list(self.lengths),
            "best": self._best,
            "greatest": self._greatest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.last.extend(state["last"])
        self.lengths.extend(state["lengths"])
        self._best, self._greatest = state["best"], state["greatest"]
