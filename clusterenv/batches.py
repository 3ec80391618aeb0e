"""The arrays of one reply, in the order of the wire. Shapes: n envs of the sender, T steps, K ended rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from clusterenv import values
from clusterenv.distributions import Family
from clusterenv.errors import ProtocolError
from clusterenv.in_place import lies_in_place
from clusterenv.layout import SpaceLayout

Array = NDArray[Any]
Buffer = Array | memoryview | bytes
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """An environment that raised and was built anew."""

    env_id: int  # global
    error: str  # in one line


@dataclass(slots=True, kw_only=True)
class ResetBatch:
    """What `reset` gives: observation leaves [n, ...] of all rows, infos of the rows that were reset."""

    obs: list[Array]
    infos: list[bytes] = field(default_factory=list)
    rebuilt: list[Rebuilt] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # global numbers: they are at the end of an episode

    def frames(self) -> list[Buffer]:
        """The arrays in the order of the wire."""
        return frames_of(self.obs)

    @classmethod
    def of_frames(
        cls, frames: Sequence[Buffer], obs: SpaceLayout, *, num_envs: int, infos: list[bytes]
    ) -> ResetBatch:
        """The batch again, each frame checked against the layout."""
        reader = FrameReader(frames)
        return cls(obs=reader.leaves(obs, num_envs), infos=reader.done(infos))


@dataclass(slots=True, kw_only=True)
class StepBatch:
    """What one step of n environments gives; the `final_` fields are empty outside SAME_STEP."""

    obs: list[Array]  # leaves [n, ...]
    rewards: NDArray[np.float64]  # [n]
    terminations: NDArray[np.bool_]  # [n]
    truncations: NDArray[np.bool_]  # [n]
    final_index: NDArray[np.int64]  # [K] rows of this batch whose episode ended and that were reset
    final_obs: list[Array]  # leaves [K, ...]
    infos: list[bytes] = field(default_factory=list)  # blocks of `encode_infos`, rows by global env index
    final_infos: list[bytes] = field(default_factory=list)
    rebuilt: list[Rebuilt] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # global numbers: they raised, so these rows are no steps

    def frames(self) -> list[Buffer]:
        """The arrays in the order of the wire."""
        flags: list[Array] = [self.rewards, self.terminations, self.truncations, self.final_index]
        return [*frames_of(self.obs), *flags, *frames_of(self.final_obs)]

    def of_rows(self, mask: NDArray[np.bool_]) -> StepBatch:
        """Of a batch that has `obs` of the rows of `mask` [n] only, but all else of n: those rows of it."""
        self.rewards, self.terminations = self.rewards[mask], self.terminations[mask]
        self.truncations = self.truncations[mask]
        self.final_index = (np.cumsum(mask) - 1)[self.final_index]
        return self

    @classmethod
    def read(cls, reader: FrameReader, obs: SpaceLayout, num_envs: int, num_final: int) -> StepBatch:
        """The arrays taken from `reader`, in the order that `frames` gives them."""
        return cls(
            obs=reader.leaves(obs, num_envs),
            rewards=reader.array(np.float64, (num_envs,)),
            terminations=reader.array(np.bool_, (num_envs,)),
            truncations=reader.array(np.bool_, (num_envs,)),
            final_index=reader.index((num_final,), num_envs),
            final_obs=reader.leaves(obs, num_final),
        )


def unmoved_step(num_envs: int) -> StepBatch:
    """A step in which nothing happened, without observations."""
    return StepBatch(
        obs=[],
        rewards=np.zeros(num_envs, np.float64),
        terminations=np.zeros(num_envs, np.bool_),
        truncations=np.zeros(num_envs, np.bool_),
        final_index=np.zeros(0, np.int64),
        final_obs=[],
    )


@dataclass(slots=True, kw_only=True)
class ActBatch:
    """One step taken by the policy: the step, what was done and what the policy thought of it."""

    step: StepBatch
    actions: list[Array]  # leaves [n, ...], raw: a Box action before clipping
    log_probs: NDArray[np.float32]  # [n], NaN where the agent has none
    values: NDArray[np.float32]  # [n], NaN where the agent has none
    policy_version: int
    params: NDArray[np.float32] | None = None  # [n, P] on the states acted on; stays with the worker
    family: Family | None = None
    state: list[Array] = field(default_factory=list)  # leaves [n, ...] of a recurrent agent, before the step

    def frames(self) -> list[Buffer]:
        """The arrays in the order of the wire."""
        step, actions = self.step.frames(), frames_of(self.actions)
        return [*step, *actions, self.log_probs, self.values, *self.state]

    @classmethod
    def of_frames(
        cls,
        frames: Sequence[Buffer],
        obs: SpaceLayout,
        actions: SpaceLayout,
        *,
        num_envs: int,
        num_final: int,
        policy_version: int,
        state: Sequence[Array] = (),
    ) -> ActBatch:
        """The batch again, each frame checked against the layouts and the agent's `state` leaves [1, ...]."""
        reader = FrameReader(frames)
        batch = cls(
            step=StepBatch.read(reader, obs, num_envs, num_final),
            actions=reader.leaves(actions, num_envs),
            log_probs=reader.array(np.float32, (num_envs,)),
            values=reader.array(np.float32, (num_envs,)),
            policy_version=policy_version,
            state=reader.state(state, num_envs),
        )
        return reader.done(batch)


