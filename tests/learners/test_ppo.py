"""PPO: its update against a slow reference, the decoupled objective, and training over ClusterEnv."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv import Rollout, SlurmConfig
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.learners import ppo
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from clusterenv.learners.ppo import PPOConfig, Samples, make_samples, parse, ppo_loss, train, update
from tests.learners.rollouts import made_up_rollout
from tests.reference import ppo as reference

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "continuous": spaces.Box(-1, 1, (2,), np.float32),
}
CONFIG = PPOConfig(
    env_id="made-up",
    epochs=2,
    num_minibatches=3,
    entropy_coef=0.01,
    gamma=0.9,
    gae_lambda=0.8,
    learning_rate=1e-2,
)


@pytest.fixture(params=ACTIONS.values(), ids=ACTIONS)
def agent(request: pytest.FixtureRequest) -> Agent:
    return made_up_agent(request.param)


def made_up_agent(actions: gym.Space[Any], seed: int = 0) -> Agent:
    """An agent with a policy that is far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = Agent(BOX, actions, hidden=(8,))
        with torch.no_grad():
            agent.actor[-1].weight.mul_(50)
    return agent


def optimizer_of(agent: Agent) -> torch.optim.Optimizer:
    return torch.optim.Adam(agent.parameters(), lr=CONFIG.learning_rate, eps=1e-5, fused=True)


def policy_gradient(agent: Agent, samples: Samples, config: PPOConfig) -> torch.Tensor:
    """The gradient of the policy loss alone with respect to the policy, as one vector."""
    loss, _ = ppo_loss(agent, samples, dataclasses.replace(config, value_coef=0.0, entropy_coef=0.0))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(agent.actor.parameters()))])


@pytest.mark.parametrize("clip_value", [None, 0.3])
@pytest.mark.parametrize("staleness", [0.0, 0.7], ids=["fresh", "stale"])
def test_update_agrees_with_the_slow_reference(
    agent: Agent, staleness: float, clip_value: float | None
) -> None:
    rng = np.random.default_rng(3)
    rollout = made_up_rollout(agent, valid=rng.random((6, 4)) < 0.9)
    stale_log_probs = (rollout.log_probs + staleness * rng.normal(size=(6, 4))).astype(np.float32)
    rollout = dataclasses.replace(rollout, log_probs=stale_log_probs)
    config = dataclasses.replace(CONFIG, clip_value=clip_value)
    names = [field.name for field in dataclasses.fields(reference.Settings)]
    settings = reference.Settings(**{name: getattr(config, name) for name in names})
    order = torch.Generator().manual_seed(5)
    epochs = [
        [part.tolist() for part in torch.randperm(int(rollout.valid.sum()), generator=order).tensor_split(3)]
        for _ in range(2)
    ]
    expected = reference.updated(agent, rollout, settings, epochs)

    samples = make_samples(agent, rollout, config, None)
    update(agent, optimizer_of(agent), samples, config, torch.Generator().manual_seed(5))

    for name, parameter in agent.named_parameters():
        wanted = expected.get_parameter(name)
        torch.testing.assert_close(parameter.double(), wanted, atol=2e-5, rtol=0, msg=f"{name} differs")


