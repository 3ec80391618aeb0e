"""AAPS over real workers, with counted bytes: S8, S9 and S10, and each rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.benchmark.aaps_weights import NatureCNN
from tests.agents import NumpyAgent
from tests.envs import Index, RandomObs

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)
ONE = LocalConfig(nodes=1, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)


class Coin(nn.Module):
    """Plays 1 with a probability that does not depend on the state, set by hand."""

    def __init__(self, probability: float = 0.5) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.play(probability)

    def play(self, probability: float) -> None:
        with torch.no_grad():
            self.logits.copy_(torch.tensor([1 - probability, probability]).log())

    def distribution(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.logits.expand(len(obs), 2))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, 0]


class Frames(gym.Env[np.ndarray, np.int64]):
    """Noise of the size of four stacked Atari frames."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.observation(), 0.0, False, False, {}

    def observation(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (4, 84, 84), dtype=np.uint8)


def away_by(kl: float) -> float:
    """The probability q above 1/2 for which KL(1/2 || q) is `kl`."""
    return 0.5 + 0.5 * math.sqrt(1 - math.exp(-2 * kl))


@contextmanager
def running(launcher: LocalConfig, num_envs: int = 4, **options: Any) -> Iterator[ClusterEnv]:
    with ClusterEnv([partial(Index, i) for i in range(num_envs)], launcher, seed=0, **options) as env:
        env.reset(seed=0)
        yield env


def reasons(env: ClusterEnv) -> list[dict[str, int]]:
    return [worker["syncs_by_reason"] for worker in env.stats()["workers"]]


@pytest.mark.parametrize("threshold", [0.0, 0.05, math.inf])
def test_unchanged_weights_are_never_sent_again_s8(threshold: float) -> None:
    with running(TWO, kl_threshold=threshold) as env:
        agent = Coin()
        env.step(agent)
        first = env.stats()
        for _ in range(200):
            info = env.step(agent)[4]
        env.rollout(agent, 20)
        after = env.stats()
    assert first["weight_bytes_sent"] > 0
    assert after["weight_bytes_sent"] == first["weight_bytes_sent"]
    assert after["check_bytes_sent"] == 0
    assert info["kl"].tolist() == [0.0] * 4
    assert info["sync_count"].tolist() == [1] * 4
    assert [worker["syncs_by_reason"] for worker in after["workers"]] == [{"first": 1}] * 2


@pytest.mark.parametrize("call", ["step", "rollout"])
@pytest.mark.parametrize("num_envs", [1, 64, 1024])
def test_divergence_is_a_mean_over_states_s9(num_envs: int, call: str) -> None:
    def act(env: ClusterEnv, agent: Coin) -> None:
        if call == "step":
            env.step(agent)
        else:
            env.rollout(agent, 2)

    with running(SERIAL, num_envs, kl_threshold=0.02) as env:
        agent = Coin()
        act(env, agent)
        agent.play(away_by(0.01))
        act(env, agent)
        worker = env.stats()["workers"][0]
        assert worker["kl"] == pytest.approx(0.01, abs=1e-6)
        assert worker["sync_count"] == 1
        agent.play(away_by(0.03))
        act(env, agent)
        worker = env.stats()["workers"][0]
        assert worker["kl"] == pytest.approx(0.03, abs=1e-6)
        assert worker["syncs_by_reason"] == {"first": 1, "divergence": 1}


@pytest.mark.parametrize("launcher", [SERIAL, TWO], ids=["serial", "two workers"])
def test_what_follows_a_seeded_reset_depends_on_seed_and_agent_alone(launcher: LocalConfig) -> None:
    def acted(env: ClusterEnv, agent: Coin) -> list[Any]:
        env.reset(seed=3)
        steps = [env.step(agent)[4]["action"].tolist() for _ in range(5)]
        agent.play(0.4)
        rollout = env.rollout(agent, 5)
        return [steps, rollout.actions.tolist(), rollout.kl.tolist(), rollout.policy_lag.tolist()]

    with running(launcher, kl_threshold=0.05) as env:
        agent = Coin(0.6)
        first = acted(env, agent)
        env.rollout(agent, 3)
        agent.play(0.6)  # nearer than the threshold to what the workers have, 0.4 or 0.6
        again = acted(env, agent)
        reset = reasons(env)

    assert again == first
    assert all(worker["forced"] == 1 for worker in reset)


