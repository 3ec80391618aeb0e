"""A pool of EnvPool's behind the interface of Gymnasium's vectors, with what it lacks of their contract."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import envpool
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Array = NDArray[Any]
Flags = NDArray[np.bool_]
Nested = Any
Pool = Any  # EnvPool makes a class for each kind of environment, and names none that they share
Step = tuple[Nested, Array, Flags, Flags, dict[str, Any]]

INT32 = 1 << 31
NUMBERING = ("env_id", "players")
"""Infos of EnvPool's that only number the rows."""


class EnvPoolVector(VectorEnv[Any, Any, Any]):
    """Row i is environment i of the pool, NEXT_STEP, seeded by `reset`.

    EnvPool takes seeds when it makes a pool, so a reset with seeds makes a new one. With a `batch_size` below
    `num_envs` it gives rows as they are ready; they are waited for, and put back in order.
    """

    def __init__(
        self,
        env_name: str,
        num_envs: int,
        num_threads: int,
        batch_size: int | None,
        env_kwargs: Mapping[str, Any],
    ) -> None:
        """A pool whose seeds come from the system until `reset` gives others.

        Raises:
            ValueError: if `batch_size` does not divide `num_envs`, or EnvPool refuses an argument.
        """
        self.num_envs = num_envs
        self._name = env_name
        self._threads = num_threads
        self._kwargs = dict(env_kwargs)
        self._batch = _checked_batch(batch_size, num_envs)
        self._pool = self._made([None] * num_envs)
        if self._pool.config.get("max_num_players", 1) != 1:
            raise ValueError(f"{env_name!r} has several players; only environments of one agent can be run")
        self.single_observation_space = _mended(self._pool.single_observation_space)
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = self._pool.render_mode
        self.metadata = {
            "render_modes": ["rgb_array", "human"],
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "reset_mask": self._batch == num_envs,
        }
        self._everyone = np.arange(num_envs, dtype=np.int32)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Nested, dict[str, Any]]:
        """Observations [n, ...] and infos after a reset of all rows, or of those of `options["reset_mask"]`.

        Rows that are not reset have zeros.

        Raises:
            ValueError: on other options, or on seeds for some rows alone.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"EnvPool's environments take no options at reset; there are {sorted(options)}")
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)] if _is_one(seed) else seed
        if mask is not None:
            return self._reset_rows(np.flatnonzero(mask).astype(np.int32), seeds)
        if seeds is not None:
            self._pool.close()
            self._pool = self._made(list(seeds))
        self._pool.async_reset()
        obs, _, _, _, infos = self._received(self._everyone)
        return obs, infos

    def step(self, actions: Nested) -> Step:
        """One step of every row; those whose episode has ended are reset instead, with reward 0."""
        return self._stepped(actions, self._everyone)

    def step_rows(self, actions: Nested, rows: NDArray[np.integer[Any]]) -> Step:
        """One step of the k ascending `rows`, with k rows of everything.

        Raises:
            ValueError: if k is not a multiple of `batch_size`, for which EnvPool would wait for ever.
        """
        if self._batch != self.num_envs and len(rows) % self._batch:
            raise ValueError(
                f"EnvPool waits for {self._batch} environments at a time and {len(rows)} were asked to step; "
                "expected a multiple"
            )
        return self._stepped(actions, rows.astype(np.int32))

    def render(self) -> tuple[Array, ...]:
        """A frame [height, width, 3] of each row."""
        return tuple(self._pool.render(self._everyone))

    def close_extras(self, **_: Any) -> None:
        """Close the pool."""
        self._pool.close()

    # --- helpers ----------------------------------------------------------------------------------------

    def _made(self, seeds: list[int | None]) -> Pool:
        """A new pool, with 31 bits of each seed, and fresh entropy where there is none."""
        try:
            pool: Pool = envpool.make_gymnasium(
                self._name,
                num_envs=self.num_envs,
                batch_size=self._batch,
                num_threads=self._threads,
                seed=[_int32(seed) for seed in seeds],
                **self._kwargs,
            )
        except (AssertionError, TypeError) as error:
            given = f" with {self._kwargs}" if self._kwargs else ""
            raise ValueError(f"EnvPool refuses {self._name!r}{given}: {error}") from error
        with warnings.catch_warnings():  # of bounds that are rounded to the dtype of their space
            warnings.filterwarnings("ignore", r".*precision lowered", UserWarning)
            _ = pool.observation_space, pool.action_space  # made at the first look, and kept
        return pool

    def _reset_rows(
        self, rows: NDArray[np.int32], seeds: Sequence[int | None] | None
    ) -> tuple[Nested, dict[str, Any]]:
        if seeds is not None and any(seeds[row] is not None for row in rows):
            raise ValueError("EnvPool takes seeds for all rows at once; reset all of them, without a mask")
        obs, infos = self._pool.reset(rows)
        order = np.argsort(infos["env_id"])
        mask = np.zeros(self.num_envs, np.bool_)
        mask[rows] = True
        full = _infos(_rows(_told(infos), lambda leaf: _spread(leaf[order], mask)), mask)
        return _rows(obs, lambda leaf: _spread(leaf[order], mask)), full

    def _stepped(self, actions: Nested, rows: NDArray[np.int32]) -> Step:
        """What the pool gives for `rows`, in their order."""
        space = self.single_action_space
        if isinstance(space, gym.spaces.Discrete):
            least, most = actions.min(), actions.max()
            if least < space.start or most >= space.start + space.n:  # EnvPool would end the process
                raise ValueError(f"actions from {least} to {most} are not all in {space}")
        self._pool.send(actions, rows)
        return self._received(rows)

    def _received(self, rows: NDArray[np.int32]) -> Step:
        """As many rows as were sent, in the order of their numbers."""
        mask = np.ones(len(rows), np.bool_)
        if self._batch == self.num_envs:  # rows come in the order in which they were sent
            obs, rewards, terminations, truncations, infos = self._pool.recv()
            return obs, rewards, terminations, truncations, _infos(_told(infos), mask)
        parts = [self._pool.recv() for _ in range(len(rows) // self._batch)]
        order = np.argsort(np.concatenate([part[4]["env_id"] for part in parts]))
        obs = _joined([part[0] for part in parts], order)
        rewards, terminations, truncations = (
            np.concatenate([part[i] for part in parts])[order] for i in (1, 2, 3)
        )
        told = _joined([_told(part[4]) for part in parts], order)
        return obs, rewards, terminations, truncations, _infos(told, mask)


def _checked_batch(batch_size: int | None, num_envs: int) -> int:
    """What EnvPool waits for. One environment alone, of which only the spaces are looked at, is a batch."""
    if batch_size is None or num_envs == 1:
        return num_envs
    if not 1 <= batch_size <= num_envs or num_envs % batch_size:
        raise ValueError(f"batch_size is {batch_size}; expected a divisor of the {num_envs} environments")
    return batch_size


def _is_one(seed: object) -> bool:
    return isinstance(seed, int | np.integer)


def _int32(seed: int | None) -> int:
    """A seed as EnvPool takes it: small ones as they are, of others 31 bits."""
    if seed is not None and 0 <= seed < INT32:
        return int(seed)
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) % INT32


def _mended(space: gym.Space[Any]) -> gym.Space[Any]:
    """`space` without the least and greatest floats that stand for no bound, the least above 0 among them."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _mended(part) for key, part in space.items()})
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        return space
    low, high = space.low.copy(), space.high.copy()
    for facts in (np.finfo(np.float32), np.finfo(np.float64)):
        low[(low == facts.tiny) | (low == facts.min)] = -np.inf
        high[high == facts.max] = np.inf
    return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def _told(infos: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in infos.items() if key not in NUMBERING}


def _infos(told: dict[str, Any], mask: Flags) -> dict[str, Any]:
    """With the masks that Gymnasium has beside its arrays."""
    masked: dict[str, Any] = {}
    for key, value in told.items():
        masked[key] = _infos(value, mask) if isinstance(value, dict) else value
        masked[f"_{key}"] = mask
    return masked


def _rows(nested: Nested, change: Callable[[Array], Array]) -> Nested:
    """`nested` with `change` made to each array."""
    if isinstance(nested, dict):
        return {key: _rows(value, change) for key, value in nested.items()}
    return change(nested)


def _joined(parts: Sequence[Nested], order: NDArray[np.intp]) -> Nested:
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts], order) for key in parts[0]}
    return np.concatenate(parts)[order]


def _spread(leaf: Array, mask: Flags) -> Array:
    """The rows of `leaf` at the places of `mask`, zeros elsewhere."""
    full = np.zeros((len(mask), *leaf.shape[1:]), leaf.dtype)
    full[mask] = leaf
    return full