class EpisodeRecord(msgspec.Struct, kw_only=True, gc=False):
    """One episode that ended."""

    env_id: int  # global
    episode_return: float
    length: int


@dataclass(slots=True, kw_only=True)
class Fragment:
    """T steps of n envs, SAME_STEP inside."""

    obs: list[Array]  # leaves [T, n, ...]: what the policy acted on
    actions: list[Array]  # leaves [T, n, ...], raw
    rewards: NDArray[np.float32]  # [T, n]
    terminations: NDArray[np.bool_]  # [T, n]
    truncations: NDArray[np.bool_]  # [T, n]
    log_probs: NDArray[np.float32]  # [T, n]
    values: NDArray[np.float32]  # [T, n]
    valid: NDArray[np.bool_]  # [T, n]
    last_obs: list[Array]  # leaves [n, ...]: what comes after the last step
    last_values: NDArray[np.float32]  # [n]
    final_index: NDArray[np.int64]  # [K, 2]: (t, row of the sender) of the steps that ended an episode
    final_obs: list[Array]  # leaves [K, ...]
    final_values: NDArray[np.float32]  # [K]
    policy_version: int  # that acted; the newest that did, where there were several
    versions: NDArray[np.int64] | None = None  # [T, n]: that acted in each row, where there were several
    episodes: list[EpisodeRecord] = field(default_factory=list)
    params: NDArray[np.float32] | None = None  # [T, n, P]; stays with the worker
    family: Family | None = None
    initial_state: list[Array] = field(default_factory=list)  # leaves [n, ...] before the first step
    states: list[Array] = field(default_factory=list)  # leaves [T, n, ...] before each; stays with the worker
    sampled_states: list[Array] = field(default_factory=list)  # leaves [rows, ...] of the sampled rows
    rebuilt: list[Rebuilt] = field(default_factory=list)  # their lost steps are not `valid`
    in_place: bool = (
        False  # whether `obs` and `last_obs` lack the leaves that lie in memory of the head's batch
    )

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """[T, n]: the rows that tell what the policy of `policy_version` does."""
        return self.valid if self.versions is None else self.valid & (self.versions == self.policy_version)

    @property
    def num_steps(self) -> int:
        """Steps of each environment."""
        return int(self.rewards.shape[0])

    @property
    def num_envs(self) -> int:
        """Environments of the sender."""
        return int(self.rewards.shape[1])

    def frames(self) -> list[Buffer]:
        """The arrays in the order of the wire."""
        rows: list[Array] = [
            self.rewards,
            self.terminations,
            self.truncations,
            self.log_probs,
            self.values,
            self.valid,
        ]
        ends: list[Buffer] = [
            self.last_values,
            self.final_index,
            *frames_of(self.final_obs),
            self.final_values,
        ]
        if self.versions is not None:
            ends.append(self.versions)
        states = [*self.initial_state, *self.sampled_states]
        seen, last = [*frames_of(self.obs), *frames_of(self.actions)], frames_of(self.last_obs)
        return [*seen, *rows, *last, *ends, *states]

    @classmethod
    def of_frames(
        cls,
        frames: Sequence[Buffer],
        obs: SpaceLayout,
        actions: SpaceLayout,
        *,
        num_steps: int,
        num_envs: int,
        num_final: int,
        policy_version: int,
        episodes: list[EpisodeRecord],
        has_versions: bool = False,
        state: Sequence[Array] = (),
        num_sampled: int = 0,
        placed: Sequence[Array] | None = None,
    ) -> Fragment:
        """The fragment again, each frame checked against layouts and the agent's `state` leaves [1, ...].

        The leaves `placed` [T + 1, n, ...] of observations have not travelled, but lie in the head's memory.
        """
        reader = FrameReader(frames)
        lead = (num_steps, num_envs)
        fragment = cls(
            obs=reader.leaves(obs, *lead, placed=None if placed is None else [leaf[:-1] for leaf in placed]),
            actions=reader.leaves(actions, *lead),
            rewards=reader.array(np.float32, lead),
            terminations=reader.array(np.bool_, lead),
            truncations=reader.array(np.bool_, lead),
            log_probs=reader.array(np.float32, lead),
            values=reader.array(np.float32, lead),
            valid=reader.array(np.bool_, lead),
            last_obs=reader.leaves(
                obs, num_envs, placed=None if placed is None else [leaf[-1] for leaf in placed]
            ),
            last_values=reader.array(np.float32, (num_envs,)),
            final_index=reader.index((num_final, 2), *lead),
            final_obs=reader.leaves(obs, num_final),
            final_values=reader.array(np.float32, (num_final,)),
            versions=reader.index(lead, policy_version + 1) if has_versions else None,
            policy_version=policy_version,
            episodes=episodes,
            initial_state=reader.state(state, num_envs),
            sampled_states=reader.state(state, num_sampled),
            in_place=placed is not None,
        )
        return reader.done(fragment)


