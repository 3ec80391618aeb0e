"""The tasks of `bench throughput`; `Busy` and `Pixels` are made here, so that their cost is known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Step = tuple[NDArray[Any], float, bool, bool, dict[str, Any]]

EPISODE_STEPS = 500
"""Length of every episode of `Busy` and `Pixels`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the benchmark."""

    name: str
    env_id: str
    """What `gymnasium.make` takes; before a colon the module that registers it."""
    module: str = "gymnasium"
    """What has to be installed."""
    install: str = ""
    """The command that installs it."""
    envpool_id: str = ""
    """The same game in EnvPool; empty where it has none."""


class _Working(gym.Env[NDArray[Any], np.int64]):
    """Every step takes `work_us` of processor time; episodes are cut at EPISODE_STEPS."""

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so
    work_us: int

    def __init__(self) -> None:
        """Four actions, which change nothing."""
        self.action_space = spaces.Discrete(4)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """A new episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> Step:
        """One step; the time that the process waits for a core does not count as work."""
        end = time.thread_time_ns() + 1000 * self.work_us
        self._steps += 1
        obs = self._observe()
        while time.thread_time_ns() < end:
            pass
        return obs, 1.0, False, self._steps >= EPISODE_STEPS, {}

    def _observe(self) -> NDArray[Any]:
        raise NotImplementedError


class Busy(_Working):
    """100 microseconds of work for each step, 64 floats."""

    work_us = 100

    def __init__(self) -> None:
        """Observations are drawn beforehand."""
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (64,), np.float32)
        self._seen = np.random.default_rng(0).uniform(-1.0, 1.0, (16, 64)).astype(np.float32)

    def _observe(self) -> NDArray[Any]:
        row: NDArray[np.float32] = self._seen[self._steps % len(self._seen)].copy()
        return row


class Pixels(_Working):
    """20 microseconds of work for each step, frames of 84x84x4 bytes."""

    work_us = 20

    def __init__(self) -> None:
        """Frames are drawn beforehand."""
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self._seen = np.random.default_rng(0).integers(0, 256, (8, 84, 84, 4), np.uint8)

    def _observe(self) -> NDArray[Any]:
        frame: NDArray[np.uint8] = self._seen[self._steps % len(self._seen)].copy()
        return frame


BUSY, PIXELS = "ClusterEnvBusy-v0", "ClusterEnvPixels-v0"
for _id, _class in ((BUSY, Busy), (PIXELS, Pixels)):
    if _id not in gym.registry:
        gym.register(_id, f"{__name__}:{_class.__name__}")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("CartPole-v1", "CartPole-v1", envpool_id="CartPole-v1"),
        Task(
            "LunarLander-v3",
            "LunarLander-v3",
            "Box2D",
            "pip install 'clusterenv-rl[box2d]'",
            envpool_id="LunarLander-v3",
        ),
        Task("Ant-v5", "Ant-v5", "mujoco", "pip install 'clusterenv-rl[mujoco]'", envpool_id="Ant-v5"),
        Task(
            "ALE/Pong-v5",
            "ale_py:ALE/Pong-v5",
            "ale_py",
            "pip install 'clusterenv-rl[atari]'",
            envpool_id="Pong-v5",
        ),
        Task("Busy", f"{__name__}:{BUSY}"),
        Task("Pixels", f"{__name__}:{PIXELS}"),
    )
}
