from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from clusterenv.batches import EpisodeRecord, Fragment
from clusterenv.layout import SpaceLayout
from clusterenv.rollout import Part, Rollout, assemble, side_by_side

NESTED = gym.spaces.Dict(
    {"image": gym.spaces.Box(0, 255, (2, 2), np.uint8), "pair": gym.spaces.Tuple([gym.spaces.Discrete(1000)])}
)
OBS, ACTIONS = SpaceLayout.of(NESTED), SpaceLayout.of(gym.spaces.Box(-1, 1, (3,)))
STEPS = 4


def fragment(first: int, envs: int, *, ends: list[tuple[int, int]] = [], version: int = 1) -> Fragment:  # noqa: B006
    """A fragment whose every number tells its step and its environment."""
    t, n = np.meshgrid(np.arange(STEPS), np.arange(first, first + envs), indexing="ij")
    marks = 10 * t + n

    def leaves(layout: SpaceLayout, values: np.ndarray) -> list[np.ndarray]:
        arrays = layout.empty(*values.shape)
        for array in arrays:
            array[...] = values.reshape(*values.shape, *[1] * (array.ndim - values.ndim))
        return arrays

    final = np.array([10 * t + first + n + 100 for t, n in ends])
    return Fragment(
        obs=leaves(OBS, marks),
        actions=leaves(ACTIONS, marks),
        rewards=marks.astype(np.float32),
        terminations=marks == 11,
        truncations=marks == 12,
        log_probs=-marks.astype(np.float32),
        values=marks.astype(np.float32) / 2,
        valid=np.ones_like(marks, dtype=np.bool_),
        last_obs=leaves(OBS, marks[-1] + 10),
        last_values=marks[-1].astype(np.float32),
        final_index=np.array(ends, np.int64).reshape(-1, 2),
        final_obs=leaves(OBS, final),
        final_values=final.astype(np.float32),
        policy_version=version,
        episodes=[EpisodeRecord(env_id=first + n, episode_return=10.0 * t, length=t) for t, n in ends],
    )


def assembled(*fragments: Fragment | None, first_envs: list[int], **options: Any) -> Rollout:
    return assemble(
        fragments,
        obs_layout=OBS,
        action_layout=ACTIONS,
        first_envs=first_envs,
        published_version=7,
        kl=[0.0] * len(fragments),
        **options,
    )


def test_assemble_places_workers_by_rank() -> None:
    rollout = assembled(fragment(0, 3), fragment(3, 2, version=5), first_envs=[0, 3])
    marks = 10 * np.arange(STEPS)[:, None] + np.arange(5)

    assert (rollout.num_steps, rollout.num_envs, len(rollout)) == (4, 5, 20)
    for seen in (rollout.rewards, -rollout.log_probs, 2 * rollout.values, rollout.actions[:, :, 2]):
        np.testing.assert_array_equal(seen, marks)
    np.testing.assert_array_equal(rollout.obs["image"][:, :, 1, 0], marks)
    np.testing.assert_array_equal(rollout.obs["pair"][0], marks)
    np.testing.assert_array_equal(rollout.last_obs["pair"][0], 40 + np.arange(5))
    np.testing.assert_array_equal(np.argwhere(rollout.terminations), [[1, 1]])
    np.testing.assert_array_equal(np.argwhere(rollout.truncations), [[1, 2]])
    assert rollout.valid.all()
    assert rollout.env_ids.tolist() == [0, 1, 2, 3, 4]
    assert rollout.workers.tolist() == [0, 0, 0, 1, 1]
    assert rollout.policy_version.tolist() == [[1, 1, 1, 5, 5]] * STEPS
    assert rollout.policy_lag.tolist() == [[6, 6, 6, 2, 2]] * STEPS


def test_assemble_has_the_documented_types() -> None:
    rollout = assembled(fragment(0, 3, ends=[(1, 0)]), fragment(3, 2), first_envs=[0, 3])

    dtypes = {
        "float32": ["rewards", "log_probs", "values", "last_values", "final_values"],
        "bool": ["terminations", "truncations", "valid"],
        "int64": ["policy_version", "policy_lag", "env_ids", "workers", "final_index"],
        "float64": ["kl"],
    }
    for dtype, names in dtypes.items():
        assert {name: getattr(rollout, name).dtype.name for name in names} == dict.fromkeys(names, dtype)
    assert rollout.obs["image"].dtype == np.uint8
    assert list(rollout.obs) == ["image", "pair"]