def frames_of(leaves: Sequence[Array]) -> list[Buffer]:
    """Leaves as they travel: arrays as they are, samples of variable size as one list of byte strings."""
    return [_joined(leaf) if leaf.dtype.hasobject else leaf for leaf in leaves]


def _joined(leaf: Array) -> bytes:
    rows = leaf.reshape(-1).tolist()
    return values.join([row if isinstance(row, bytes) else values.NOTHING for row in rows])


class FrameReader:
    """Turns raw frames into arrays, one after the other, and refuses those of another size than expected."""

    def __init__(self, frames: Sequence[Buffer]) -> None:
        """Start at the first frame."""
        self._frames = frames
        self._next = 0

    def array(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
        """The next frame as an array of `dtype` and `shape`; a view, read-only where the frame is."""
        number, frame = self._next, self._frame()
        size = frame.nbytes if isinstance(frame, np.ndarray | memoryview) else len(frame)
        expected = math.prod(shape) * np.dtype(dtype).itemsize  # of any size, where NumPy's would wrap around
        if size != expected:
            raise ProtocolError(f"frame {number} has {size} bytes; expected {expected} for {dtype} {shape}")
        if not size:
            return np.empty(shape, dtype)
        array: Array = np.frombuffer(frame, dtype=dtype).reshape(shape)
        if array.dtype == np.bool_ and np.maximum.reduce(array.view(np.uint8), axis=None) > 1:
            raise ProtocolError(f"frame {number} of booleans holds other values than 0 and 1")
        return array

    def index(self, shape: tuple[int, ...], *bounds: int) -> NDArray[np.int64]:
        """The next frame as int64 numbers from 0 to below the bound, or that of their column."""
        array = self.array(np.int64, shape)
        below = np.array(bounds, np.uint64)  # a negative number is a large one there
        if array.size and (array.view(np.uint64) >= below).any():
            ranges = ", ".join(f"0..{bound - 1}" for bound in bounds)
            raise ProtocolError(f"frame {self._next - 1} holds a row outside {ranges}")
        return array

    def leaves(self, layout: SpaceLayout, *lead: int, placed: Sequence[Array] | None = None) -> list[Array]:
        """One array [*lead, *shape] for each leaf of `layout`; those that lie elsewhere are `placed`."""
        there = None if placed is None else iter(placed)
        return [
            next(there)
            if there is not None and lies_in_place(leaf)
            else self._samples(lead)
            if leaf.dtype.hasobject
            else self.array(leaf.dtype, (*lead, *leaf.shape))
            for leaf in layout.leaves
        ]

    def state(self, like: Sequence[Array], rows: int) -> list[Array]:
        """One array [rows, ...] for each leaf [1, ...] of an agent's state."""
        return [self.array(leaf.dtype, (rows, *leaf.shape[1:])) for leaf in like]

    def _samples(self, shape: tuple[int, ...]) -> Array:
        """The next frame as an array of byte strings, each of which holds a sample that can be read."""
        parts = values.split(self._frame(), math.prod(shape))
        for part in parts:
            values.decode(part)
        samples = np.empty(shape, object)
        samples.reshape(-1)[:] = parts
        return samples

    def _frame(self) -> Buffer:
        if self._next == len(self._frames):
            raise ProtocolError(f"message ends after {self._next} frames; another was expected")
        self._next += 1
        return self._frames[self._next - 1]

    def done(self, result: T) -> T:
        """`result`, once it is sure that no frame is left over."""
        if self._next != len(self._frames):
            raise ProtocolError(f"message has {len(self._frames)} frames; expected {self._next}")
        return result
