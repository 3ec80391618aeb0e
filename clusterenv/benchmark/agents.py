"""The agent of the benchmarks: an MLP of 2x64 for the actor and another for the critic, in four styles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from clusterenv.errors import SpaceError

AgentStyle = Literal["distribution", "cleanrl", "residual", "torch"]
AGENT_STYLES: tuple[AgentStyle, ...] = get_args(AgentStyle)
THINNED = 12
"""Of images every so many pixels are seen, in both directions."""


class Agent(nn.Module):
    """An agent with `distribution` and `value`."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        inner: Callable[[], nn.Module] = nn.Tanh,
    ) -> None:
        """Draw the weights from torch's global generator; `inner` makes what is between the linear layers.

        Raises:
            SpaceError: unless observations are a Box, and actions a Discrete from 0 or a flat Box.
        """
        super().__init__()
        if not isinstance(observation_space, gym.spaces.Box):
            raise SpaceError(f"the benchmark's agent observes a Box, not {observation_space}")
        outputs = _num_outputs(action_space)
        size = _Seen()(torch.zeros(1, *observation_space.shape)).numel()
        self.actor = _mlp(size, outputs, inner, last_gain=0.01)
        self.critic = _mlp(size, 1, inner, last_gain=1.0)
        self.log_std = (
            nn.Parameter(torch.zeros(outputs)) if isinstance(action_space, gym.spaces.Box) else None
        )

    def distribution(self, obs: Tensor) -> Distribution:
        """The policy at observations [n, ...]."""
        outputs = self.actor(obs)
        if self.log_std is None:
            return Categorical(logits=outputs)
        return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs)), 1)

    def value(self, obs: Tensor) -> Tensor:
        """The values [n] of observations [n, ...]."""
        values: Tensor = self.critic(obs)
        return values.squeeze(-1)


class CleanRLAgent(nn.Module):
    """The same networks behind the one method that CleanRL's scripts call."""

    def __init__(self, agent: Agent) -> None:
        """Put `agent` behind it."""
        super().__init__()
        self.agent = agent

    def get_action_and_value(
        self, obs: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, the entropy and the value, for observations [n, ...]."""
        policy = self.agent.distribution(obs)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.agent.value(obs)


def networks_of(style: AgentStyle, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Agent:
    """The networks of `style`, whatever methods they are behind there; see `make_agent`."""
    return Agent(observation_space, action_space, _INNER.get(style, nn.Tanh))


def make_agent(
    style: AgentStyle, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> Agent | CleanRLAgent:
    """An agent of `style`; the same weights whenever torch is seeded alike.

    "distribution" and "cleanrl" are the same networks behind different methods. "residual" has LayerNorm and
    GELU, and what comes before them added, in place of each tanh; workers repeat it in C++ like the others.
    "torch" has Mish there, which they do not, so that torch computes it.
    """
    agent = networks_of(style, observation_space, action_space)
    return CleanRLAgent(agent) if style == "cleanrl" else agent


def _num_outputs(action_space: gym.Space[Any]) -> int:
    if isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0:
        return int(action_space.n)
    if isinstance(action_space, gym.spaces.Box) and len(action_space.shape) == 1:
        return action_space.shape[0]
    raise SpaceError(f"the benchmark's agent acts in a Discrete from 0 or a flat Box, not {action_space}")


class _Seen(nn.Module):
    """What the networks see, as float32 [n, k]: all of a vector, of images each 12th pixel of each 12th row.

    A network over all pixels would take ten times as long as most games, and hide what it costs to move them.
    """

    def forward(self, obs: Tensor) -> Tensor:
        return (obs if obs.ndim == 2 else obs[:, ::THINNED, ::THINNED].flatten(1)).float()


class _Residual(nn.Module):
    """`x + gelu(norm(x))`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.norm(x))


_INNER: dict[AgentStyle, Callable[[], nn.Module]] = {"residual": _Residual, "torch": nn.Mish}


def _mlp(inputs: int, outputs: int, inner: Callable[[], nn.Module], *, last_gain: float) -> nn.Sequential:
    sizes = [inputs, 64, 64, outputs]
    gains = [math.sqrt(2), math.sqrt(2), last_gain]
    layers: list[nn.Module] = [_Seen()]
    for size, following, gain in zip(sizes, sizes[1:], gains, strict=False):
        linear = nn.Linear(size, following)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, inner()]
    return nn.Sequential(*layers[:-1])
