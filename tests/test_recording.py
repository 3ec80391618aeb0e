"""When values are asked for, and of how many observations at once: they are the same whichever way."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Categorical

from clusterenv.batches import Fragment
from clusterenv.collector import MANY_ENVS
from clusterenv.commands import Collect
from clusterenv.recording import _blocks
from tests.envs import Frames
from tests.pools import carrier, give_agent, reset, runner_of

T = 6
asked: list[int] = []
"""Rows of each call of a value function."""


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
    make = partial(Frames, (size, size), 4)
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
