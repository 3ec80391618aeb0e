"""A backend for the tests: vectors of the environments of `tests.envs`, in each way a backend may be."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests import envs


class Vector(SyncVectorEnv):
    """A vector that knows one autoreset mode, and may reset some rows alone."""

    def __init__(self, env_fns: Any, mode: AutoresetMode, threads: int, *, masks: bool) -> None:
        super().__init__(env_fns, autoreset_mode=mode)
        self.metadata = {**self.metadata, "autoreset_mode": mode, "reset_mask": masks}
        self.threads = threads
        self.masks = masks

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if name in ("pid", "threads"):  # of the vector
            return (os.getpid() if name == "pid" else self.threads,) * self.num_envs
        return super().call(name, *args, **kwargs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert self.masks or not options or "reset_mask" not in options
        return super().reset(seed=seed, options=options)


class Bare(gym.vector.VectorEnv):
    """A vector without any method that is not in the contract."""

    def __init__(self, inner: Vector) -> None:
        self.inner = inner
        self.num_envs = inner.num_envs
        self.metadata = inner.metadata
        self.single_observation_space = inner.single_observation_space
        self.single_action_space = inner.single_action_space
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


class Rows(Vector):
    """A vector that can step some rows alone."""

    def step_rows(self, actions: Any, rows: np.ndarray) -> Any:
        parts = [SyncVectorEnv([lambda env=self.envs[row]: env]) for row in rows]
        stepped = [part.step(actions[i : i + 1]) for i, part in enumerate(parts)]
        return (*(np.concatenate([step[k] for step in stepped]) for k in range(4)), {})


class Wrong(Vector):
    """A vector whose `step` or `reset` returns something else."""

    def __init__(self, *args: Any, what: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.what = what

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed=seed, options=options)
        return obs if self.what == "reset" else (obs, infos)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        told: dict[str, Any] = {
            "nothing": None,
            "four": (obs, rewards, terminations, infos),
            "infos": (obs, rewards, terminations, truncations, [infos]),
            "swapped": (obs, terminations, rewards, truncations, infos),
            "complex": (obs, rewards * 1j, terminations, truncations, infos),
            "columns": (obs, rewards[:, None], terminations, truncations, infos),
        }
        return told[self.what]


KINDS = {"all": Vector, "rows": Rows}


def make(
    env_name: str,
    num_envs: int,
    *,
    num_threads: int,
    own: str = "NextStep",
    masks: bool = False,
    kind: str = "all",
    wrong: str = "",
    **env_kwargs: Any,
) -> gym.vector.VectorEnv[Any, Any, Any]:
    """`num_envs` environments of a class of `tests.envs`."""
    if not hasattr(envs, env_name):
        raise LookupError(f"there is no {env_name!r} here")
    fns = [lambda: getattr(envs, env_name)(**env_kwargs)] * num_envs
    if wrong:
        return Wrong(fns, AutoresetMode(own), num_threads, masks=masks, what=wrong)
    inner = KINDS.get(kind, Vector)(fns, AutoresetMode(own), num_threads, masks=masks)
    return Bare(inner) if kind == "bare" else inner


make.env_names = lambda: ["Count", "Nested"]  # type: ignore[attr-defined]
