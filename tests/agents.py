"""Small agents of every style, made for anything with a `single_observation_space` and action space."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal


def spaces_of(env: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
    return env.single_observation_space, env.single_action_space


class Spaces:
    """What an agent needs of an environment, for tests without one."""

    def __init__(self, obs: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.single_observation_space = obs
        self.single_action_space = actions


def mlp(inputs: int, outputs: int, hidden: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def categoricals(logits: Tensor, space: gym.spaces.MultiDiscrete) -> list[Categorical]:
    return [Categorical(logits=part) for part in logits.split(space.nvec.tolist(), dim=1)]


def outputs_of(space: gym.Space[Any]) -> int:
    """Numbers that a network gives for the distribution over one action."""
    match space:
        case gym.spaces.Discrete():
            return int(space.n)
        case gym.spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case _:
            return math.prod(space.shape or ())


class MLPAgent(nn.Module):
    """`distribution(obs)` and `value(obs)`, for every kind of action; observations are flattened."""

    def __init__(self, env: Any, *, seed: int = 0, hidden: int = 16) -> None:
        super().__init__()
        self.obs_space, self.action_space = spaces_of(env)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs = gym.spaces.flatdim(self.obs_space)
            self.actor = mlp(inputs, outputs_of(self.action_space), hidden)
            self.critic = mlp(inputs, 1, hidden)
        if isinstance(self.action_space, gym.spaces.Box):
            self.log_std = nn.Parameter(torch.full((outputs_of(self.action_space),), -0.5))

    def distribution(self, obs: Any) -> Distribution | list[Categorical]:
        outputs = self.actor(flat(obs, self.obs_space))
        match self.action_space:
            case gym.spaces.Discrete():
                return Categorical(logits=outputs)
            case gym.spaces.MultiDiscrete():
                return categoricals(outputs, self.action_space)
            case gym.spaces.MultiBinary():
                return Independent(Bernoulli(logits=outputs), 1)
            case _:
                return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs)), 1)

    def value(self, obs: Any) -> Tensor:
        return self.critic(flat(obs, self.obs_space)).squeeze(-1)


class CleanRLAgent(nn.Module):
    """`get_action_and_value` and `get_value` as in CleanRL's scripts, for Discrete, MultiDiscrete and Box."""

    def __init__(self, env: Any, *, seed: int = 0) -> None:
        super().__init__()
        obs_space, self.action_space = spaces_of(env)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs = math.prod(obs_space.shape or ())
            self.critic = mlp(inputs, 1)
            self.actor = mlp(inputs, outputs_of(self.action_space))
        if isinstance(self.action_space, gym.spaces.Box):
            self.actor_logstd = nn.Parameter(torch.zeros(1, outputs_of(self.action_space)))

    def get_value(self, x: Tensor) -> Tensor:
        return self.critic(x)

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        outputs = self.actor(x)
        if isinstance(self.action_space, gym.spaces.Box):
            probs = Normal(outputs, torch.exp(self.actor_logstd.expand_as(outputs)))
            if action is None:
                action = probs.sample()
            return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)
        if isinstance(self.action_space, gym.spaces.MultiDiscrete):
            parts = categoricals(outputs, self.action_space)
            if action is None:
                action = torch.stack([part.sample() for part in parts])
            log_prob = torch.stack([part.log_prob(a) for a, part in zip(action, parts, strict=True)])
            entropy = torch.stack([part.entropy() for part in parts])
            return action.T, log_prob.sum(0), entropy.sum(0), self.critic(x)
        probs = Categorical(logits=outputs)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class ForwardAgent(nn.Module):
    """`forward(obs, action=None)` that gives the same four values."""

    def __init__(self, env: Any, *, seed: int = 0) -> None:
        super().__init__()
        self.inner = CleanRLAgent(env, seed=seed)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.inner.get_action_and_value(obs, action)


class NumpyAgent:
    """`act`, `get_parameters` and `set_parameters` without torch; Discrete actions, no log-probs."""

    def __init__(self, env: Any) -> None:
        obs_space, self.action_space = spaces_of(env)
        self.weights = np.zeros((math.prod(obs_space.shape or ()), int(self.action_space.n)))

    def act(self, obs: np.ndarray) -> np.ndarray:
        scores = obs.reshape(len(obs), -1) @ self.weights
        return scores.argmax(axis=1) + int(self.action_space.start)

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.weights[:] = parameters["weights"]


class ScoringNumpyAgent(NumpyAgent):
    """Gives (actions, log_prob, value), and cannot be set."""

    set_parameters = None

    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return super().act(obs), np.zeros(len(obs)), obs.reshape(len(obs), -1).sum(axis=1)


class ForcedLogits(nn.Module):
    """The same logits in every state, so that a test knows each probability; a value of 0."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def distribution(self, obs: Any) -> Categorical:
        return Categorical(logits=self.logits.expand(rows_of(obs), -1))

    def value(self, obs: Any) -> Tensor:
        return torch.zeros(rows_of(obs))


class UselessAgent:
    """Has no method that one could act with."""

    def think(self) -> str:
        return "hm"


def rows_of(obs: Any) -> int:
    while not hasattr(obs, "shape"):
        obs = next(iter(obs.values())) if isinstance(obs, dict) else obs[0]
    return len(obs)


def flat(obs: Any, space: gym.Space[Any]) -> Tensor:
    """A batch of any observations as [n, D] float32."""
    match space:
        case gym.spaces.Dict():
            return torch.cat([flat(obs[key], part) for key, part in space.items()], dim=1)
        case gym.spaces.Tuple():
            return torch.cat([flat(value, part) for value, part in zip(obs, space, strict=True)], dim=1)
        case gym.spaces.Discrete():
            return nn.functional.one_hot(obs - int(space.start), int(space.n)).float()
        case gym.spaces.MultiDiscrete():
            columns = zip(obs.reshape(len(obs), -1).unbind(1), space.nvec.reshape(-1).tolist(), strict=True)
            return torch.cat([nn.functional.one_hot(column, size).float() for column, size in columns], dim=1)
        case _:
            return obs.reshape(len(obs), -1).float()