@pytest.mark.parametrize("call", ["step", "rollout"])
def test_lag_never_exceeds_its_bound_s10(call: str) -> None:
    with running(TWO, kl_threshold=math.inf, max_lag=3) as env:
        agent = Coin()
        lags = []
        for update in range(12):
            agent.play(0.5 + update / 100)
            if call == "step":
                lags.append(env.step(agent)[4]["policy_lag"].max())
            else:
                batch = env.rollout(agent, 2)
                lags.append(batch.policy_lag.max())
                assert (batch.policy_version + batch.policy_lag == update + 1).all()
        assert max(lags) == 3
        assert reasons(env) == [{"first": 1, "max_lag": 2}] * 2


def test_a_check_costs_a_few_bytes_and_a_pull_the_weights() -> None:
    with running(TWO, num_envs=64, kl_threshold=0.05) as env:
        agent = Coin()
        env.rollout(agent, 8)
        weights = env.stats()["weight_bytes_sent"]
        agent.play(away_by(0.02))
        env.rollout(agent, 8)
        stats = env.stats()
        assert stats["check_bytes_sent"] == 2 * 64 * 2 * 4
        assert stats["weight_bytes_sent"] == weights


def test_check_of_a_large_agent_moves_under_a_thousandth_of_its_weights() -> None:
    """Counted on the wire, in both directions, with all that a command takes beside the check."""
    with ClusterEnv([Frames] * 4, ONE, seed=0, kl_threshold=0.05) as env:
        agent = NatureCNN()
        assert 1.6e6 < sum(parameter.numel() for parameter in agent.parameters()) < 1.8e6
        env.rollout(agent, 16)
        before = env.stats()
        assert before["weight_bytes_sent"] > 6.7e6
        with torch.no_grad():
            agent.actor.bias[0] += 1e-3
        env.rollout(agent, 16)
        after = env.stats()

    weights = before["weight_bytes_sent"]
    frames = 16 * 4 * 4 * 84 * 84 + 4 * 4 * 84 * 84
    assert after["weight_bytes_sent"] == weights
    assert after["check_bytes_sent"] == 64 * 6 * 4 < weights / 1000
    assert after["bytes_sent"] - before["bytes_sent"] < weights / 1000
    assert after["bytes_received"] - before["bytes_received"] - frames < weights / 1000
    assert after["checks_sent"] == after["workers"][0]["checks"] == 1


def test_stats_tell_the_time_of_a_check_on_both_sides() -> None:
    with running(TWO, num_envs=64, kl_threshold=0.05) as env:
        agent = Coin()
        env.rollout(agent, 8)
        assert env.stats()["check_us"] == 0.0
        assert [worker["check_us"] for worker in env.stats()["workers"]] == [0.0, 0.0]
        agent.play(away_by(0.02))
        env.rollout(agent, 8)
        stats = env.stats()

    assert stats["checks_sent"] == 2
    assert stats["check_us"] > 0
    for worker in stats["workers"]:
        assert worker["check_us"] > 0
        assert worker["kl_threshold"] == 0.05


@pytest.mark.parametrize("call", ["step", "rollout"])
def test_auto_threshold_moves_with_the_ratios_that_a_comparison_shows(call: str) -> None:
    """At 0.04 nats a coin has every ratio outside the clip: more than a quarter, so the threshold falls."""
    with running(SERIAL, num_envs=16, kl_threshold="auto") as env:
        agent = Coin()

        def act() -> dict[str, Any]:
            env.step(agent) if call == "step" else env.rollout(agent, 4)
            return env.stats()["workers"][0]

        assert act()["kl_threshold"] == 0.05
        agent.play(away_by(0.01))  # no ratio is outside
        assert act()["kl_threshold"] == 0.05
        agent.play(away_by(0.04))
        worker = act()
        assert worker["kl_threshold"] == pytest.approx(0.05 / math.sqrt(2))
        assert worker["syncs_by_reason"] == {"first": 1, "divergence": 1}
        agent = Coin()  # another agent, another beginning
        assert act()["kl_threshold"] == 0.05


