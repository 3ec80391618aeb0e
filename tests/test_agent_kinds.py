"""Every kind of agent over two real workers: rollout, step, a changed agent, the pull decision."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Beta, Categorical

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count, Index, IndexBox
from tests.recurrent import Counter, LSTMAgent

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)


@contextmanager
def running(num_envs: int = 4, kind: type = Index, **options: Any) -> Iterator[ClusterEnv]:
    with ClusterEnv([partial(kind, i) for i in range(num_envs)], TWO, seed=0, **options) as env:
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


class BetaAgent(nn.Module):
    """Draws from Beta(a, 1), for which there is no closed form here; `log_a` is its only weight."""

    def __init__(self) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.zeros(1))
        self.unused = nn.Parameter(torch.zeros(1))

    def distribution(self, obs: Tensor) -> Beta:
        a = self.log_a.exp().expand(len(obs), 1)
        return Beta(a, torch.ones_like(a))


class NumpyCoin:
    """Plays 1 with the probability `chance`, with or without telling how likely that was."""

    def __init__(self) -> None:
        self.chance = np.array([0.5])
        self.unused = np.zeros(1)
        self.random = np.random.default_rng(0)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return (self.random.random(len(obs)) < self.chance).astype(np.int64)

    def value(self, obs: np.ndarray) -> np.ndarray:
        return obs[:, 0]

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"chance": self.chance, "unused": self.unused}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.chance[:], self.unused[:] = parameters["chance"], parameters["unused"]


class ScoringCoin(NumpyCoin):
    def log_prob(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.log(np.where(actions == 1, self.chance, 1 - self.chance))


def scoring_coin() -> tuple[Any, Any, Any]:
    agent = ScoringCoin()
    return agent, partial(agent.chance.__setitem__, 0), agent.unused


def beta() -> tuple[Any, Any, Any]:
    agent = BetaAgent()
    return agent, lambda a: agent.log_a.data.fill_(np.log(2 * a)), agent.unused.data


def act(env: ClusterEnv, agent: object, call: str) -> None:
    if call == "step":
        env.step(agent)
    else:
        env.rollout(agent, 16)


@pytest.mark.parametrize("call", ["step", "rollout"])
@pytest.mark.parametrize("make", [scoring_coin, beta])
def test_k3_decides_for_agents_that_have_log_probs_alone(make: Any, call: str) -> None:
    with running(64, IndexBox if make is beta else Index, kl_threshold=0.05) as env:
        agent, play, unused = make()
        act(env, agent, call)
        unused += 1.0  # another version that acts just the same
        act(env, agent, call)
        workers = env.stats()["workers"]
        assert [worker["kl"] for worker in workers] == [0.0, 0.0]
        assert [worker["checks"] for worker in workers] == [1, 1]
        assert [worker["policy_lag"] for worker in workers] == [1, 1]
        play(0.55)
        act(env, agent, call)
        assert all(0 < worker["kl"] < 0.05 for worker in env.stats()["workers"])
        play(0.95)
        act(env, agent, call)
        assert all(worker["kl"] > 0.05 for worker in env.stats()["workers"])
        assert reasons(env) == [{"first": 1, "divergence": 1}] * 2


def test_k3_estimates_the_divergence_of_the_policies() -> None:
    with running(64, kl_threshold=10.0, n_ref=4096) as env:
        agent = ScoringCoin()
        env.rollout(agent, 256)
        agent.chance[:] = 0.75
        env.rollout(agent, 1)
        expected = -0.5 * np.log(4 * 0.75 * 0.25)
        assert [worker["kl"] for worker in env.stats()["workers"]] == pytest.approx([expected] * 2, rel=0.1)
        assert env.stats()["check_bytes_sent"] == 2 * 2048 * 4


@pytest.mark.parametrize("call", ["step", "rollout"])
def test_without_log_probs_every_version_is_pulled(call: str) -> None:
    with running(kl_threshold=0.05) as env:
        agent = NumpyCoin()
        act(env, agent, call)
        agent.unused += 1
        act(env, agent, call)
        act(env, agent, call)
        assert reasons(env) == [{"first": 1, "no_divergence": 1}] * 2


def test_values_and_log_probs_of_an_agent_without_torch_are_in_both_calls() -> None:
    with running(kl_threshold=10.0) as env:
        agent = ScoringCoin()
        batch = env.rollout(agent, 4)
        assert (batch.values == [0, 1, 2, 3]).all()
        assert np.exp(batch.log_probs) == pytest.approx(np.full((4, 4), 0.5))
        agent.chance[:] = 0.75
        info = env.step(agent)[4]
        assert info["value"].tolist() == [0, 1, 2, 3]
        assert np.exp(info["behaviour_log_prob"]) == pytest.approx([0.5] * 4)
        assert np.exp(info["log_prob"]) == pytest.approx(np.where(info["action"] == 1, 0.75, 0.25))


COUNTS = [partial(Count, n) for n in (2, 3, 50, 4)]


def recurrent(**options: Any) -> ClusterEnv:
    return ClusterEnv(COUNTS, TWO, seed=0, **options)


def test_recurrent_agent_in_rollout_and_step_of_lagging_workers() -> None:
    with recurrent(kl_threshold=1.0) as env:
        env.reset(seed=0)
        agent = Counter()
        env.rollout(agent, 3)
        batch = env.rollout(agent, 5)
        assert not batch.values.any()
        assert not batch.final_values.any()
        assert np.array_equal(batch.initial_state["seen"], batch.obs[0])
        assert batch.initial_state["rest"][0].shape == (4, 2, 3)
        assert torch.equal(batch.torch().initial_state["seen"], torch.from_numpy(batch.obs[0]))
        agent.slope.data.fill_(0.11)
        batch = env.rollout(agent, 5)
        obs = batch.last_obs
        assert (batch.policy_lag == 1).all()
        workers = env.stats()["workers"]
        assert all(0 < worker["kl"] < 0.1 for worker in workers)
        agent.slope.data.fill_(0.12)
        info = env.step(agent)[4]
        assert info["policy_lag"].tolist() == [2] * 4
        assert np.array_equal(info["agent_state"]["seen"], obs)
        logits = torch.stack([torch.zeros(4), 0.12 * torch.from_numpy(obs[:, 0])], dim=1)
        judged = Categorical(logits=logits).log_prob(torch.from_numpy(info["action"]))
        assert info["log_prob"] == pytest.approx(judged.numpy(), abs=1e-6)
        assert not info["value"].any()
        agent.slope.data.fill_(0.13)
        info = env.step(agent)[4]
        assert [worker["checks"] for worker in env.stats()["workers"]] == [3, 3]
        agent.slope.data.fill_(9.0)
        env.step(agent)
        agent.slope.data.fill_(-9.0)
        env.rollout(agent, 5)
        assert all(count["divergence"] >= 1 for count in reasons(env))


@pytest.mark.parametrize("call", ["step", "rollout"])
def test_lstm_of_cleanrl_is_compared_on_the_states_that_it_was_in(call: str) -> None:
    with recurrent(kl_threshold=1.0) as env:
        env.reset(seed=0)
        agent = LSTMAgent()
        act(env, agent, call)
        act(env, agent, call)
        agent.critic.bias.data += 1.0
        act(env, agent, call)
        agent.actor.bias.data[0] += 0.1
        act(env, agent, call)
        workers = env.stats()["workers"]
        assert [worker["checks"] for worker in workers] == [2, 2]
        assert [worker["policy_lag"] for worker in workers] == [2, 2]
        assert [worker["kl"] for worker in workers] == pytest.approx([0.1**2 / 8] * 2, rel=0.2)


def test_restarted_worker_begins_with_no_memory() -> None:
    with recurrent(kl_threshold=1.0) as env:
        env.reset(seed=0)
        agent = Counter()
        env.rollout(agent, 3)
        agent.slope.data.fill_(0.11)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        valid = []
        while len(valid) < 3 or not valid[-1]:
            batch = env.rollout(agent, 5)
            valid.append(bool(batch.valid.all()))
            assert not batch.values.any()
            assert len(batch.initial_state["seen"]) == 4
        assert env.stats()["workers"][1]["restarts"] == 1
        for _ in range(5):
            info = env.step(agent)[4]
            assert not info["value"].any()
