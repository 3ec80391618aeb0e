"""The agents of the learners, with Discrete or Box actions.

A tanh MLP for the policy and another for the value; of images, two heads over one network that both share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.nn import functional

from clusterenv.errors import SpaceError
from clusterenv.learners import parallel
from clusterenv.learners.image_networks import (
    HIDDEN,
    ImageTorso,
    NetworkName,
    Precision,
    network_for,
    orthogonal,
)
from clusterenv.learners.moments import merge_moments
from clusterenv.learners.returns import Floats, next_values
from clusterenv.rollout import Batch

Obs = Any  # arrays or tensors, nested as the observation space nests
OBS_CLIP = 10.0


class Actor(nn.Module):
    """A policy over the observations; `distribution` is what workers call.

    Observation statistics are buffers, so that they travel with the weights and count for their version; only
    the learner updates them, through `observe`. Networks see `features(obs)`: [..., D] float32, or images as
    they are, which are divided by 255 and never normalised otherwise.
    """

    obs_mean: Tensor
    obs_var: Tensor
    obs_count: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden: Sequence[int] | None = None,
        normalize_obs: bool = False,
        network: NetworkName = "auto",
        precision: Precision = "auto",
    ) -> None:
        """Draw the weights from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: of one environment.
            hidden: widths of the hidden layers; none: those of `HIDDEN`.
            normalize_obs: keep statistics of observations that are no images, and normalise by them.
            network: "auto": by the observations, as `network_for` says.
            precision: of the arithmetic of image networks.

        Raises:
            SpaceError: if the spaces are not among those that the network can read or act in.
        """
        super().__init__()
        self.observation_space = observation_space
        found = network_for(network, observation_space)
        self.images = found != "mlp"
        self.normalize_obs = normalize_obs and not self.images
        self.hidden = tuple(HIDDEN[found] if hidden is None else hidden)
        outputs, self.first_action = _action_outputs(action_space)
        self.continuous = isinstance(action_space, gym.spaces.Box)
        self.torso: nn.Module = nn.Identity()
        if found != "mlp":
            self.torso = ImageTorso(observation_space, found, self.hidden, precision)
        self.actor = self._head(outputs, last_gain=0.01)
        if self.continuous:
            self.log_std = nn.Parameter(torch.zeros(outputs))
        if self.normalize_obs:
            size = feature_size(observation_space)
            self.register_buffer("obs_mean", torch.zeros(size))
            self.register_buffer("obs_var", torch.ones(size))
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.float64))

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters and buffers."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())

    @property
    def device(self) -> torch.device:
        """Where the parameters are, and all that is computed with them."""
        return next(self.parameters()).device

    def distribution(self, obs: Obs) -> Distribution:
        """The policy at a batch of observations."""
        return self.policy(self.features(obs))

    def choose(self, obs: Obs, *, deterministic: bool) -> Tensor:
        """Actions [n, ...] for the environment: the most likely ones, or a sample of the policy."""
        distribution = self.distribution(obs)
        return self.env_actions(distribution.mode if deterministic else distribution.sample())

    def _head(self, outputs: int, *, last_gain: float) -> nn.Sequential:
        """What makes `outputs` numbers of what the torso gives."""
        if self.images:
            return mlp([self.hidden[-1], outputs], last_gain=last_gain)
        return mlp([feature_size(self.observation_space), *self.hidden, outputs], last_gain=last_gain)

    def features(self, obs: Obs) -> Tensor:
        """The observations as [..., D] float32, normalised if this agent does that; leading axes are kept.

        Images stay as they are, uint8.
        """
        if self.images:
            return torch.as_tensor(obs)
        flat = flatten(self.observation_space, obs)
        if not self.normalize_obs:
            return flat
        return ((flat - self.obs_mean) * torch.rsqrt(self.obs_var + 1e-8)).clamp(-OBS_CLIP, OBS_CLIP)

    def policy(self, features: Tensor) -> Distribution:
        """The policy at features [n, ...]."""
        return self.as_policy(self.actor(self.torso(features)))

    def as_policy(self, outputs: Tensor) -> Distribution:
        """The policy that the outputs [n, P] of the network mean."""
        if self.continuous:
            std = self.log_std.exp().expand_as(outputs)
            return Independent(Normal(outputs, std, validate_args=False), 1, validate_args=False)
        return Categorical(logits=outputs, validate_args=False)

    def action_targets(self, actions: Tensor) -> Tensor:
        """The environment's actions in the terms of `distribution`: indices from 0, or float32 rows."""
        return actions.float() if self.continuous else actions - self.first_action

    def env_actions(self, actions: Tensor) -> Tensor:
        """What `distribution` gives, as the environment takes it: the inverse of `action_targets`."""
        return actions if self.continuous else actions + self.first_action

    @torch.no_grad()
    def observe(self, obs: Obs, valid: NDArray[np.bool_] | Tensor) -> None:
        """Take the rows of `obs` [T, N, ...] where `valid` [T, N] into the observation statistics."""
        if not self.normalize_obs:
            return
        rows = flatten(self.observation_space, obs)[torch.as_tensor(valid)].to(self.device, torch.float64)
        own = (rows.mean(0), rows.var(0, correction=0)) if len(rows) else (rows.sum(0), rows.sum(0))
        batch_mean, batch_var, batch_count = parallel.pooled(*own, len(rows))
        if not batch_count:
            return
        mean, var, count = merge_moments(
            self.obs_mean.double(),
            self.obs_var.double(),
            float(self.obs_count),
            batch_mean,
            batch_var,
            batch_count,
        )
        self.obs_mean.copy_(mean)
        self.obs_var.copy_(var)
        self.obs_count.fill_(count)