def test_loss_on_fresh_data_is_that_of_plain_ppo(agent: Agent) -> None:
    rollout = made_up_rollout(agent)
    samples = make_samples(agent, rollout, CONFIG, None)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))

    actual = policy_gradient(agent, samples, CONFIG)

    behaviour = torch.from_numpy(rollout.log_probs).flatten()
    ratios = (agent.policy(samples.features).log_prob(samples.actions) - behaviour).exp()
    advantages = (samples.advantages - samples.advantages.mean()) / samples.advantages.std(correction=0)
    clipped = ratios.clamp(0.8, 1.2)
    plain = -torch.minimum(ratios * advantages, clipped * advantages).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(plain, list(agent.actor.parameters()))])
    assert ((ratios - 1).abs() > 0.2).any()  # the clip is at work
    torch.testing.assert_close(samples.behaviour_weights, torch.ones(len(samples)), atol=1e-5, rtol=0)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_stale_data_is_weighted_and_does_not_hold_the_policy_at_the_behaviour(agent: Agent) -> None:
    """Rows on which a clip around the behaviour policy would have no gradient at all."""
    fresh = made_up_rollout(agent)
    config = dataclasses.replace(CONFIG, normalize_advantages=False)
    stale = dataclasses.replace(fresh, log_probs=fresh.log_probs - np.float32(np.log(1.5)))
    very_stale = dataclasses.replace(fresh, log_probs=fresh.log_probs - np.float32(3))

    gradients = [
        policy_gradient(agent, make_samples(agent, rollout, config, None), config)
        for rollout in (fresh, stale, very_stale)
    ]

    torch.testing.assert_close(gradients[1], 1.5 * gradients[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        gradients[2], 2.0 * gradients[0], rtol=1e-4, atol=1e-6
    )  # the bound of the weight
    assert gradients[0].abs().max() > 1e-3


def test_stock_clipping_has_no_gradient_on_stale_rows_that_should_become_likelier(agent: Agent) -> None:
    config = dataclasses.replace(CONFIG, normalize_advantages=False, clip_around="behaviour")
    fresh = made_up_rollout(agent)
    stale = dataclasses.replace(fresh, log_probs=fresh.log_probs - np.float32(np.log(1.5)))

    samples = make_samples(agent, stale, config, None)
    praised = dataclasses.replace(samples, advantages=torch.ones(len(samples)))

    torch.testing.assert_close(samples.prox_log_probs, torch.from_numpy(stale.log_probs).flatten())
    assert (samples.behaviour_weights == 1).all()
    assert not policy_gradient(agent, praised, config).any()
    assert policy_gradient(agent, make_samples(agent, fresh, config, None), config).any()


def test_rows_that_are_not_valid_are_left_out(agent: Agent) -> None:
    valid = np.ones((6, 4), bool)
    valid[4:, 0] = valid[2, 3] = False
    rollout = made_up_rollout(agent, valid=valid)
    spoilt = np.where(valid, rollout.rewards, np.float32(1e6))

    samples = make_samples(agent, rollout, CONFIG, None)
    again = make_samples(agent, dataclasses.replace(rollout, rewards=spoilt), CONFIG, None)

    assert len(samples) == valid.sum()
    torch.testing.assert_close(samples.advantages, again.advantages)


def test_samples_use_the_learners_critic_on_the_final_observations(agent: Agent) -> None:
    rollout = made_up_rollout(agent)
    config = dataclasses.replace(CONFIG, gae_lambda=0.0)

    samples = make_samples(agent, rollout, config, None)

    row = 3 * 4 + 1  # environment 1 was cut off after step 3
    final_value = float(agent.value(torch.from_numpy(rollout.final_obs[1:2])).detach())
    assert rollout.final_index[1].tolist() == [3, 1]
    assert float(samples.returns[row]) == pytest.approx(rollout.rewards[3, 1] + 0.9 * final_value, rel=1e-5)


def test_rewards_are_scaled_on_the_head(agent: Agent) -> None:
    rollout = made_up_rollout(agent)
    config = dataclasses.replace(CONFIG, gamma=0.0)

    samples = make_samples(agent, rollout, config, RewardScale(4, 0.0))

    np.testing.assert_allclose(
        samples.returns.numpy(), (rollout.rewards / rollout.rewards.std()).flatten(), rtol=1e-4, atol=1e-5
    )


def test_target_kl_ends_the_passes(agent: Agent) -> None:
    samples = make_samples(agent, made_up_rollout(agent), CONFIG, None)
    patient = dataclasses.replace(CONFIG, epochs=50, target_kl=1e-3, learning_rate=1e-3)
    optimizer = optimizer_of(agent)

    losses = update(agent, optimizer, samples, patient, torch.Generator().manual_seed(0))

    assert losses["kl_k3"] > 1e-3
    steps = {int(state["step"]) for state in optimizer.state.values()}
    assert max(steps) < 50 * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.5),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("epochs", 0),
        ("clip_coef", float("nan")),
        ("entropy_coef", float("nan")),
        ("num_threads", 100_000),
        ("seed", -1),
        ("seed", 1 << 63),
        ("stop_at_return", float("nan")),
        ("target_kl", -1.0),
        ("target_kl", float("nan")),
        ("hidden", (64, 0)),
    ],
)
def test_option_that_cannot_work_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {value}; expected ")):
        dataclasses.replace(CONFIG, **{name: value})


SMALL = ("--workers", "1", "--envs-per-worker", "8", "--serial", "--num-steps", "16", "--no-anneal-lr")


