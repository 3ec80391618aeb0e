"""Random walks of two vectors of environments side by side, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

EnvFn = Callable[[], gym.Env]


class Walker(gym.Env):
    """An environment that shows in its observations all that it was given, and keeps to a script.

    The observation holds a sample of `shown`, drawn by the environment's generator, the last action and
    numbers that are hard to carry. The n-th episode has the n-th length of the environment's script, around
    again, and ends as terminated, truncated or both in turn. A reset with `options["script"]` changes it.
    """

    def __init__(
        self,
        shown: gym.Space,
        action_space: gym.Space,
        index: int = 0,
        script: Sequence[Sequence[int]] = ((3,),),
    ) -> None:
        self.shown, self.action_space = deepcopy(shown), deepcopy(action_space)
        self.observation_space = spaces.Dict(
            {
                "shown": deepcopy(shown),
                "echo": deepcopy(action_space),
                "numbers": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            },
            sort_keys=False,
        )
        self.index, self.script = index, script
        self.episode, self.t = -1, 0
        self.last_action = deepcopy(action_space)
        self.given: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if options is not None:
            assert "reset_mask" not in options
            self.script = options.get("script", self.script)
        if seed is not None:
            self.episode = -1
        self.episode, self.t = self.episode + 1, 0
        draws = self.np_random.integers(1 << 31, size=2).tolist()
        self.shown.seed(draws[0])
        self.last_action.seed(draws[1])
        self.given = self.last_action.sample()
        note = None if options is None else options.get("note")
        return self._obs(), {"k": "reset", "episode": self.episode, "note": str(note), **self._info()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.given = action
        lengths = self.script[self.index % len(self.script)]
        over = self.t >= lengths[self.episode % len(lengths)]
        terminated, truncated = over and self.episode % 3 != 1, over and self.episode % 3 != 0
        reward = float(self.np_random.normal())
        info = {"k": "step", "action": type(action).__name__, **self._info()}
        return self._obs(), reward, terminated, truncated, info

    def _obs(self) -> Any:
        hard = [np.nan, np.inf, -np.inf, -0.0][self.t % 4]
        return {
            "shown": self.shown.sample(),
            "echo": _as_sampled(self.action_space, deepcopy(self.given)),
            "numbers": np.array([self.t, hard, self.np_random.random(), self.index], np.float32),
        }

    def _info(self) -> dict[str, Any]:
        return {
            "t": self.t,
            "pair": np.array([self.t, -0.5]),
            "deep": {"flag": self.t % 2 == 0, "deeper": {"half": np.float16(self.t)}},
            f"only {self.t % 3}": [self.t, "list"],
        }

    def where(self) -> tuple[int, int, int]:
        """Index, episode and step."""
        return self.index, self.episode, self.t


def _as_sampled(space: gym.Space, action: Any) -> Any:
    """An action as its space has it: that of a Box without axes arrives as a scalar."""
    if isinstance(space, spaces.Dict):
        return {key: _as_sampled(part, action[key]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_sampled(part, action[i]) for i, part in enumerate(space))
    return np.asarray(action) if isinstance(space, spaces.Box) else action


class Vector(Protocol):
    """The part of a vector that a walk needs."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As Gymnasium's."""