def test_auto_threshold_moves_in_a_stream_too() -> None:
    with running(SERIAL, num_envs=16, kl_threshold="auto") as env:
        agent = Coin()
        with env.stream(agent, 4) as stream:
            next(stream)
            agent.play(away_by(0.04))
            for _ in range(4):
                next(stream)
            worker = env.stats()["workers"][0]

    assert worker["kl_threshold"] == pytest.approx(0.05 / math.sqrt(2))
    assert worker["syncs_by_reason"] == {"first": 1, "divergence": 1}


@pytest.mark.parametrize("call", ["step", "rollout"])
def test_older_rule_takes_the_sum_over_environments(call: str) -> None:
    with running(SERIAL, num_envs=8, sync="prototype:0.05") as env:
        agent = Coin()
        env.step(agent) if call == "step" else env.rollout(agent, 4)
        agent.play(away_by(0.01))
        env.step(agent) if call == "step" else env.rollout(agent, 4)
        worker = env.stats()["workers"][0]

    assert worker["kl"] == pytest.approx(0.08, abs=1e-5)
    assert worker["syncs_by_reason"] == {"first": 1, "divergence": 1}


def test_weights_written_behind_torchs_back_are_noticed() -> None:
    with running(ONE, kl_threshold=0.0) as env:
        agent = Coin()
        env.rollout(agent, 2)
        agent.logits.data.numpy()[:] = [0.0, 1.0]
        env.rollout(agent, 2)
        assert reasons(env) == [{"first": 1, "divergence": 1}]


def test_pulled_weights_are_the_ones_acted_with() -> None:
    with running(TWO, num_envs=8, kl_threshold=0.05) as env:
        agent = Coin(1e-6)
        assert env.rollout(agent, 10).actions.sum() == 0
        agent.play(1 - 1e-6)
        batch = env.rollout(agent, 10)
        assert batch.actions.all()
        assert np.allclose(batch.log_probs, 0.0, atol=1e-5)


def test_log_prob_of_a_lagging_worker_is_that_of_the_agent_passed() -> None:
    with running(TWO, kl_threshold=math.inf, max_lag=100) as env:
        agent = Coin()
        env.step(agent)
        agent.play(0.75)
        info = env.step(agent)[4]
        expected = np.where(info["action"] == 1, np.log(0.75), np.log(0.25))
        assert np.allclose(info["log_prob"], expected, atol=1e-6)
        assert np.allclose(info["behaviour_log_prob"], np.log(0.5), atol=1e-6)
        assert info["policy_lag"].tolist() == [1] * 4
        assert info["value"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("every", {"first": 1, "every": 5}),
        ("interval:2", {"first": 1, "interval": 2}),
        ("never", {"first": 1}),
        ("broadcast", {"broadcast": 6}),
    ],
)
@pytest.mark.parametrize("call", ["step", "rollout"])
def test_other_rules_do_what_their_name_says(rule: str, expected: dict[str, int], call: str) -> None:
    with running(TWO, sync=rule) as env:
        agent = Coin()
        for update in range(6):
            agent.play(0.5 + update / 100)
            if call == "step":
                env.step(agent)
            else:
                env.rollout(agent, 2)
        assert reasons(env) == [expected] * 2
        assert env.stats()["check_bytes_sent"] == 0


def test_agent_without_a_distribution_is_sent_at_every_version() -> None:
    with ClusterEnv([RandomObs] * 2, ONE, seed=0) as env:
        agent = NumpyAgent(env)
        env.reset(seed=0)
        for _ in range(3):
            env.step(agent)
            agent.weights += 1.0
        assert reasons(env) == [{"first": 1, "no_divergence": 2}]


def test_another_agent_starts_from_the_first_sync() -> None:
    with running(ONE) as env:
        env.rollout(Coin(), 2)
        batch = env.rollout(Coin(0.6), 2)
        assert batch.policy_lag.max() == 0
        assert reasons(env) == [{"first": 2}]
