from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from clusterenv.benchmark.agents import Agent, AgentStyle, make_agent
from clusterenv.errors import SpaceError

FOUR = Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize(
    "observation_space", [FOUR, Box(-1, 1, (3,), np.float64), Box(0, 255, (8, 8), np.uint8)]
)
@pytest.mark.parametrize("action_space", [Discrete(3), Box(-2, 2, (2,), np.float32)])
def test_agent_acts_and_values_a_batch(
    observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    obs = torch.as_tensor(np.stack([observation_space.sample() for _ in range(5)]))
    agent = Agent(observation_space, action_space)
    policy = agent.distribution(obs)
    action = policy.sample()
    assert action.shape == (5, *action_space.shape)
    assert policy.log_prob(action).shape == agent.value(obs).shape == (5,)


def test_both_styles_are_the_same_networks() -> None:
    def agent(style: AgentStyle) -> Any:
        torch.manual_seed(3)
        return make_agent(style, FOUR, Discrete(2))

    obs, action = torch.ones(6, 4), torch.zeros(6, dtype=torch.int64)
    plain, cleanrl = agent("distribution"), agent("cleanrl")
    assert not hasattr(cleanrl, "distribution")  # else it would be taken for the other style
    same_action, log_prob, entropy, value = cleanrl.get_action_and_value(obs, action)
    assert same_action is action
    torch.testing.assert_close(log_prob, plain.distribution(obs).log_prob(action))
    torch.testing.assert_close(entropy, plain.distribution(obs).entropy())
    torch.testing.assert_close(value, plain.value(obs))
    assert cleanrl.get_action_and_value(obs)[0].shape == (6,)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "words"),
    [
        (Dict({"a": FOUR}), Discrete(2), "observes a Box, not Dict"),
        (FOUR, Discrete(2, start=1), "acts in a Discrete from 0 or a flat Box, not Discrete"),
        (FOUR, MultiBinary(2), "acts in a Discrete from 0 or a flat Box, not MultiBinary"),
        (FOUR, Box(-1, 1, (2, 2)), "acts in a Discrete from 0 or a flat Box, not Box"),
    ],
)
def test_agent_refuses_spaces_that_it_cannot_use(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], words: str
) -> None:
    with pytest.raises(SpaceError, match=words):
        Agent(observation_space, action_space)
