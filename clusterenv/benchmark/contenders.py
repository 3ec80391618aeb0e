"""What `bench throughput` runs: contenders that make environment steps for a while and tell how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Advance = Callable[[], int]
"""Makes a few environment steps; their number."""
SEED = 1
BATCHES = 16
"""Batches of random actions that are drawn before the clock runs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much every contender has to work with."""

    num_envs: int
    """Environments in all."""
    workers: int
    """Processes over which they are divided evenly, where the contender has such."""
    num_steps: int
    """Steps of a rollout, where it makes rollouts."""

    @property
    def envs_per_worker(self) -> int:
        """Environments of each."""
        return self.num_envs // self.workers


class Contender(Protocol):
    """Something that makes environment steps."""

    def measure(self, seconds: float) -> float:
        """Environment steps per second over about so many seconds."""

    def close(self) -> None:
        """End its processes."""


class Advancing:
    """A contender that is advanced by a function of this process."""

    def __init__(self, advance: Advance, close: Callable[[], object], ahead: int = 0) -> None:
        """`advance` makes some steps, `close` ends what the contender has started.

        What so many calls of `advance` give may have been made `ahead`, while nobody asked.
        """
        self._advance = advance
        self._close = close
        self._ahead = ahead

    def measure(self, seconds: float) -> float:
        """Environment steps per second, as long as it takes to pass `seconds`; none of them made ahead."""
        for _ in range(self._ahead):
            self._advance()
        steps = 0
        start = now = time.monotonic()
        while now < start + seconds:
            steps += self._advance()
            now = time.monotonic()
        return steps / (now - start)

    def close(self) -> None:
        """End what it started."""
        self._close()


def random_actions(space: gym.Space[Any], num_envs: int) -> list[NDArray[Any]]:
    """BATCHES of actions [num_envs, ...] of one environment's `space`."""
    space.seed(SEED)
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(BATCHES)]


def stepping(step: Callable[[Any], object], space: gym.Space[Any], num_envs: int) -> Advance:
    """Advances by one call of `step` with random actions for `num_envs` environments of action `space`."""
    actions = random_actions(space, num_envs)
    turn = 0

    def advance() -> int:
        nonlocal turn
        step(actions[turn])
        turn = (turn + 1) % BATCHES
        return num_envs

    return advance
