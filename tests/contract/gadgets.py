"""An environment with things to call, read, set and render."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs import Count


class Gadget(Count):
    """Count with methods and attributes; it counts how often it was moved, called and rendered."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, index: int = 0, n: int = 4, render_mode: str | None = "rgb_array") -> None:
        super().__init__(n)
        self.render_mode = render_mode
        self.index = index
        self.gravity = 9.8
        self.moved = self.called = self.rendered = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.moved += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.moved += 1
        return super().step(action)

    def render(self) -> np.ndarray:
        self.rendered += 1
        return np.full((2, 3, 3), self.index * 10 + self.t, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        self.called += 1
        return self.index + a + b

    def echo(self, value: Any) -> Any:
        return value

    def fail(self, index: int) -> str:
        if self.index == index:
            raise ValueError("on purpose")
        return "fine"

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.index

    @property
    def broken(self) -> Any:
        raise ValueError("on purpose")

    def odd(self) -> Any:
        return {"deep": [1, {2, 3}]}

    def endless(self) -> Any:
        value: list[Any] = []
        value.append(value)
        return value


class Outer(gym.Wrapper):
    """A wrapper with an attribute and a method of its own."""

    def __init__(self, env: gym.Env, note: str = "outer") -> None:
        super().__init__(env)
        self.note = note

    def twice(self, value: int) -> int:
        return 2 * value


def wrapped(index: int) -> gym.Env:
    return Outer(Gadget(index))


class Sleeper(Count):
    """Count whose every reset and step takes `sleep_s`; observation [index, t]."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)

    def __init__(self, index: int, sleep_s: float = 0.0) -> None:
        super().__init__(3)
        self.index, self.sleep_s = index, sleep_s

    def _obs(self) -> np.ndarray:
        time.sleep(self.sleep_s)
        return np.array([self.index, self.t], np.float32)