@dataclass
class Pair:
    """A vector, and Gymnasium's own with equal environments; every move is made and compared in both."""

    ours: Vector
    reference: SyncVectorEnv
    ended: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.ended = np.zeros(self.reference.num_envs, np.bool_)

    def reset(self, seed: Any, options: Mapping[str, Any] | None = None) -> None:
        given = None if options is None else dict(options)
        theirs = None if options is None else dict(options)
        obs, info = self.ours.reset(seed=seed, options=given)
        expected_obs, expected_info = self.reference.reset(seed=_plain(seed), options=theirs)
        assert given == options, "the caller's options were changed"
        self._compare_obs(obs, expected_obs)
        assert_same_infos(info, expected_info)
        mask = None if options is None else options.get("reset_mask")
        self.ended[slice(None) if mask is None else mask] = False

    def step(self, actions: Any) -> None:
        ours, theirs = self.ours.step(deepcopy(actions)), self.reference.step(actions)
        self._compare_obs(ours[0], theirs[0])
        for name, mine, other in zip(
            ("reward", "terminated", "truncated"), ours[1:4], theirs[1:4], strict=True
        ):
            assert_same(mine, other, name)
        assert_same_infos(ours[4], theirs[4])
        self.ended = theirs[2] | theirs[3]

    def _compare_obs(self, obs: Any, expected: Any) -> None:
        assert_same(obs, expected, "obs")
        space = self.reference.observation_space
        assert isinstance(space, spaces.Dict)
        for key in ("shown", "echo"):  # the numbers hold NaN, which no Box contains
            assert space[key].contains(obs[key]), key


def _plain(seed: Any) -> Any:
    """Gymnasium 1.4 takes no NumPy integer for a seed; we do."""
    return int(seed) if isinstance(seed, np.integer) else seed


def walk(
    pair: Pair, mode: AutoresetMode, rng: np.random.Generator, moves: int, options: dict[str, Any]
) -> None:
    """A reset, then steps with some resets among them: of all, of a few, with seeds of every form."""
    count = pair.reference.num_envs
    pair.reference.action_space.seed(int(rng.integers(1 << 31)))
    kind_of_seed = np.int64 if rng.random() < 0.5 else int
    pair.reset(kind_of_seed(rng.integers(1 << 31)), options)
    for _ in range(moves):
        kind = rng.random()
        if kind < 0.06:
            pair.reset(_some_seeds(rng, count), _some_options(rng, options))
        elif kind < 0.15:
            mask = rng.random(count) < 0.5
            mask[rng.integers(count)] = True
            pair.reset(_some_seeds(rng, count), {**_some_options(rng, options), "reset_mask": mask})
        else:
            if mode is AutoresetMode.DISABLED and pair.ended.any():
                pair.reset(None, {"reset_mask": pair.ended.copy()})
            pair.step(pair.reference.action_space.sample())


def _some_seeds(rng: np.random.Generator, count: int) -> Any:
    one = int(rng.integers(1 << 31))
    several = [None if rng.random() < 0.3 else int(rng.integers(1 << 31)) for _ in range(count)]
    return [None, one, several, tuple(several)][rng.integers(4)]


def _some_options(rng: np.random.Generator, options: dict[str, Any]) -> dict[str, Any]:
    return dict([{}, {"note": int(rng.integers(9))}, options][rng.integers(3)])


# --- comparison ---------------------------------------------------------------------------------------------


def assert_same_infos(seen: Any, expected: Any, where: str = "info") -> None:
    """As `assert_same`, but the order of keys is free."""
    if isinstance(expected, dict):
        assert isinstance(seen, dict), where
        assert set(seen) == set(expected), where
        for key, part in expected.items():
            assert_same_infos(seen[key], part, f"{where}[{key!r}]")
    else:
        assert_same(seen, expected, where)


def assert_same(seen: Any, expected: Any, where: str) -> None:
    """Both are nested alike, with the same types, dtypes, shapes and bits."""
    assert type(seen) is type(expected), f"{where}: {type(seen)} instead of {type(expected)}"
    if isinstance(expected, dict):
        assert list(seen) == list(expected), where
        for key, part in expected.items():
            assert_same(seen[key], part, f"{where}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert len(seen) == len(expected), where
        for i, part in enumerate(expected):
            assert_same(seen[i], part, f"{where}[{i}]")
    elif isinstance(expected, np.ndarray | np.generic):
        assert (seen.dtype, seen.shape) == (expected.dtype, expected.shape), where
        if expected.dtype == object:
            for index, part in np.ndenumerate(expected):
                assert_same(seen[index], part, f"{where}{list(index)}")
        else:
            assert seen.tobytes() == expected.tobytes(), f"{where}: {seen} instead of {expected}"
    else:
        assert seen == expected, where
