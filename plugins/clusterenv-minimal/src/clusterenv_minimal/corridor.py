"""A corridor, at whose far end is the reward."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Corridor(gym.Env[Observation, np.int64]):
    """Action 1 goes on and action 0 goes back; the end is worth 1 and each step costs 0.01."""

    def __init__(self, length: int = 8) -> None:
        """A corridor of `length` places."""
        if length < 2:
            raise ValueError(f"length is {length}; expected at least 2")
        self._length = length
        self._place = 0
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """At the near end."""
        super().reset(seed=seed)
        self._place = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One place on or back."""
        self._place = max(0, self._place + (1 if action == 1 else -1))
        there = self._place == self._length - 1
        return self._observation(), 1.0 if there else -0.01, there, False, {}

    def _observation(self) -> Observation:
        return np.array([self._place / (self._length - 1)], np.float32)
