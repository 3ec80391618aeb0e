"""When values are asked for, and of how many observations at once: they are the same whichever way."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Categorical

from clusterenv.batches import Fragment
from clusterenv.collector import MANY_ENVS
from clusterenv.commands import Collect
from clusterenv.recording import _blocks
from tests.pools import carrier, give_agent, reset, runner_of

T = 6
asked: list[int] = []
"""Rows of each call of a value function."""


class Frames(gym.Env[np.ndarray, np.int64]):
    """Every pixel is the number of the step; the fourth ends an episode."""

    def __init__(self, size: int) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._frame(), {}

    def step(self, action: np.int64) -> Any:
        self.steps += 1
        return self._frame(), 1.0, self.steps == 4, False, {}

    def _frame(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.steps, np.uint8)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(1, 2)

    def distribution(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs[:, 0, :1].float()))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        asked.append(len(obs))
        return 10 * obs[:, 0, 0].float()


@pytest.mark.parametrize(
    ("size", "envs", "first"),
    [
        (64, MANY_ENVS, MANY_ENVS),  # large and many: with each action
        (64, MANY_ENVS - 1, (T + 1) * (MANY_ENVS - 1)),
        (8, MANY_ENVS, (T + 1) * MANY_ENVS),
    ],
)
def test_values_of_large_observations_are_asked_for_with_the_actions(
    size: int, envs: int, first: int
) -> None:
    make = partial(Frames, size)
    runner = runner_of([make] * envs)
    give_agent(carrier(runner), Critic(), make())
    reset(carrier(runner), envs)
    asked.clear()

    fragment = carrier(runner)(Collect(num_steps=T))

    assert isinstance(fragment, Fragment)
    assert asked[0] == first
    assert sum(asked) == (T + 1) * envs + envs  # each once, and that of each end
    assert (fragment.values == 10 * np.array([0, 1, 2, 3, 0, 1])[:, None]).all()
    assert (fragment.last_values == 20).all()
    assert (fragment.final_values == 40).all()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 40))
def test_blocks_have_each_row_once_and_no_more_than_are_wanted(steps: int, envs: int, rows: int) -> None:
    seen = np.zeros((steps, envs), np.int64)
    for block in _blocks(steps, envs, rows):
        assert 0 < seen[block].size <= rows
        seen[block] += 1
    assert (seen == 1).all()