def small_run(folder: Path, env_id: str, *flags: str) -> tuple[list[dict[str, Any]], Checkpoint]:
    """The metrics and the checkpoint of a short run in this process."""
    train(*parse(["--env-id", env_id, "--run-dir", str(folder), *SMALL, *flags]))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], Checkpoint.load(folder / "checkpoint.pt")


def test_runs_with_one_seed_agree(tmp_path: Path) -> None:
    flags = ("--sync", "every", "--total-steps", "1024", "--normalize-obs", "--scale-rewards")

    runs = [
        small_run(tmp_path / f"{seed}{i}", "CartPole-v1", *flags, "--seed", seed)
        for i, seed in enumerate("331")
    ]

    (metrics, first), (_, second), (_, other) = runs
    assert len(metrics) == 8
    for name, tensor in first.agent.items():
        assert torch.equal(tensor, second.agent[name]), name
    assert not torch.equal(first.agent["actor.0.weight"], other.agent["actor.0.weight"])


def test_training_moves_the_policy_past_the_threshold_and_workers_pull(tmp_path: Path) -> None:
    """The trap: with a clip around the stale behaviour policy the divergence would stay below it for ever."""
    flags = ("--kl-threshold", "0.02", "--max-lag", "1000", "--total-steps", "5120")

    metrics, _ = small_run(tmp_path / "run", "CartPole-v1", *flags)

    reasons = json.loads((tmp_path / "run" / "summary.json").read_text())["syncs_by_worker"][0]
    assert reasons["divergence"] >= 3
    assert max(row["kl"] for row in metrics) > 0.02
    assert reasons["divergence"] + reasons["first"] < len(metrics)


def test_continuous_control_trains_with_its_statistics(tmp_path: Path) -> None:
    metrics, checkpoint = small_run(tmp_path / "run", "Pendulum-v1", "--total-steps", "2048")

    assert checkpoint.agent["obs_count"] == 2048
    assert np.isfinite([row["value_loss"] for row in metrics]).all()
    assert checkpoint.steps == metrics[-1]["steps"] == 2048


def test_run_stops_at_the_return_asked_for(tmp_path: Path) -> None:
    metrics, _ = small_run(
        tmp_path / "run", "CartPole-v1", "--stop-at-return", "1", "--total-steps", "100000"
    )

    assert metrics[-1]["episodes"] >= 100
    assert metrics[-2]["episodes"] < 100


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_cartpole_is_solved_by_the_defaults(tmp_path: Path) -> None:
    flags = ["--env-id", "CartPole-v1", "--run-dir", str(tmp_path / "run"), "--stop-at-return", "475"]

    summary = train(*parse(flags))

    assert summary.episode_return is not None
    assert summary.episode_return >= 475
    assert summary.steps < 200_000
    assert len(summary.syncs_by_worker) == 2
    assert summary.weight_bytes_sent < summary.broadcast_bytes / 2


@pytest.mark.parametrize("own", [True, False], ids=["own", "made before"])
def test_run_that_cannot_be_launched_leaves_no_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "run"
    if not own:
        folder.mkdir()

    with pytest.raises(LaunchError, match="Slurm's commands are needed here"):
        train(PPOConfig(env_id="CartPole-v1", run_dir=folder), SlurmConfig(shared_folder=tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ([] if own else ["run"])


class Pixels(gym.Env[np.ndarray, int]):
    """Noise to look at, for ten steps."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self.np_random.integers(0, 256, (8, 8, 3), np.uint8), {}

    def step(self, action: int) -> Any:
        self._steps += 1
        return self.np_random.integers(0, 256, (8, 8, 3), np.uint8), 1.0, self._steps == 10, False, {}


def test_workers_do_not_compute_values_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = []

    def noted(agent: Agent, rollout: Rollout, *rest: Any) -> Any:
        rollouts.append(rollout)
        return make_samples(agent, rollout, *rest)

    monkeypatch.setitem(gym.registry, "Pixels-v0", gym.envs.registration.EnvSpec("Pixels-v0", Pixels))
    monkeypatch.setattr(ppo, "make_samples", noted)
    options = {"workers": 1, "serial": True, "envs_per_worker": 2, "num_steps": 8, "total_steps": 16}
    config = PPOConfig(env_id="Pixels-v0", network="impala", hidden=(8,), run_dir=tmp_path, **options)

    train(config)

    assert np.isnan(rollouts[0].values).all()
    assert Checkpoint.load(tmp_path / "checkpoint.pt").agent["critic.0.weight"].shape == (1, 8)
