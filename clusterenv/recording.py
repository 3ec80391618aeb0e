"""T steps of n environments while they are collected: rows written once, into arrays made beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clusterenv.adapters import Acted, Drawing
from clusterenv.batches import EpisodeRecord, Fragment
from clusterenv.distributions import Family
from clusterenv.in_place import lies_in_place
from clusterenv.layout import SpaceLayout
from clusterenv.memory import Memory

Array = NDArray[Any]
Ints = NDArray[np.int64]
Nested = Any

VALUE_BATCH_ROWS = 1024
VALUE_BATCH_BYTES = 4 << 20
"""Limits of one call of the agent's value function, so that what it computes stays in caches and memory."""


class Values(Protocol):
    """An agent's value function."""

    def __call__(self, obs: Nested, *, env_ids: Ints, state: Sequence[Array]) -> NDArray[np.float32]:
        """Values [n] of a nested batch of observations of the environments `env_ids` [n]."""


class Recording:
    """Room for a fragment. Step t reads `obs` at t and writes what came of it, `obs` at t + 1 included."""

    def __init__(
        self,
        obs_layout: SpaceLayout,
        action_layout: SpaceLayout,
        steps: int,
        env_ids: Ints,
        memory: Memory,
        columns: list[Array] | None = None,
    ) -> None:
        """Arrays with unset values for `steps` of the environments with these global numbers [n].

        Observations go to leaves `columns` [T + 1, n, ...] of the head's batch, if there are such.
        """
        envs = len(env_ids)
        self._obs_layout = obs_layout
        self._env_ids = env_ids
        self._in_place = columns is not None
        self.obs = obs_layout.empty(steps + 1, envs) if columns is None else columns
        self.actions = action_layout.empty(steps, envs)
        self.rewards = np.empty((steps, envs), np.float64)
        self.terminations = np.empty((steps, envs), np.bool_)
        self.truncations = np.empty((steps, envs), np.bool_)
        self.log_probs = np.empty((steps, envs), np.float32)
        self.values = np.empty((steps + 1, envs), np.float32)
        self.valid = np.ones((steps, envs), np.bool_)
        self.params: Array | None = None
        self.versions: Ints | None = None
        """[T, n] of the policy that acted, where that may change on the way."""
        self.with_values = False
        """Whether `keep` is to be given values, also where they cost a pass of their own."""
        self.steps_done = 0
        self.final_rows: list[int] = []
        self.final_obs: list[Any] = []
        self._final_steps: list[int] = []
        self._ending_in = 0  # the step of those of `final_rows` that `_final_steps` does not have yet
        self._memory = memory
        self.begun = memory.begins.copy()
        """[n]: rows whose next observation is the first of an episode."""
        state = memory.before_act()
        self._states = [np.empty((steps + 1, *leaf.shape), leaf.dtype) for leaf in state]
        self._final_states: list[list[Array]] = [[] for _ in self._states]
        for leaf, first in zip(self._states, state, strict=True):
            leaf[0] = first

    def obs_at(self, t: int) -> list[Array]:
        """Leaves [n, ...] that step t acts on, in place."""
        return [leaf[t] for leaf in self.obs]

    def state_at(self, t: int) -> list[Array]:
        """Leaves [n, ...] of what the agent remembers before step t, in place."""
        return [leaf[t] for leaf in self._states]

    def keep(self, acted: Acted) -> None:
        """What the policy does in the step under way."""
        t = self.steps_done
        self.actions[0][t] = acted.actions
        self.log_probs[t] = acted.log_probs
        self.values[t] = acted.values
        for leaf, after in zip(self._states, acted.state, strict=True):
            leaf[t + 1] = after
        if acted.params is None:
            self.params = None  # an agent may lose its closed form on the way
            return
        if t == 0:
            self.params = np.empty((len(self.rewards), *acted.params.shape), np.float32)
        if self.params is not None:
            self.params[t] = acted.params

    def close_step(self, waiting: NDArray[np.bool_]) -> None:
        """The step under way is done; it ended the episodes of the rows that `final_rows` got meanwhile.

        Rows of `waiting` [n] have ended and are reset by their next step, others are in the next episode.
        """
        t, known = self.steps_done, len(self._final_steps)
        self._final_steps += [t] * (len(self.final_rows) - known)
        self.steps_done += 1
        if not self._states:
            return
        self.begun = (self.terminations[t] | self.truncations[t]) & ~waiting | ~self.valid[t]
        for leaf, final in zip(self._states, self._final_states, strict=True):
            final += [leaf[t + 1, row].copy() for row in self.final_rows[known:]]
        self.begin_episodes()

    def arrays_for(self, drawing: Drawing) -> dict[str, Array] | None:
        """The arrays that a `native.Collector` fills; None if they are not such as it knows."""
        obs, actions = self.obs[0], self.actions[0]
        steps, envs = self.rewards.shape
        fits = (
            not self._states
            and self.versions is None
            and obs.dtype == np.float32
            and obs.flags.c_contiguous
            and actions.dtype == drawing.action_dtype
            and obs[0].size == envs * drawing.inputs
            and actions[0].size == envs * drawing.action_size
        )
        shape = (steps, envs, drawing.num_params)
        if self.params is None and self.steps_done == 0:
            self.params = np.empty(shape, np.float32)
        if not fits or self.params is None or self.params.shape != shape:
            return None
        return {
            "obs": obs,
            "actions": actions,
            "rewards": self.rewards,
            "terminations": self.terminations,
            "truncations": self.truncations,
            "log_probs": self.log_probs,
            "params": self.params,
        }

    def end_episode(self, row: int, final_obs: Nested) -> None:
        """The step under way has ended the episode of `row`, of an agent without state."""
        self._ending_in = self.steps_done
        self.final_rows.append(row)
        self.final_obs.append(final_obs)

    def close_steps(self, end: int) -> None:
        """Steps before `end` are done, of an agent without state; `end_episode` told what they ended."""
        if end > self._ending_in:
            self._final_steps += [self._ending_in] * (len(self.final_rows) - len(self._final_steps))
        self.steps_done = end

    def begin_episodes(self, among: bool | NDArray[np.bool_] = True) -> None:
        """Rows that begin an episode, `among` [n], do so in the initial state, now that of other weights."""
        begun = self.begun & among
        for leaf, first in zip(self._states, self._memory.initial, strict=True):
            leaf[self.steps_done, begun] = first[begun]

    def count_episodes(self, returns: Array, lengths: Array) -> list[EpisodeRecord]:
        """One for each row that ended; episodes under way are carried on in `returns` and `lengths` [n]."""
        episodes = []
        starts = [0] * len(returns)
        # As lists, since a sum over a few numbers takes NumPy ten times as long.
        rewards, valid = (array[: self.steps_done].T.tolist() for array in (self.rewards, self.valid))
        for t, row in zip(self._final_steps, self.final_rows, strict=False):
            steps = slice(starts[row], t + 1)
            episodes.append(
                EpisodeRecord(
                    env_id=int(self._env_ids[row]),
                    episode_return=float(returns[row]) + sum(rewards[row][steps]),
                    length=int(lengths[row]) + sum(valid[row][steps]),
                )
            )
            returns[row], lengths[row], starts[row] = 0.0, 0, t + 1
        for row, start in enumerate(starts):
            steps = slice(start, self.steps_done)
            returns[row] += sum(rewards[row][steps])
            lengths[row] += sum(valid[row][steps])
        return episodes

    def fragment(
        self,
        values: Values,
        *,
        all_values: bool,
        policy_version: int,
        episodes: list[EpisodeRecord],
        family: Family | None,
    ) -> Fragment:
        """All steps, with the values of what comes after the last one and of final observations.

        With `all_values` those of the steps are asked for too, many at once; else `keep` was given them.
        `policy_version` is that of all steps, unless `versions` says otherwise.
        """
        versions = self.versions
        if versions is not None:
            policy_version = int(versions.max())
            versions = None if (versions == policy_version).all() else versions
        first = 0 if all_values else len(self.rewards)
        obs, states = ([leaf[first:] for leaf in leaves] for leaves in (self.obs, self._states))
        self._evaluate(values, obs, states, self._env_ids, self.values[first:])
        final_obs = self._obs_layout.empty(len(self.final_rows))
        if self.final_rows:
            self._obs_layout.pack(self.final_obs, final_obs, name="final observation")
        final_states = [np.array(leaf)[None] for leaf in self._final_states]
        final_ids, final_values = self._env_ids[self.final_rows], np.empty(len(self.final_rows), np.float32)
        self._evaluate(
            values, [leaf[None] for leaf in final_obs], final_states, final_ids, final_values[None]
        )
        index = np.array([self._final_steps, self.final_rows], np.int64).T
        travelling = [
            leaf
            for leaf, kind in zip(self.obs, self._obs_layout.leaves, strict=True)
            if not (self._in_place and lies_in_place(kind))
        ]
        return Fragment(
            obs=[leaf[:-1] for leaf in travelling],
            actions=self.actions,
            rewards=self.rewards.astype(np.float32),
            terminations=self.terminations,
            truncations=self.truncations,
            log_probs=self.log_probs,
            values=self.values[:-1],
            valid=self.valid,
            last_obs=[leaf[-1] for leaf in travelling],
            last_values=self.values[-1],
            final_index=np.ascontiguousarray(index),
            final_obs=final_obs,
            final_values=final_values,
            policy_version=policy_version,
            versions=versions,
            episodes=episodes,
            params=self.params,
            family=family,
            initial_state=[leaf[0] for leaf in self._states],
            states=[leaf[:-1] for leaf in self._states],
            in_place=self._in_place,
        )

    def _evaluate(
        self, values: Values, obs: Sequence[Array], states: Sequence[Array], env_ids: Ints, out: Array
    ) -> None:
        """Put values into `out` [T, n], of leaves [T, n, ...], a block after the other."""
        steps, envs = out.shape
        row_bytes = sum(leaf[:1, :1].nbytes for leaf in obs)
        rows = max(1, min(VALUE_BATCH_ROWS, VALUE_BATCH_BYTES // max(1, row_bytes)))
        for block in _blocks(steps, envs, rows):
            place = out[block]

            def flat(leaves: Sequence[Array], block: Block = block, rows: int = place.size) -> list[Array]:
                # Not -1, which says nothing of observations without elements.
                return [leaf[block].reshape(rows, *leaf.shape[2:]) for leaf in leaves]

            place[...] = values(
                self._obs_layout.nest(flat(obs)),
                env_ids=np.tile(env_ids[block[1]], len(place)),
                state=flat(states),
            ).reshape(place.shape)


def copy_leaves(source: Sequence[Array], target: Sequence[Array]) -> None:
    """Leaves of `target` hold what those of `source` do."""
    for values, place in zip(source, target, strict=True):
        place[...] = values


Block = tuple[slice, slice]


def _blocks(steps: int, envs: int, rows: int) -> Iterator[Block]:
    """All of [steps, envs] in parts of whole steps, or of one each, that have so many rows at most."""
    if not envs:
        return
    at_once, width = max(1, rows // envs), min(rows, envs)
    for step in range(0, steps, at_once):
        for env in range(0, envs, width):
            yield slice(step, step + at_once), slice(env, env + width)
