"""What we compare with, written as a user without a library would."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from clusterenv.benchmark.agents import Agent, AgentStyle, networks_of

Advance = Callable[[], int]
"""Makes a few environment steps; their number."""

LOOKS = 64
"""Steps of the bare loop between two looks at the clock."""


def bare_loop(env_id: str, seed: int) -> Advance:
    """One environment and random actions drawn beforehand: the ceiling of everything written in Python."""
    env = gym.make(env_id)
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(LOOKS)]
    env.reset(seed=seed)

    def advance() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return LOOKS

    return advance


def hand_written(
    env_id: str, num_envs: int, num_steps: int, seed: int, style: AgentStyle = "distribution"
) -> Advance:
    """`SyncVectorEnv` and a torch agent; steps are stored in arrays [num_steps, num_envs], for a learner.

    It samples without `torch.distributions`, which would add a fifth to its time on CartPole: of two usual
    ways we compare with the faster one.
    """
    envs = SyncVectorEnv(
        [lambda: gym.make(env_id) for _ in range(num_envs)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    return acting_in(envs, num_steps, seed, style)


def acting_in(
    envs: VectorEnv[Any, Any, Any], num_steps: int, seed: int, style: AgentStyle = "distribution"
) -> Advance:
    """The same over any vector that has the interface of Gymnasium's."""
    space = envs.single_action_space
    torch.manual_seed(seed)
    agent = networks_of(style, envs.single_observation_space, space)
    batch = _Batch(envs, num_steps)
    obs, _ = envs.reset(seed=seed)
    step = 0

    def advance() -> int:
        nonlocal obs, step
        batch.obs[step] = obs
        tensor = torch.as_tensor(obs)
        with torch.no_grad():
            action, log_prob = act(agent, tensor)
            batch.log_probs[step] = log_prob.numpy()
            batch.values[step] = agent.value(tensor).numpy()
        batch.actions[step] = actions = action.numpy()
        if isinstance(space, gym.spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        obs, batch.rewards[step], batch.terminations[step], batch.truncations[step], _ = envs.step(actions)
        step = (step + 1) % num_steps
        return envs.num_envs

    return advance


def act(agent: Agent, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [n, ...] drawn from the policy at `obs`, and their log-probabilities [n]."""
    outputs = agent.actor(obs)
    if agent.log_std is None:
        log_probs = torch.log_softmax(outputs, -1)
        action = torch.multinomial(log_probs.exp(), 1)
        return action.squeeze(-1), log_probs.gather(-1, action).squeeze(-1)
    noise = torch.randn_like(outputs)
    log_density = -0.5 * (noise.square() + math.log(2 * math.pi)) - agent.log_std
    return outputs + agent.log_std.exp() * noise, log_density.sum(-1)


class _Batch:
    """The arrays of one batch, [num_steps, num_envs, ...], written over by the next."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], num_steps: int) -> None:
        shape = (num_steps, envs.num_envs)

        def of(space: gym.Space[Any]) -> np.ndarray[Any, Any]:
            return np.zeros(shape + (space.shape or ()), dtype=space.dtype)

        self.obs = of(envs.single_observation_space)
        self.actions = of(envs.single_action_space)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminations = np.zeros(shape, dtype=np.bool_)
        self.truncations = np.zeros(shape, dtype=np.bool_)
        self.log_probs = np.zeros(shape, dtype=np.float32)
        self.values = np.zeros(shape, dtype=np.float32)
