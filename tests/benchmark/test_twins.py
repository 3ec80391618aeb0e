from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from clusterenv.benchmark.agents import Agent
from clusterenv.benchmark.twins import LOOKS, act, bare_loop, hand_written


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_hand_written_makes_one_step_of_each_environment_and_wraps_around(env_id: str) -> None:
    advance = hand_written(env_id, num_envs=3, num_steps=4, seed=1)
    assert [advance() for _ in range(60)] == [3] * 60  # past the ends of batches and episodes


@pytest.mark.parametrize("space", [Discrete(3), Box(-2, 2, (2,), np.float32)])
def test_act_draws_from_the_policy_of_the_agent(space: gym.Space[Any]) -> None:
    torch.manual_seed(0)
    agent = Agent(Box(-1, 1, (4,), np.float32), space)
    torch.nn.init.constant_(agent.actor[-1].bias, 0.5)
    torch.nn.init.normal_(agent.actor[-1].weight)
    if agent.log_std is not None:
        torch.nn.init.constant_(agent.log_std, -0.7)
    obs = torch.randn(1, 4).expand(20_000, 4)
    with torch.no_grad():
        action, log_prob = act(agent, obs)
        policy = agent.distribution(obs)
        torch.testing.assert_close(log_prob, policy.log_prob(action))
        torch.testing.assert_close(-log_prob.mean(), policy.entropy().mean(), atol=0.03, rtol=0)


def test_bare_loop_goes_on_over_the_ends_of_episodes() -> None:
    advance = bare_loop("CartPole-v1", seed=1)
    assert [advance() for _ in range(5)] == [LOOKS] * 5
