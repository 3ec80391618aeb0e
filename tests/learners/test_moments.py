"""Running moments and the reward scale built on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterenv.learners.moments import RewardScale, merge_moments


@pytest.mark.parametrize("sizes", [(1, 1), (3, 40), (100, 2)])
def test_merged_moments_are_those_of_all_samples(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size, size + 1.0, size=(size, 3)) for size in sizes)

    mean, var, count = merge_moments(a.mean(0), a.var(0), len(a), b.mean(0), b.var(0), len(b))

    both = np.concatenate([a, b])
    np.testing.assert_allclose(mean, both.mean(0))
    np.testing.assert_allclose(var, both.var(0))
    assert count == len(both)


def test_first_samples_replace_the_moments_of_none() -> None:
    mean, var, _ = merge_moments(
        torch.zeros(2), torch.ones(2), 0, torch.tensor([3.0, 4.0]), torch.full((2,), 9.0), 5
    )

    assert mean.tolist() == [3.0, 4.0]
    assert var.tolist() == [9.0, 9.0]


def test_reward_scale_divides_by_the_deviation_of_the_discounted_return() -> None:
    rewards = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]], np.float32)
    ended = np.array([[False, False], [True, False], [False, False]])

    scaled = RewardScale(2, 0.5)(rewards, ended, np.ones((3, 2), bool))

    returns = [1.0, 2.0, 3.5, 0.0, 0.5, 4.0]  # 3 + 0.5 * 1; after the end 0.5 alone
    np.testing.assert_allclose(scaled, rewards / np.std(returns), rtol=1e-6)


def test_reward_scale_goes_on_over_rollouts() -> None:
    rng = np.random.default_rng(1)
    rewards, ended = rng.normal(size=(8, 3)), rng.random((8, 3)) < 0.2
    valid = np.ones((8, 3), bool)
    whole, parts = RewardScale(3, 0.9), RewardScale(3, 0.9)

    whole(rewards, ended, valid)
    for rows in (slice(0, 3), slice(3, 8)):
        parts(rewards[rows], ended[rows], valid[rows])

    again = rewards[:1] * 0
    again[:] = 1.0
    np.testing.assert_allclose(whole(again, ended[:1], valid[:1]), parts(again, ended[:1], valid[:1]))


def test_reward_scale_ignores_rows_that_are_not_valid() -> None:
    rewards = np.array([[1.0], [1e9], [2.0], [4.0]])
    valid = np.array([[True], [False], [True], [True]])

    scaled = RewardScale(1, 0.5)(rewards, np.zeros((4, 1), bool), valid)

    np.testing.assert_allclose(scaled[[0, 2, 3]], rewards[[0, 2, 3]] / np.std([1.0, 2.0, 5.0]))


def test_reward_scale_clips() -> None:
    rewards = np.zeros((100, 1))
    rewards[0] = 5.0

    scaled = RewardScale(1, 0.0, clip=3.0)(rewards, np.zeros((100, 1), bool), np.ones((100, 1), bool))

    assert scaled[0, 0] == 3.0
