"""Every kind of agent over two real workers: rollout, step, a changed agent, the pull decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Index

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)


@contextmanager
def running(num_envs: int = 4, **options: Any) -> Iterator[ClusterEnv]:
    with ClusterEnv([partial(Index, i) for i in range(num_envs)], TWO, seed=0, **options) as env:
        env.reset(seed=0)
        yield env


def reasons(env: ClusterEnv) -> list[dict[str, int]]:
    return [worker["syncs_by_reason"] for worker in env.stats()["workers"]]


class PerEnv(nn.Module):
    """Plays 1 in environment i with probability `chances[i]`; its value is the environment's number."""

    def __init__(self, chances: list[float]) -> None:
        super().__init__()
        self.register_buffer("chances", torch.tensor(chances))

    def distribution(self, obs: Tensor, env_ids: Tensor) -> Categorical:
        assert torch.equal(env_ids, obs[:, 0].long())
        chance = self.chances[env_ids]
        return Categorical(probs=torch.stack([1 - chance, chance], dim=1))

    def value(self, obs: Tensor, env_ids: Tensor) -> Tensor:
        return env_ids.float()


class PerEnvCleanRL(PerEnv):
    """The same by `get_action_and_value`."""

    distribution = None

    def get_value(self, x: Tensor, env_ids: Tensor) -> Tensor:
        return self.value(x, env_ids)

    def get_action_and_value(
        self, x: Tensor, env_ids: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        probs = PerEnv.distribution(self, x, env_ids)
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), env_ids.float()


class PerEnvNumpy:
    """The same by `act`."""

    def __init__(self, chances: list[float]) -> None:
        self.chances = np.array(chances)

    def act(self, obs: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        assert np.array_equal(env_ids, obs[:, 0])
        return (self.chances[env_ids] > 0.5).astype(np.int64), np.zeros(len(obs)), env_ids

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"chances": self.chances}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.chances[:] = parameters["chances"]


CHANCES = [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [PerEnv, PerEnvCleanRL, PerEnvNumpy])
def test_methods_that_ask_are_given_the_numbers_of_the_environments(kind: type) -> None:
    with running(kl_threshold=0.05) as env:
        agent = kind(CHANCES)
        info = env.step(agent)[4]
        assert info["action"].tolist() == [0, 1, 0, 1]
        assert info["value"].tolist() == [0, 1, 2, 3]
        batch = env.rollout(agent, 3)
        assert (batch.actions == [0, 1, 0, 1]).all()
        assert (batch.values == [0, 1, 2, 3]).all()
        assert batch.last_values.tolist() == [0, 1, 2, 3]
        agent.chances[:2] = torch.tensor([1.0, 0.0]) if kind is not PerEnvNumpy else [1.0, 0.0]
        batch = env.rollout(agent, 3)
        assert (batch.actions == [1, 0, 0, 1]).all()
        info = env.step(agent)[4]
        assert info["action"].tolist() == [1, 0, 0, 1]


def test_a_lagging_workers_rows_are_judged_with_their_own_environments() -> None:
    with running(kl_threshold=10.0) as env:
        agent = PerEnv([0.5] * 4)
        env.step(agent)
        agent.chances[3] = 0.75
        info = env.step(agent)[4]
        assert info["policy_lag"].tolist() == [1, 1, 1, 1]
        judged = np.where(info["action"] == 1, 0.75, 0.25)[3]
        assert np.exp(info["log_prob"]) == pytest.approx([0.5, 0.5, 0.5, judged])
        assert [worker["kl"] for worker in env.stats()["workers"]] == pytest.approx([0.0, 0.0719], abs=1e-4)
