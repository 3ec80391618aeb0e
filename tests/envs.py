"""Small environments for the tests, importable as `tests.envs` here and in the processes that tests start."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Count(gym.Env):
    """Observation [t], reward 1, the n-th step ends the episode; info says whether it is of reset or step."""

    observation_space: gym.Space = spaces.Box(0, 1000, (1,), np.float32)
    action_space: gym.Space = spaces.Discrete(2)

    def __init__(self, n: int = 5, kind: str = "term") -> None:
        if kind not in ("term", "trunc"):
            raise ValueError(kind)
        self.n = n
        self.kind = kind
        self.t = 0

    def _obs(self) -> np.ndarray:
        return np.array([self.t], np.float32)

    def _info(self, k: str) -> dict[str, Any]:
        return {"k": k}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), self._info("reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        end = self.t >= self.n
        return self._obs(), 1.0, end and self.kind == "term", end and self.kind == "trunc", self._info("step")


class ReusingCount(Count):
    """Count that returns the same observation array and the same info dict for ever."""

    def __init__(self, n: int = 5, kind: str = "term") -> None:
        super().__init__(n, kind)
        self._array = np.zeros(1, np.float32)
        self._dict: dict[str, Any] = {}

    def _obs(self) -> np.ndarray:
        self._array[0] = self.t
        return self._array

    def _info(self, k: str) -> dict[str, Any]:
        self._dict["k"] = k
        return self._dict


class SharingCount(Count):
    """Count whose infos are one dict for all environments of its process."""

    shared: ClassVar[dict[str, Any]] = {}

    def _info(self, k: str) -> dict[str, Any]:
        self.shared["left"] = self.n - self.t
        return self.shared


class RandomObs(Count):
    """Observation `np_random.random(4)`, episodes of 5 steps."""

    observation_space = spaces.Box(0, 1, (4,), np.float64)

    def _obs(self) -> np.ndarray:
        return self.np_random.random(4)


class Index(Count):
    """Observation [i] for environment i, for ever; each step may take a random time up to `max_sleep_s`."""

    def __init__(self, index: int, max_sleep_s: float = 0.0, min_sleep_s: float = 0.0) -> None:
        super().__init__(1 << 30)
        self.index = index
        self.sleep_s = (min_sleep_s, max_sleep_s)

    def _obs(self) -> np.ndarray:
        return np.array([self.index], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.sleep_s[1]:
            time.sleep(self.np_random.uniform(*self.sleep_s))
        return super().step(action)


class IndexBox(Index):
    """Index with actions in (0, 1)."""

    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)


class Frames(Count):
    """Every pixel is the number of the step, modulo 251."""

    def __init__(self, shape: tuple[int, ...], n: int = 1 << 30) -> None:
        super().__init__(n)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def _obs(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.t % 251, np.uint8)

    def _info(self, k: str) -> dict[str, Any]:
        return {}


class Busy(Count):
    """Count whose step keeps the interpreter busy for `busy_s`."""

    def __init__(self, busy_s: float = 1e-4, n: int = 100) -> None:
        super().__init__(n)
        self.busy_s = busy_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.perf_counter() + self.busy_s
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Fails(Count):
    """Count that raises RuntimeError("on purpose") in "init", "reset" or its `at`-th "step" of an episode."""

    def __init__(self, where: str, at: int = 1, n: int = 5) -> None:
        super().__init__(n)
        self.where = where
        self.at = at
        self._fail("init")

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("on purpose")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._fail("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t + 1 == self.at:
            self._fail("step")
        return super().step(action)


class Hangs(Count):
    """Count that sleeps for ever in "init", "reset" or "step"."""

    def __init__(self, where: str = "step", n: int = 5) -> None:
        super().__init__(n)
        self.where = where
        self._hang("init")

    def _hang(self, where: str) -> None:
        while where == self.where:
            time.sleep(3600)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._hang("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._hang("step")
        return super().step(action)


class Sampled(Count):
    """Observations and rewards drawn at random from any space, episodes of random length and end."""

    def __init__(self, space: gym.Space, action_space: gym.Space | None = None) -> None:
        super().__init__(1 << 30)
        self.observation_space = deepcopy(space)
        if action_space is not None:
            self.action_space = deepcopy(action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self._obs(), {"options": dict(options or {}), "draw": int(self.np_random.integers(100))}

    def _obs(self) -> Any:
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        terminated, truncated = (self.np_random.random(2) < 0.2).tolist()
        info = {"t": self.t, "pair": np.array([self.t, 2.5]), "end": {"term": terminated}}
        return self._obs(), float(self.np_random.normal()), terminated, truncated, info


class Echo(Count):
    """Observation is the last action, in the action's space; info tells its Python type."""

    def __init__(self, space: gym.Space, n: int = 5) -> None:
        super().__init__(n)
        self.action_space = deepcopy(space)
        self.observation_space = deepcopy(space)
        self.last: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.last = self.observation_space.sample()
        return self.last, {"type": ""}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.last = action
        _, reward, terminated, truncated, _ = super().step(action)
        return deepcopy(action), reward, terminated, truncated, {"type": type(action).__name__}


class BoundedBox(Count):
    """Action Box [-1, 1]^2, observation and reward tell the action received; outside the bounds it raises."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is outside of {self.action_space}")
        _, _, terminated, truncated, _ = super().step(action)
        return np.array(action), float(action.sum()), terminated, truncated, {}


class Nested(Count):
    """Dict of a Box and a Tuple (Discrete, MultiBinary) as observation, telling t and the last action."""

    observation_space = spaces.Dict(
        {
            "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "pair": spaces.Tuple((spaces.Discrete(100), spaces.MultiBinary(4))),
        }
    )

    def _obs(self) -> Any:
        bits = np.array([self.t >> bit & 1 for bit in range(4)], np.int8)
        return {"vector": np.full(3, self.t, np.float32), "pair": (np.int64(self.t % 100), bits)}


class Pays(Count):
    """Count whose reward is `reward`, whatever that is."""

    def __init__(self, reward: Any, n: int = 5) -> None:
        super().__init__(n)
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.reward, terminated, truncated, info


class Tells(Count):
    """Count whose infos are those of `infos`, one after the other, from reset on, around again."""

    def __init__(self, infos: Sequence[Mapping[str, Any]], n: int = 5) -> None:
        super().__init__(n)
        self.infos = infos
        self.told = 0

    def _info(self, k: str) -> dict[str, Any]:
        info = dict(self.infos[self.told % len(self.infos)])
        self.told += 1
        return info


class Knows(gym.Env):
    """Tells what its process has imported."""

    observation_space = spaces.Box(-9, 9, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 0.0, False, False, {}

    def has(self, module: str) -> bool:
        return module in sys.modules


class TorchNoise(Knows):
    """Looks whether torch is installed, as libraries do, and observes what torch's own generator draws."""

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        assert find_spec("torch") is not None
        import torch

        return torch.rand(4).numpy(), {}
