"""Every kind of agent over two real workers: acts, changes a little, changes much, and loses a worker."""

from __future__ import annotations

import math
import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Independent,
    Laplace,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count
from tests.recurrent import Counter

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)


class Torques(Count):
    action_space = spaces.Box(np.float32([-1, 0]), np.float32([1, 4]))


class Shifted(nn.Module):
    """Has one number that moves its policy, and a buffer that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))

    def move(self, shift: float) -> None:
        self.shift.data.fill_(shift)

    def means(self, obs: Tensor) -> Tensor:
        return self.shift.expand(len(obs), 2)


class SquashedAgent(Shifted):
    def distribution(self, obs: Tensor) -> Distribution:
        base = Independent(Normal(self.means(obs), torch.ones(2)), 1)
        bounds = AffineTransform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0]))
        return TransformedDistribution(base, [TanhTransform(), bounds])


class LaplaceAgent(Shifted):
    """Of a family without a closed form here."""

    def distribution(self, obs: Tensor) -> Distribution:
        return Independent(Laplace(self.means(obs), torch.ones(2)), 1)


class NoisyActor(Shifted):
    noise_std = 1.0

    def act(self, obs: Tensor) -> Tensor:
        return self.means(obs)


class BareActor(Shifted):
    def act(self, obs: Tensor) -> Tensor:
        return self.means(obs)


class MaskedAgent(Shifted):
    """Has one action in environments of odd numbers, and two in the others."""

    def distribution(self, obs: Tensor, env_ids: Tensor) -> Distribution:
        logits = torch.cat([self.means(obs)[:, :1], torch.zeros(len(obs), 1)], dim=1)
        logits[env_ids % 2 == 1, 0] = -math.inf
        return Categorical(logits=logits)


class Normalising(Shifted):
    """Its policy moves with a buffer alone, as one that normalises observations."""

    def move(self, shift: float) -> None:
        self.seen.fill_(shift)

    def distribution(self, obs: Tensor) -> Distribution:
        return Independent(Normal(self.seen.expand(len(obs), 2), torch.ones(2)), 1)


class Numbers:
    """The noisy actor without torch, which tells log-probabilities by itself."""

    def __init__(self) -> None:
        self.shift = np.zeros(1)
        self.random = np.random.default_rng(0)

    def move(self, shift: float) -> None:
        self.shift[:] = shift

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.shift + self.random.normal(size=(len(obs), 2))

    def log_prob(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return -0.5 * ((actions - self.shift) ** 2 + np.log(2 * np.pi)).sum(axis=1)

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"shift": self.shift}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.shift = parameters["shift"]


class Remembering(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.move(0.0)

    def move(self, shift: float) -> None:
        self.slope.data.fill_(0.01 * shift)


KINDS: dict[str, tuple[type, type, bool]] = {
    "squashed": (SquashedAgent, Torques, True),
    "k3": (LaplaceAgent, Torques, True),
    "noise": (NoisyActor, Torques, True),
    "deterministic": (BareActor, Torques, False),
    "masked": (MaskedAgent, Count, True),
    "buffer": (Normalising, Torques, True),
    "numpy": (Numbers, Torques, True),
    "recurrent": (Remembering, Count, True),
}


@pytest.mark.parametrize("name", KINDS)
def test_life_of_an_agent(name: str) -> None:
    kind, env_kind, comparable = KINDS[name]
    with ClusterEnv([partial(env_kind, 40)] * 16, TWO, seed=0, kl_threshold=0.05) as env:
        env.reset(seed=0)
        agent = kind()
        batch = env.rollout(agent, 16)
        assert np.isfinite(batch.log_probs).all() == comparable
        check(env, agent, comparable)
        restart(env, agent)


def check(env: ClusterEnv, agent: Any, comparable: bool) -> None:
    """Little changes do not move weights, large ones do, in both calls, where that can be told."""
    agent.move(0.05)
    batch = env.rollout(agent, 16)
    info = env.step(agent)[4]
    assert batch.policy_lag.max() == info["policy_lag"].max() == int(comparable)
    assert np.isfinite(info["log_prob"]).all() == comparable
    assert (info["kl"] > 0).all() == comparable
    agent.move(3.0)
    info = env.step(agent)[4]
    assert not info["policy_lag"].any()
    assert (info["kl"] > 0.05).all() == comparable
    if comparable:
        np.testing.assert_allclose(info["log_prob"], info["behaviour_log_prob"], rtol=1e-4, atol=1e-4)
    env.rollout(agent, 16)
    agent.move(-3.0)
    batch = env.rollout(agent, 16)
    assert not batch.policy_lag.any()
    for worker in env.stats()["workers"]:
        syncs = {"divergence": 2} if comparable else {"no_divergence": 3}
        assert worker["syncs_by_reason"] == {"first": 1} | syncs


def restart(env: ClusterEnv, agent: Any) -> None:
    """A worker that was killed comes back with the newest weights."""
    agent.move(-2.9)
    os.kill(env.stats()["workers"][0]["pid"], signal.SIGKILL)
    lost = back = False
    end = time.monotonic() + 60.0
    while not back and time.monotonic() < end:
        batch = env.rollout(agent, 16)
        back = lost and bool(batch.valid.all())
        lost = lost or not batch.valid.all()
    assert env.stats()["workers"][0]["restarts"] == 1
    assert not batch.policy_lag[:, :8].any()
    info = env.step(agent)[4]
    assert not info["policy_lag"][:8].any()


def test_buffers_travel_and_make_a_version() -> None:
    with ClusterEnv([partial(Torques, 40)] * 4, TWO, seed=0, sync="every") as env:
        env.reset(seed=0)
        agent = Normalising()
        first = env.publish(agent)
        assert env.publish(agent) == first
        agent.seen += 100.0
        assert env.publish(agent) == first + 1
        assert env.rollout(agent, 2).actions.min() > 90
        agent.seen -= 200.0
        info = env.step(agent)[4]
        assert info["action"].max() < -90
        assert (info["policy_version"] == first + 2).all()


def test_a_stream_goes_on_with_what_a_recurrent_agent_remembers() -> None:
    with ClusterEnv([partial(Count, n) for n in (3, 50, 4, 5)], TWO, seed=0, kl_threshold=0.05) as env:
        agent = Remembering()
        with env.stream(agent, 8) as stream:
            for number in range(24):
                batch = stream.take(60.0)
                assert not batch.values.any()
                assert not batch.final_values.any()
                assert np.array_equal(batch.initial_state["seen"], batch.obs[0])
                agent.move(0.1 * number if number < 12 else 50.0)
        assert not env.step(agent)[4]["value"].any()
        syncs = env.stats()["workers"]
        assert all(worker["checks"] > 0 for worker in syncs)
        assert sum(worker["syncs_by_reason"].get("divergence", 0) for worker in syncs) > 0
