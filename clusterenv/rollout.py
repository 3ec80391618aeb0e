"""Fragments of all workers side by side: the batch [T, N] that a learner gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterenv.batches import EpisodeRecord, Fragment
from clusterenv.in_place import lies_in_place
from clusterenv.layout import SpaceLayout
from clusterenv.policy import policy_lag

if TYPE_CHECKING:
    import torch

ArrayT = TypeVar("ArrayT", bound=Sized)
Array = NDArray[Any]
Nested = Any
"""An array, or a dict or tuple of them, as a space nests."""


@dataclass(frozen=True, kw_only=True)
class Batch(Generic[ArrayT]):
    """T steps of N environments, of which `env_ids` are the numbers in the whole run, whoever ran them.

    A `rollout` has all of them in order. A batch of a stream has those of its fragments, in the order of
    arrival, and an environment twice if two fragments are of the same worker.

    `obs`, `actions`, `last_obs` and `final_obs` are nested as their spaces nest; parts without a fixed size
    (Text, Sequence, Graph, OneOf) are arrays of objects.
    """

    obs: Nested
    """[T, N, ...]: what the policy acted on."""
    actions: Nested
    """[T, N, ...]: as the environments' action space has them, a Box action before it was clipped."""
    rewards: ArrayT
    """[T, N] float32."""
    terminations: ArrayT
    """[T, N] bool: true ends."""
    truncations: ArrayT
    """[T, N] bool: cut off, by a time limit for example."""
    log_probs: ArrayT
    """[T, N] float32: of the actions under the policy that acted; NaN where the agent has none."""
    values: ArrayT
    """[T, N] float32: of `obs` by the critic that acted; NaN where the agent has none."""
    policy_version: ArrayT
    """[T, N] int64: of the policy that acted."""
    policy_lag: ArrayT
    """[T, N] int64: versions by which the policy that acted was behind the learner's."""
    valid: ArrayT
    """[T, N] bool: False in rows that are no transitions, such as a lost worker's; mask the loss by it."""
    env_ids: ArrayT
    """[N] int64."""
    workers: ArrayT
    """[N] int64: rank of the worker that has the environment."""
    last_obs: Nested
    """[N, ...]: what comes after the last step."""
    last_values: ArrayT
    """[N] float32."""
    final_index: ArrayT
    """[K, 2] int64: (t, n) of the steps that ended an episode, in the order of t, then n."""
    final_obs: Nested
    """[K, ...]: the observations that those steps really led to."""
    final_values: ArrayT
    """[K] float32."""
    initial_state: Nested = None
    """[N, ...]: what a recurrent agent remembered before the first step, nested as its state; else None."""
    kl: ArrayT
    """[workers] float64: each worker's last divergence from the learner's policy, in nats."""
    row_kl: ArrayT
    """[N] float64: that of the worker of each environment, at its last check before it acted here."""
    episodes: list[EpisodeRecord]
    """The episodes that ended here, in the order of `final_index`."""

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.env_ids)

    def __len__(self) -> int:
        """T * N, the rows, valid or not."""
        return self.num_steps * self.num_envs


@dataclass(frozen=True, kw_only=True)
class Rollout(Batch[Array]):
    """A batch of NumPy arrays, all of them the caller's own: they are never written again."""

    def torch(self, device: torch.device | str | None = None) -> Batch[torch.Tensor]:
        """The same batch as tensors, which share the arrays' memory unless `device` is not the CPU.

        Arrays of samples of variable size stay as they are.
        """
        import torch

        def tensor(array: Array) -> torch.Tensor | Array:
            if array.dtype.hasobject:
                return array
            writable = array if array.flags.writeable else array.copy()
            return torch.from_numpy(writable).to(device)

        values = {item.name: getattr(self, item.name) for item in fields(self)}
        episodes = values.pop("episodes")
        return Batch(episodes=episodes, **{name: _mapped(tensor, value) for name, value in values.items()})


NestState = Callable[[list[Array]], Nested]
"""Leaves [n, ...] nested as the agent nests its state."""


def no_state(_: list[Array]) -> Nested:
    """What is there of an agent that has none."""
    return None


