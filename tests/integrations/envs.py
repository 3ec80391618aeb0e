"""Environments with attributes and methods of their own, importable on the workers too."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.envs import Count


class Dial(Count):
    """Count with a number that can be read, set, turned, and drawn; it knows its index."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, index: int, render_mode: str | None = None) -> None:
        super().__init__(n=4)
        self.index = index
        self.setting = 10 * index
        self.render_mode = render_mode

    def turn(self, by: int, *, twice: bool = False) -> int:
        self.setting += 2 * by if twice else by
        return self.setting

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self.index, np.uint8)


class Loud(gym.RewardWrapper):
    """Ten times the reward."""

    def reward(self, reward: Any) -> float:
        return 10 * float(reward)


class Louder(Loud):
    """A subclass, which counts as its parent too."""
