"""The learners' agent: what it observes, what it acts in, and the statistics that travel with it."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.adapters import adapt
from clusterenv.errors import SpaceError
from clusterenv.learners.networks import Agent

BOX = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)

OBSERVATIONS = {
    "box": (BOX, 3),
    "scalar box": (spaces.Box(-1, 1, (), np.float64), 1),
    "image": (spaces.Box(0, 255, (4, 5), np.uint8), 20),
    "discrete": (spaces.Discrete(4, start=-2), 4),
    "multi-binary": (spaces.MultiBinary(3), 3),
    "nested": (spaces.Dict(b=spaces.Tuple([TWO, BOX]), a=spaces.Box(0, 1, (2, 2))), 9),
}


@pytest.mark.parametrize(("space", "size"), OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("lead", [(5,), (3, 2)])
def test_features_flatten_every_observation_and_keep_leading_axes(
    space: gym.Space[Any], size: int, lead: tuple[int, ...]
) -> None:
    agent = Agent(space, TWO)
    space.seed(0)
    samples = [space.sample() for _ in range(math.prod(lead))]

    features = agent.features(_batch(space, samples, lead))

    assert features.shape == (*lead, size)
    assert features.dtype == torch.float32
    flat = [_flat(space, sample) for sample in samples]
    np.testing.assert_allclose(features.reshape(-1, size), np.stack(flat), rtol=1e-6)


@pytest.mark.parametrize(("space", "size"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_features_of_no_observations_have_no_rows(space: gym.Space[Any], size: int) -> None:
    nothing = _batch(space, [space.sample()], (1,))
    agent = Agent(space, TWO)
    assert agent.features(_cut(nothing)).shape == (0, size)


def _cut(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _cut(part) for key, part in batch.items()}
    return tuple(map(_cut, batch)) if isinstance(batch, tuple) else batch[:0]


def _batch(space: gym.Space[Any], samples: list[Any], lead: tuple[int, ...]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _batch(part, [sample[key] for sample in samples], lead) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batch(part, [sample[i] for sample in samples], lead) for i, part in enumerate(space))
    return torch.from_numpy(np.stack(samples).reshape(*lead, *(space.shape or ())))


def _flat(space: gym.Space[Any], sample: Any) -> np.ndarray:
    """As Gymnasium flattens, but a Dict in the order of the space."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flat(part, sample[key]) for key, part in space.items()])
    return spaces.flatten(space, sample)


@pytest.mark.parametrize(
    ("obs", "actions", "named"),
    [
        (spaces.Text(3), TWO, "Text"),
        (spaces.Dict(a=spaces.Sequence(BOX)), TWO, "Sequence"),
        (BOX, spaces.MultiBinary(2), "MultiBinary"),
        (BOX, spaces.Box(-1, 1, (2, 2)), r"Box\(-1.0, 1.0, \(2, 2\)"),
    ],
)
def test_space_that_the_agent_cannot_handle_is_named(
    obs: gym.Space[Any], actions: gym.Space[Any], named: str
) -> None:
    with pytest.raises(SpaceError, match=named):
        Agent(obs, actions)


def test_actions_count_from_the_start_of_the_space_in_the_environment_only() -> None:
    agent = Agent(BOX, spaces.Discrete(3, start=2))
    indices = torch.tensor([0, 2])

    assert agent.env_actions(indices).tolist() == [2, 4]
    assert agent.action_targets(agent.env_actions(indices)).tolist() == [0, 2]


def test_weights_start_orthogonal_with_a_nearly_uniform_policy() -> None:
    agent = Agent(BOX, TWO, hidden=(8, 8))
    weights = [layer.weight for layer in agent.actor if hasattr(layer, "weight")]

    torch.testing.assert_close(weights[1] @ weights[1].T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(weights[2] @ weights[2].T, 1e-4 * torch.eye(2), atol=1e-7, rtol=0)
    assert not any(layer.bias.any() for layer in [*agent.actor, *agent.critic] if hasattr(layer, "bias"))


def test_statistics_take_in_valid_rows_alone() -> None:
    agent = Agent(BOX, TWO, normalize_obs=True)
    obs = np.random.default_rng(0).normal(5, 3, (4, 6, 3)).astype(np.float32)
    valid = np.random.default_rng(1).random((4, 6)) < 0.6

    agent.observe(obs[:2], valid[:2])
    agent.observe(obs[2:], valid[2:])
    agent.observe(obs, np.zeros_like(valid))

    seen = obs[valid].astype(np.float64)
    np.testing.assert_allclose(agent.obs_mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(agent.obs_var, seen.var(0), rtol=1e-5)
    normalised = agent.features(torch.from_numpy(obs))
    np.testing.assert_allclose(normalised, (obs - seen.mean(0)) / seen.std(0), rtol=1e-3, atol=1e-4)


def test_features_are_clipped_when_normalised() -> None:
    agent = Agent(BOX, TWO, normalize_obs=True)

    assert agent.features(torch.full((1, 3), 1e6)).tolist() == [[10.0] * 3]


def test_agent_without_statistics_ignores_what_it_observes() -> None:
    agent = Agent(BOX, TWO)

    agent.observe(np.ones((2, 2, 3), np.float32), np.ones((2, 2), bool))

    assert not list(agent.buffers())


@pytest.mark.parametrize(
    "actions", [TWO, spaces.Box(-1, 1, (2,), np.float32)], ids=["discrete", "continuous"]
)
def test_workers_have_a_closed_form_for_the_agent_and_get_its_statistics(actions: gym.Space[Any]) -> None:
    agent = Agent(BOX, actions, normalize_obs=True)
    adapter = adapt(agent, BOX, actions)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)

    acted = adapter.act(obs, seed=1, env_ids=np.arange(5), steps=np.zeros(5, np.int64))

    assert acted.params is not None
    np.testing.assert_allclose(acted.values, agent.value(torch.from_numpy(obs)).detach(), rtol=1e-5)
    assert {"obs_mean", "obs_var", "obs_count"} <= set(adapter.state())