def assemble(
    fragments: Sequence[Fragment | None],
    *,
    obs_layout: SpaceLayout,
    action_layout: SpaceLayout,
    first_envs: Sequence[int],
    published_version: int,
    kl: Sequence[float],
    num_envs: int | None = None,
    nest_state: NestState = no_state,
    placed: Sequence[Array] | None = None,
) -> Rollout:
    """The fragments of all workers side by side, by rank; a lost worker's rows are zeros and not valid.

    The arrays of a lone fragment become the rollout's own, where they can be written; so do those `placed`.

    Args:
        fragments: by rank, all of the same T; None for a lost worker. At least one is there.
        obs_layout: of one environment's observations.
        action_layout: of one environment's actions.
        first_envs: number of each worker's first environment, by rank.
        published_version: of the learner's policy, from which the lag counts.
        kl: each worker's divergence, by rank.
        num_envs: environments of all workers; needed if the last worker is lost.
        nest_state: nests leaves as the agent nests its state.
        placed: leaves [T + 1, N, ...] in which the observations of all fragments lie, but for a lost one's.
    """
    num_steps = next(fragment.num_steps for fragment in fragments if fragment is not None)
    if num_envs is None:
        last = fragments[-1]
        assert last is not None, "num_envs is needed when the last worker is lost"
        num_envs = first_envs[-1] + last.num_envs
    counts = np.diff([*first_envs, num_envs])
    state = next(fragment.initial_state for fragment in fragments if fragment is not None)
    parts = [
        Part(
            _absent(num_steps, int(count), obs_layout, action_layout, state)
            if fragment is None
            else fragment,
            worker=rank,
            first_env=first_envs[rank],
            kl=kl[rank],
            absent=fragment is None,
        )
        for rank, (fragment, count) in enumerate(zip(fragments, counts, strict=True))
    ]
    for leaf in placed or ():
        for part in parts:
            if part.absent:
                leaf[:, part.first_env : part.first_env + part.fragment.num_envs] = 0
    return side_by_side(
        parts,
        obs_layout=obs_layout,
        action_layout=action_layout,
        published_version=published_version,
        kl=kl,
        nest_state=nest_state,
        placed=placed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A fragment and whose it is."""

    fragment: Fragment = field(kw_only=False)
    worker: int
    first_env: int
    kl: float
    """The worker's divergence from the learner's policy, as known when the fragment was begun."""
    absent: bool = False
    """Whether it only stands for that of a lost worker."""

    @property
    def versions(self) -> Array:
        """[T, n] int64."""
        fragment = self.fragment
        if fragment.versions is not None:
            return fragment.versions
        return np.full(fragment.rewards.shape, fragment.policy_version, np.int64)


def side_by_side(
    parts: Sequence[Part],
    *,
    obs_layout: SpaceLayout,
    action_layout: SpaceLayout,
    published_version: int,
    kl: Sequence[float],
    nest_state: NestState = no_state,
    placed: Sequence[Array] | None = None,
) -> Rollout:
    """Fragments of any workers side by side, in their order; all of the same T.

    The arrays of a lone fragment become the rollout's own, where they can be written. See `assemble`.
    """
    fragments = [part.fragment for part in parts]
    counts = [fragment.num_envs for fragment in fragments]
    versions = _beside([part.versions for part in parts], 1)
    lags = policy_lag(published_version, versions)
    lags[:, np.repeat([part.absent for part in parts], counts)] = 0
    columns: dict[str, Any] = {name: _beside([getattr(f, name) for f in fragments], 1) for name in _COLUMNS}
    obs, last_obs = _observations(fragments, obs_layout, placed)
    return Rollout(
        obs=obs_layout.nest(obs),
        actions=action_layout.nest(_leaves([f.actions for f in fragments], 1)),
        policy_version=versions,
        policy_lag=lags,
        env_ids=np.concatenate(
            [np.arange(part.first_env, part.first_env + part.fragment.num_envs) for part in parts]
        ),
        workers=np.repeat(np.array([part.worker for part in parts], dtype=np.int64), counts),
        last_obs=obs_layout.nest(last_obs),
        last_values=_beside([f.last_values for f in fragments], 0),
        initial_state=nest_state(_leaves([f.initial_state for f in fragments], 0)),
        kl=np.array(kl, dtype=np.float64),
        row_kl=np.repeat(np.array([part.kl for part in parts], dtype=np.float64), counts),
        **columns,
        **_ends(parts, obs_layout),
    )


def _observations(
    fragments: Sequence[Fragment], layout: SpaceLayout, placed: Sequence[Array] | None
) -> tuple[list[Array], list[Array]]:
    """Leaves [T, N, ...] and those after the last step [N, ...]."""
    there = iter(placed or ())
    obs, last_obs = [], []
    for number, leaf in enumerate(layout.leaves):
        if placed is not None and lies_in_place(leaf):
            whole = next(there)
            obs.append(whole[:-1])
            last_obs.append(whole[-1])
        else:
            obs.append(_beside([f.obs[number] for f in fragments], 1))
            last_obs.append(_beside([f.last_obs[number] for f in fragments], 0))
    return obs, last_obs


_COLUMNS = ("rewards", "terminations", "truncations", "log_probs", "values", "valid")


def _ends(parts: Sequence[Part], obs_layout: SpaceLayout) -> dict[str, Any]:
    """What there is for each ended episode, ordered by time and then column, whoever ran it."""
    fragments = [part.fragment for part in parts]
    starts = np.cumsum([0, *(fragment.num_envs for fragment in fragments)])[:-1].tolist()
    index = np.concatenate([f.final_index + np.array([0, s]) for f, s in zip(fragments, starts, strict=True)])
    order = np.lexsort((index[:, 1], index[:, 0]))
    index, columns = index[order], index[:, 1]
    return {
        "final_index": index,
        "final_obs": obs_layout.nest([leaf[order] for leaf in _leaves([f.final_obs for f in fragments], 0)]),
        "final_values": np.concatenate([f.final_values for f in fragments])[order],
        "episodes": _episodes(parts, starts, columns, order),
    }


def _absent(
    num_steps: int, num_envs: int, obs: SpaceLayout, actions: SpaceLayout, state: Sequence[Array]
) -> Fragment:
    """What stands for the fragment of a lost worker: zeros, no row valid."""
    lead = (num_steps, num_envs)

    def zeros(layout: SpaceLayout, *shape: int) -> list[Array]:
        return [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in layout.leaves]

    return Fragment(
        obs=zeros(obs, *lead),
        actions=zeros(actions, *lead),
        rewards=np.zeros(lead, np.float32),
        terminations=np.zeros(lead, np.bool_),
        truncations=np.zeros(lead, np.bool_),
        log_probs=np.zeros(lead, np.float32),
        values=np.zeros(lead, np.float32),
        valid=np.zeros(lead, np.bool_),
        last_obs=zeros(obs, num_envs),
        last_values=np.zeros(num_envs, np.float32),
        final_index=np.zeros((0, 2), np.int64),
        final_obs=zeros(obs, 0),
        final_values=np.zeros(0, np.float32),
        policy_version=0,
        initial_state=[np.zeros((num_envs, *leaf.shape[1:]), leaf.dtype) for leaf in state],
    )


def _beside(parts: Sequence[Array], axis: int) -> Array:
    if len(parts) == 1 and parts[0].flags.writeable:
        return parts[0]
    return np.concatenate(parts, axis)


def _leaves(parts: Sequence[Sequence[Array]], axis: int) -> list[Array]:
    return [_beside(leaf, axis) for leaf in zip(*parts, strict=True)]


def _episodes(
    parts: Sequence[Part], starts: Sequence[int], ended: Array, order: Array
) -> list[EpisodeRecord]:
    """Those of all fragments, in the `order` that brings the columns `ended` [K] into that of the ends."""
    episodes = [episode for part in parts for episode in part.fragment.episodes]
    columns = [
        start + episode.env_id - part.first_env
        for part, start in zip(parts, starts, strict=True)
        for episode in part.fragment.episodes
    ]
    if np.array_equal(columns, ended):  # one for each end, as nearly always
        return [episodes[i] for i in order.tolist()]
    return _in_order(list(zip(columns, episodes, strict=True)), ended[order])


def _in_order(episodes: Sequence[tuple[int, EpisodeRecord]], ended: Array) -> list[EpisodeRecord]:
    """Episodes, each given with its column, in the order of the columns `ended`."""
    waiting: dict[int, list[EpisodeRecord]] = {}
    for column, episode in episodes:
        waiting.setdefault(column, []).append(episode)
    ordered = [waiting[column].pop(0) for column in ended.tolist() if waiting.get(column)]
    return ordered + [episode for left in waiting.values() for episode in left]


def _mapped(function: Callable[[Array], object], nested: Nested) -> Nested:
    """`nested` with `function` applied to each array in it; None stays."""
    if nested is None:
        return None
    if isinstance(nested, dict):
        return {key: _mapped(function, value) for key, value in nested.items()}
    if isinstance(nested, tuple):
        return tuple(_mapped(function, value) for value in nested)
    return function(nested)
