"""Squashed Gaussians, masked actions, and deterministic agents with noise, in one process."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from clusterenv import distributions
from clusterenv.adapters import Acted, AgentAdapter, adapt, loads
from clusterenv.distributions import Kind
from clusterenv.errors import AgentError

ROWS = 64
SEEN = spaces.Box(-1, 1, (3,))
TORQUES = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
OBS = np.random.default_rng(0).uniform(-1, 1, (ROWS, 3)).astype(np.float32)
IDS = np.arange(ROWS)


def pair(agent: object, actions: gym.Space[Any]) -> tuple[AgentAdapter, AgentAdapter]:
    """The learner's agent, and a worker's copy with its weights."""
    learner = adapt(agent, SEEN, actions)
    worker = loads(learner.dumps(), SEEN, actions)
    worker.load_state(learner.transfer_state())
    return learner, worker


def act(adapter: AgentAdapter, step: int = 0) -> Acted:
    return adapter.act(OBS, seed=1, env_ids=IDS, steps=np.full(ROWS, step))


class Squashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.register_buffer("centre", torch.tensor([0.0, 2.0]))
        self.register_buffer("half_width", torch.tensor([1.0, 2.0]))

    def distribution(self, obs: Tensor) -> TransformedDistribution:
        base = Independent(Normal(self.mean(obs), torch.full((2,), 0.5)), 1)
        return TransformedDistribution(base, [TanhTransform(), AffineTransform(self.centre, self.half_width)])


class SquashedCleanRL(Squashed):
    distribution = None

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        probs = Squashed.distribution(self, x)
        action = probs.rsample() if action is None else action
        return action, probs.log_prob(action), probs.base_dist.entropy(), x[:, 0]


@pytest.mark.parametrize("kind", [Squashed, SquashedCleanRL])
def test_squashed_gaussian_is_drawn_and_compared_in_closed_form(kind: type[Squashed]) -> None:
    agent = kind()
    learner, worker = pair(agent, TORQUES)
    acted = act(worker)
    for _ in range(3):
        assert np.array_equal(act(worker).actions, acted.actions)
    assert acted.params is not None
    assert worker.family is not None
    assert worker.family.kind is Kind.TANH_GAUSSIAN
    assert all(TORQUES.contains(action) for action in acted.actions)
    theirs = Squashed.distribution(agent, torch.from_numpy(OBS)).log_prob(torch.from_numpy(acted.actions))
    np.testing.assert_allclose(acted.log_probs, theirs.detach(), rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(learner.evaluate(OBS, acted.actions).log_probs, acted.log_probs)
    theta = learner.parameters(OBS)
    assert theta is not None
    np.testing.assert_array_equal(theta, acted.params)
    with torch.no_grad():
        agent.mean.bias += 0.1
    changed = learner.parameters(OBS)
    assert changed is not None
    kl = distributions.kl(worker.family, theta, changed)
    np.testing.assert_allclose(kl, 2 * 0.1**2 / (2 * 0.5**2), rtol=1e-4)


class Masked(nn.Module):
    """Never plays action 0 where the first number seen is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(3, 3)

    def logits(self, obs: Tensor) -> Tensor:
        blocked = torch.stack([obs[:, 0] < 0, torch.zeros(len(obs)) > 0, torch.zeros(len(obs)) > 0], dim=1)
        return self.actor(obs).masked_fill(blocked, -math.inf)

    def distribution(self, obs: Tensor) -> Categorical:
        return Categorical(logits=self.logits(obs))


class MaskedCleanRL(Masked):
    distribution = None

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        probs = Categorical(logits=self.logits(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), x[:, 0]


@pytest.mark.parametrize("kind", [Masked, MaskedCleanRL])
def test_masked_actions_are_never_drawn_and_never_make_a_nan(kind: type[Masked]) -> None:
    agent = kind()
    learner, worker = pair(agent, spaces.Discrete(3))
    for step in range(20):
        acted = act(worker, step)
        assert acted.params is not None
        assert (acted.actions[OBS[:, 0] < 0] > 0).all()
        assert np.isfinite(acted.log_probs).all()
    theta = learner.parameters(OBS)
    assert theta is not None
    assert worker.family is not None
    np.testing.assert_allclose(theta, acted.params, rtol=1e-6)
    with torch.no_grad():
        agent.actor.bias += torch.tensor([0.1, 0.0, 0.0])
    changed = learner.parameters(OBS)
    assert changed is not None
    kl = distributions.kl(worker.family, theta, changed)
    assert np.isfinite(kl).all()
    assert (kl[OBS[:, 0] >= 0] > 0).all()
    assert np.isneginf(
        learner.evaluate(OBS[OBS[:, 0] < 0], np.zeros((OBS[:, 0] < 0).sum(), int)).log_probs
    ).all()
    everything = np.zeros_like(theta)
    assert np.isposinf(distributions.kl(worker.family, everything, theta)[OBS[:, 0] < 0]).all()


class Actor(nn.Module):
    """DDPG's and TD3's: an action, and noise around it."""

    def __init__(self, noise: Any = 0.1) -> None:
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.register_buffer("noise_std", torch.tensor(noise))

    def act(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.mean(obs))


class NumpyActor:
    def __init__(self) -> None:
        self.weights = np.random.default_rng(1).normal(size=(3, 2))
        self.noise_std = np.array(0.1)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.tanh(obs @ self.weights)

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights, "noise_std": self.noise_std}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.weights, self.noise_std = parameters["weights"], parameters["noise_std"]