class Agent(Actor):
    """A policy, and the value of observations."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden: Sequence[int] | None = None,
        normalize_obs: bool = False,
        network: NetworkName = "auto",
        precision: Precision = "auto",
    ) -> None:
        """Draw the weights from torch's global generator; arguments and errors are those of `Actor`."""
        super().__init__(
            observation_space,
            action_space,
            hidden=hidden,
            normalize_obs=normalize_obs,
            network=network,
            precision=precision,
        )
        self.critic = self._head(1, last_gain=1.0)

    def value(self, obs: Obs) -> Tensor:
        """The value [n] of a batch of observations."""
        return self.state_value(self.features(obs))

    def state_value(self, features: Tensor) -> Tensor:
        """The values [...] at features [..., D] or images."""
        values: Tensor = self.critic(self.torso(features)).squeeze(-1)
        return values

    def outputs_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What `as_policy` takes, [..., P], and the values [...], at features [..., D] or images.

        A network that policy and value share computes once for both.
        """
        seen = self.torso(features)
        return self.actor(seen), self.critic(seen).squeeze(-1)

    @torch.no_grad()
    def next_values(self, batch: Batch[Tensor], values: Tensor) -> Floats:
        """The value [T, N] of what each step of `batch` led to; `values` [T, N] are of its observations."""
        last_values, final_values = self.value(batch.last_obs), self.value(batch.final_obs)
        parts = (values, last_values, batch.final_index, final_values)
        return next_values(*(part.cpu().numpy() for part in parts))

    def without_critic(self) -> Actor:
        """The policy alone, on the same tensors: what workers need if nobody asks for their values."""
        actor = Actor.__new__(Actor)
        actor.__dict__ = self.__dict__ | {"_modules": {"torso": self.torso, "actor": self.actor}}
        return actor


def mlp(sizes: Sequence[int], *, last_gain: float, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers, `activation` between: orthogonal weights (gain sqrt 2, last `last_gain`), biases 0."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = index == len(sizes) - 2
        layer = orthogonal(nn.Linear(inputs, outputs), last_gain if last else math.sqrt(2))
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)


def feature_size(space: gym.Space[Any]) -> int:
    """D, the length of an observation once it is flat.

    Raises:
        SpaceError: if observations of `space` have no fixed size.
    """
    match space:
        case gym.spaces.Box() | gym.spaces.MultiBinary():
            return math.prod(space.shape)
        case gym.spaces.Discrete():
            return int(space.n)
        case gym.spaces.Dict():
            return sum(feature_size(part) for part in space.values())
        case gym.spaces.Tuple():
            return sum(feature_size(part) for part in space)
        case _:
            raise SpaceError(
                f"the learners' agent observes Box, Discrete, MultiBinary, Dict and Tuple spaces, not {space}"
            )


def _action_outputs(space: gym.Space[Any]) -> tuple[int, int]:
    match space:
        case gym.spaces.Discrete():
            return int(space.n), int(space.start)
        case gym.spaces.Box() if len(space.shape) == 1:
            return space.shape[0], 0
        case _:
            raise SpaceError(
                f"the learners' agent acts in Discrete and one-dimensional Box spaces, not {space}"
            )


def flatten(space: gym.Space[Any], obs: Obs) -> Tensor:
    """Observations [..., *shape] of `space` as [..., D] float32, one-hot where they are Discrete."""
    match space:
        case gym.spaces.Dict():
            return torch.cat([flatten(part, obs[key]) for key, part in space.items()], dim=-1)
        case gym.spaces.Tuple():
            return torch.cat([flatten(part, value) for part, value in zip(space, obs, strict=True)], dim=-1)
        case gym.spaces.Discrete():
            rows = torch.as_tensor(obs, dtype=torch.int64) - int(space.start)
            return functional.one_hot(rows, int(space.n)).float()
        case _:
            rows = torch.as_tensor(obs, dtype=torch.float32)
            shape = space.shape or ()
            return rows.reshape(*rows.shape[: rows.ndim - len(shape)], math.prod(shape))