def test_assemble_orders_ends_by_time_whoever_ran_the_environment() -> None:
    ends = [[(0, 1), (3, 0)], [(0, 0), (2, 1)]]
    rollout = assembled(fragment(0, 2, ends=ends[0]), fragment(2, 2, ends=ends[1]), first_envs=[0, 2])
    alone = fragment(0, 4, ends=[(0, 1), (0, 2), (2, 3), (3, 0)])
    expected = assembled(alone, first_envs=[0])

    assert rollout.final_index.tolist() == [[0, 1], [0, 2], [2, 3], [3, 0]]
    np.testing.assert_array_equal(rollout.final_values, [101, 102, 123, 130])
    np.testing.assert_array_equal(rollout.final_obs["pair"][0], [101, 102, 123, 130])
    assert [(e.env_id, e.length) for e in rollout.episodes] == [(1, 0), (2, 0), (3, 2), (0, 3)]
    assert rollout.episodes == expected.episodes


def test_assemble_without_ends_has_empty_finals() -> None:
    rollout = assembled(fragment(0, 2), first_envs=[0])

    assert rollout.final_index.shape == (0, 2)
    assert rollout.final_obs["image"].shape == (0, 2, 2)
    assert rollout.final_values.shape == (0,)
    assert rollout.episodes == []


@pytest.mark.parametrize("lost", [0, 1])
def test_assemble_marks_a_lost_worker_as_not_valid(lost: int) -> None:
    fragments: list[Fragment | None] = [fragment(0, 2), fragment(2, 3)]
    fragments[lost] = None
    rollout = assembled(*fragments, first_envs=[0, 2], num_envs=5)
    rows = slice(0, 2) if lost == 0 else slice(2, 5)

    assert not rollout.valid[:, rows].any()
    assert rollout.valid.sum() == STEPS * (3 if lost == 0 else 2)
    for values in (rollout.rewards, rollout.actions, rollout.obs["image"], rollout.policy_lag):
        assert not values[:, rows].any()


def test_assemble_uses_the_arrays_of_a_lone_worker_where_it_can_write_them() -> None:
    part = fragment(0, 2)
    part.values.flags.writeable = False
    rollout = assembled(part, first_envs=[0])

    assert rollout.rewards is part.rewards
    assert rollout.values is not part.values
    assert rollout.values.flags.writeable


def test_torch_shares_memory() -> None:
    rollout = assembled(fragment(0, 3, ends=[(1, 0)]), fragment(3, 2), first_envs=[0, 3])
    tensors = rollout.torch()
    rollout.rewards[0, 0] = 99
    rollout.obs["pair"][0][0, 0] = 98

    assert tensors.rewards[0, 0] == 99
    assert tensors.obs["pair"][0][0, 0] == 98
    assert tensors.valid.dtype == torch.bool
    assert tensors.final_index.dtype == torch.int64
    assert tensors.episodes == rollout.episodes
    assert (tensors.num_steps, tensors.num_envs, len(tensors)) == (4, 5, 20)


def test_torch_copies_what_cannot_be_written() -> None:
    rollout = assembled(fragment(0, 2), first_envs=[0])
    rollout.rewards.flags.writeable = False

    assert torch.equal(rollout.torch().rewards, torch.tensor(rollout.rewards.tolist()))


def test_fragments_of_a_stream_lie_side_by_side_with_their_own_versions() -> None:
    mixed = fragment(3, 2, ends=[(2, 0)], version=5)
    mixed.versions = np.array([[4, 4], [4, 4], [5, 4], [5, 5]])
    rollout = side_by_side(
        [
            Part(mixed, worker=1, first_env=3, kl=0.5),
            Part(fragment(0, 3, ends=[(1, 2)], version=6), worker=0, first_env=0, kl=0.25),
        ],
        obs_layout=OBS,
        action_layout=ACTIONS,
        published_version=7,
        kl=[0.25, 0.5],
    )
    assert rollout.env_ids.tolist() == [3, 4, 0, 1, 2]
    assert rollout.workers.tolist() == [1, 1, 0, 0, 0]
    assert rollout.row_kl.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert rollout.policy_version[2].tolist() == [5, 4, 6, 6, 6]
    assert rollout.policy_lag[2].tolist() == [2, 3, 1, 1, 1]
    assert rollout.final_index.tolist() == [[1, 4], [2, 0]]
    assert [episode.env_id for episode in rollout.episodes] == [2, 3]