@pytest.mark.parametrize("kind", [Actor, NumpyActor])
def test_deterministic_agent_with_noise_is_a_gaussian(kind: type) -> None:
    agent = kind()
    learner, worker = pair(agent, TORQUES)
    acted = act(worker)
    means = np.asarray(agent.act(torch.from_numpy(OBS) if kind is Actor else OBS).tolist(), np.float32)
    noise = acted.actions - means
    assert noise.std() == pytest.approx(0.1, rel=0.2)
    assert worker.family is not None
    assert worker.family.kind is Kind.DIAG_GAUSSIAN
    np.testing.assert_allclose(learner.parameters(OBS), acted.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(learner.evaluate(OBS, acted.actions).log_probs, acted.log_probs, atol=1e-3)
    agent.noise_std[...] = 0.2
    worker.load_state(learner.transfer_state())
    assert (act(worker).actions - means).std() == pytest.approx(0.2, rel=0.2)
    agent.noise_std[...] = 0.0
    worker.load_state(learner.transfer_state())
    assert act(worker).params is None
    np.testing.assert_allclose(act(worker).actions, means, rtol=1e-6)
    assert np.isnan(learner.evaluate(OBS, means).log_probs).all()
    assert learner.parameters(OBS) is None


def test_noise_may_differ_between_the_numbers_of_an_action() -> None:
    _, worker = pair(Actor([0.01, 1.0]), TORQUES)
    acted = act(worker)
    assert acted.params is not None
    assert np.exp(acted.params[0, 2:]) == pytest.approx([0.01, 1.0])


@pytest.mark.parametrize(
    ("noise", "space", "message"),
    [
        (-0.1, TORQUES, r"noise_std is -0.1.*expected a positive number, one for each of the 2"),
        ([0.1, 0.1, 0.1], TORQUES, "expected a positive number, one for each of the 2"),
        (math.nan, TORQUES, "expected a positive number"),
        (0.1, spaces.Discrete(2), "its actions are not a Box of reals"),
    ],
)
def test_noise_that_makes_no_gaussian_is_refused(noise: Any, space: gym.Space[Any], message: str) -> None:
    _, worker = pair(Actor(noise), space)
    with pytest.raises(AgentError, match=message):
        act(worker)


def test_agent_of_torch_that_acts_with_a_discrete_action() -> None:
    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(3, 3)

        def act(self, obs: Tensor) -> Tensor:
            return self.q(obs).argmax(1) + 5

        def value(self, obs: Tensor) -> Tensor:
            return self.q(obs).max(1).values

    _, worker = pair(Greedy(), spaces.Discrete(3, start=5))
    acted = act(worker)
    assert set(acted.actions.tolist()) <= {5, 6, 7}
    assert np.isfinite(acted.values).all()
    assert np.isnan(acted.log_probs).all()


class NoMemory(nn.Module):
    """Takes a state, but nobody can tell what it is."""

    def get_action_and_value(self, x: Tensor, state: Any, done: Tensor, action: Any = None) -> Any: ...


class ActsWithMemory(Actor):
    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)


class ForgetsItsState(nn.Module):
    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)

    def distribution(self, obs: Tensor, state: Tensor) -> Any:
        return Categorical(logits=obs)


class ChangesItsShape(ForgetsItsState):
    def distribution(self, obs: Tensor, state: Tensor) -> Any:
        return Categorical(logits=obs), torch.zeros(len(obs), 2)


class OneStateForAll(ForgetsItsState):
    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(7)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (
            NoMemory(),
            "takes a state and has 0 recurrent modules; expected one LSTM or GRU, or a method initial_",
        ),
        (ActsWithMemory(), "has initial_state, but only act, which takes no state"),
        (ForgetsItsState(), r"gave Categorical; expected \(distribution, next state\)"),
        (ChangesItsShape(), r"next state has parts .*\(64, 2\).*; expected .*\(64, 1\)"),
        (OneStateForAll(), r"a part of shape \(7,\); expected 64 environments at axis 0"),
    ],
)
def test_states_that_cannot_work_are_refused(agent: object, message: str) -> None:
    def begin() -> None:
        _, worker = pair(agent, TORQUES if isinstance(agent, Actor) else spaces.Discrete(3))
        worker.act(OBS, seed=1, env_ids=IDS, steps=IDS, state=worker.initial_state(ROWS))

    with pytest.raises(AgentError, match=message):
        begin()
