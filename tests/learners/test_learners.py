"""A2C, A3C, IMPALA, DQN and SAC: their losses against what is known of them, and short runs over workers."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.errors import ConfigError, SpaceError
from clusterenv.learners import ALGORITHMS, a2c, agent_class, dqn, impala, ppo, sac
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.defaults import DEFAULTS
from clusterenv.learners.evaluate import EvaluateConfig, evaluate
from clusterenv.learners.networks import Agent
from clusterenv.learners.replay import Replay
from clusterenv.learners.runs import Summary
from clusterenv.learners.transitions import transition_dtype
from tests.learners.rollouts import made_up_rollout

BOX = spaces.Box(-1, 1, (3,), np.float32)
DISCRETE = spaces.Discrete(3, start=2)
OTHERS = tuple(name for name in ALGORITHMS if name != "ppo")


def made_up_agent() -> Agent:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        agent = Agent(BOX, DISCRETE, hidden=(8,))
        with torch.no_grad():
            agent.actor[-1].weight.mul_(50)
    return agent


def gradient(agent: Agent, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(agent.parameters()))])


def trained(algorithm: str, folder: Path, *flags: str) -> Summary:
    module = import_module(f"clusterenv.learners.{algorithm}")
    summary: Summary = module.train(*module.parse(["--run-dir", str(folder), *flags]))
    return summary


# --- what every algorithm has ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "env_id"), [(name, env_id) for name in OTHERS for env_id in DEFAULTS[name]]
)
def test_every_row_of_defaults_is_for_an_environment_that_exists(algorithm: str, env_id: str) -> None:
    config, _ = import_module(f"clusterenv.learners.{algorithm}").parse(["--env-id", env_id])

    assert gym.spec(env_id).id == config.env_id
    assert config != type(config)(env_id=env_id)


SMALL = ("--workers", "1", "--envs-per-worker", "4", "--serial", "--seed", "3", "--num-steps", "8")
REPLAYED = ("--learning-starts", "64", "--batch-size", "32", "--hidden", "16")


@pytest.mark.parametrize("algorithm", OTHERS)
def test_short_run_leaves_an_agent_that_can_be_evaluated_and_gone_on_with(
    tmp_path: Path, algorithm: str
) -> None:
    env_id = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    flags = (*SMALL, *(REPLAYED if algorithm in ("dqn", "sac") else ()), "--checkpoint-every", "128")

    trained(algorithm, tmp_path / "run", "--env-id", env_id, *flags, "--total-steps", "512")

    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    path = tmp_path / "run" / "checkpoint.pt"
    checkpoint = Checkpoint.load(path)
    assert checkpoint.algorithm == algorithm
    assert rows[-1]["steps"] == checkpoint.steps >= 512
    assert any(name.endswith("loss") for name in rows[-1])
    assert len(evaluate(EvaluateConfig(checkpoint=path, num_episodes=2, deterministic=True))) == 2

    module = import_module(f"clusterenv.learners.{algorithm}")
    module.train(*module.parse(["--resume", str(tmp_path / "run"), "--total-steps", "1024"]))

    assert Checkpoint.load(path).steps >= 1024


def test_checkpoint_of_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm is 'os'; expected one of ppo, a2c"):
        agent_class("os")


def test_agent_without_critic_is_the_same_policy_on_the_same_tensors() -> None:
    agent = Agent(BOX, DISCRETE, hidden=(8,), normalize_obs=True)
    actor = agent.without_critic()
    obs = torch.randn(5, 3)

    with torch.no_grad():
        agent.actor[-1].bias.add_(torch.tensor([1.0, 0.0, -1.0]))
    agent.observe(obs[None].numpy(), np.ones((1, 5), bool))

    assert torch.equal(actor.distribution(obs).logits, agent.distribution(obs).logits)
    assert set(actor.state_dict()) == {name for name in agent.state_dict() if not name.startswith("critic")}
    assert not hasattr(actor, "value")


# --- A2C and IMPALA -------------------------------------------------------------------------------------

PLAIN = {"normalize_advantages": False, "gamma": 0.9, "scale_rewards": False}


def test_impala_on_fresh_data_in_one_step_is_a2c_with_n_step_returns() -> None:
    """With traces of lambda 1 and bars of 1 both are the policy gradient of n-step returns."""
    agent = made_up_agent()
    rollout = made_up_rollout(agent, valid=np.random.default_rng(0).random((6, 4)) < 0.8)
    impala_config = impala.IMPALAConfig(env_id="made-up", trace_lambda=1.0, **PLAIN)
    a2c_config = a2c.A2CConfig(env_id="made-up", gae_lambda=1.0, **PLAIN)

    samples = impala.make_samples(agent, agent, rollout, impala_config, None)
    loss, _ = impala.impala_loss(agent, samples, impala_config)
    expected, _ = a2c.a2c_loss(agent, rollout, a2c_config, None)

    torch.testing.assert_close(gradient(agent, loss), gradient(agent, expected), atol=1e-5, rtol=1e-4)


def test_impala_without_a_copy_of_the_policy_learns_around_the_policy_itself() -> None:
    agent = made_up_agent()
    rollout = made_up_rollout(agent)
    config = impala.IMPALAConfig(env_id="made-up", scale_rewards=False)

    alone = impala.make_samples(agent, None, rollout, config, None)

    for name, value in dataclasses.asdict(impala.make_samples(agent, agent, rollout, config, None)).items():
        torch.testing.assert_close(getattr(alone, name), value)


def test_impala_weights_rows_of_an_older_policy_by_no_more_than_rho_bar() -> None:
    agent = made_up_agent()
    fresh = made_up_rollout(agent)
    config = impala.IMPALAConfig(env_id="made-up", **PLAIN)
    shifts = {"likelier": np.log(4.0), "less likely": -np.log(4.0)}  # of what was done, than under mu

    advantages = {
        name: impala.make_samples(
            agent,
            agent,
            dataclasses.replace(fresh, log_probs=fresh.log_probs - np.float32(shift)),
            config,
            None,
        ).advantages[-4:]  # of the last step, which no trace reaches
        for name, shift in shifts.items()
    }
    expected = impala.make_samples(agent, agent, fresh, config, None).advantages[-4:]

    torch.testing.assert_close(advantages["likelier"], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(advantages["less likely"], expected / 4, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["a2c", "impala"])
def test_batch_without_valid_rows_changes_nothing(algorithm: str) -> None:
    agent = made_up_agent()
    rollout = made_up_rollout(agent, valid=np.zeros((6, 4), bool))
    before = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    optimizer = torch.optim.Adam(agent.parameters())

    if algorithm == "a2c":
        losses = a2c.update(agent, optimizer, rollout, a2c.A2CConfig(env_id="made-up"), None)
    else:
        config = impala.IMPALAConfig(env_id="made-up")
        samples = impala.make_samples(agent, agent, rollout, config, None)
        losses = impala.update(agent, optimizer, samples, config, torch.Generator())

    assert losses == {}
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.state_dict().items())


def test_impala_refuses_a_rho_bar_below_c_bar() -> None:
    with pytest.raises(ConfigError, match=r"rho_bar is 0\.5; expected at least c_bar = 1\.0"):
        impala.IMPALAConfig(env_id="x", rho_bar=0.5)


# --- DQN ------------------------------------------------------------------------------------------------


def transitions(action_space: gym.Space[Any], size: int = 6) -> np.ndarray:
    generator = np.random.default_rng(0)
    rows = np.zeros(size, transition_dtype(BOX, action_space))
    for name in ("obs", "next_obs"):
        rows[name] = generator.normal(size=(size, 3))
    rows["reward"] = generator.normal(size=size)
    rows["discount"] = np.where(np.arange(size) % 3 == 0, 0.0, 0.9)
    is_box = isinstance(action_space, spaces.Box)
    rows["action"] = generator.uniform(-3, 3, (size, 2)) if is_box else generator.integers(2, 5, size)
    return rows


@torch.no_grad()
@pytest.mark.parametrize("double", [True, False])
def test_q_loss_is_that_of_its_definition(double: bool) -> None:
    torch.manual_seed(0)
    agent, other = (dqn.Agent(BOX, DISCRETE, hidden=(8,)) for _ in range(2))
    rows = transitions(DISCRETE)

    loss, _ = dqn.q_loss(agent, other.q, rows, dqn.DQNConfig(env_id="made-up", double=double))

    expected = []
    for row in rows:
        obs, next_obs = (torch.from_numpy(row[name].copy()) for name in ("obs", "next_obs"))
        chooser = agent.q if double else other.q
        target = row["reward"] + row["discount"] * float(other.q(next_obs)[chooser(next_obs).argmax()])
        error = abs(float(agent.q(obs)[row["action"] - 2]) - target)
        expected.append(0.5 * error**2 if error < 1 else error - 0.5)
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-4)


def test_each_environment_has_its_epsilon() -> None:
    config = dqn.DQNConfig(
        env_id="x", epsilon="by_env", epsilon_start=0.4, epsilon_end=0.4**8, workers=2, envs_per_worker=4
    )
    agent = dqn.Agent(BOX, DISCRETE, **config.agent_options)
    agent.epsilons.copy_(config.epsilons(0))
    obs = torch.randn(8, 3)

    probs = agent.distribution(obs, torch.arange(8)).probs

    apex = 0.4 ** (1 + 7 * torch.arange(8) / 7)
    torch.testing.assert_close(agent.epsilons, apex, rtol=1e-4, atol=0)
    best = agent.q(obs).argmax(-1)
    torch.testing.assert_close(probs.gather(1, best[:, None]).squeeze(1), 1 - apex + apex / 3)
    assert torch.equal(agent.choose(obs, deterministic=False), best + 2)


def test_epsilon_falls_in_a_line_and_stays() -> None:
    config = dqn.DQNConfig(env_id="x", total_steps=1000, epsilon_fraction=0.5, epsilon_end=0.1)

    assert [float(config.epsilons(steps)[0]) for steps in (0, 250, 500, 900)] == pytest.approx(
        [1.0, 0.55, 0.1, 0.1]
    )


def test_replay_file_is_where_a_later_run_begins(tmp_path: Path) -> None:
    flags = ("--env-id", "CartPole-v1", *SMALL, *REPLAYED, "--replay-file", str(tmp_path / "replay"))

    trained("dqn", tmp_path / "first", *flags, "--total-steps", "128")
    trained("dqn", tmp_path / "second", *flags, "--total-steps", "32")

    first, second = (
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("first", "second")
    )
    assert second["replay"] > first["replay"] > 64
    assert "q_loss" in second  # no waiting for the first transitions
    capacity = DEFAULTS["dqn"]["CartPole-v1"]["replay_capacity"]
    dtype = transition_dtype(gym.make("CartPole-v1").observation_space, spaces.Discrete(2))
    with Replay(capacity, dtype, tmp_path / "replay") as replay:
        assert len(replay) == second["replay"]


def test_spaces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpaceError, match="DQN acts in Discrete spaces, not Box"):
        dqn.Agent(BOX, BOX)
    for space in (DISCRETE, spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (2, 2))):
        with pytest.raises(SpaceError, match="SAC acts in one-dimensional Box spaces with bounds, not"):
            sac.Agent(BOX, space)


# --- SAC ------------------------------------------------------------------------------------------------

TORQUES = spaces.Box(np.float32([-3, 0]), np.float32([3, 1]))


def sac_learner() -> sac.Learner:
    torch.manual_seed(0)
    return sac.Learner(
        sac.Agent(BOX, TORQUES, hidden=(8,)), sac.SACConfig(env_id="made-up", hidden=(8,), start_alpha=0.3)
    )


def test_log_densities_of_samples_are_those_of_the_policy() -> None:
    agent = sac_learner().agent
    obs = torch.randn(64, 3)

    scaled, log_probs = agent.sample(obs)

    actions = agent.low + (scaled + 1) / 2 * (agent.high - agent.low)
    volume = (agent.high - agent.low).log().sum() - 2 * np.log(2)  # from [-1, 1] to the bounds
    torch.testing.assert_close(agent.scaled(actions), scaled, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        agent.distribution(obs).log_prob(actions), log_probs - volume, atol=1e-3, rtol=1e-3
    )
    assert ((actions >= agent.low) & (actions <= agent.high)).all()


def test_two_critics_at_once_are_two_networks() -> None:
    critics = sac_learner().critics
    obs, actions = torch.randn(5, 3), torch.rand(5, 2)

    values = critics(obs, actions)

    for i in range(2):
        hidden = torch.cat([obs, actions], 1) @ critics.weights[0][i] + critics.biases[0][i]
        expected = hidden.relu() @ critics.weights[1][i] + critics.biases[1][i]
        torch.testing.assert_close(values[i], expected.squeeze(1))
    assert not torch.allclose(values[0], values[1])


def test_critic_loss_is_that_of_its_definition() -> None:
    learner, rows = sac_learner(), transitions(TORQUES)
    with torch.no_grad():
        next_obs = torch.from_numpy(rows["next_obs"])
        torch.manual_seed(1)
        actions, log_probs = learner.agent.sample(next_obs)
        following = learner.target(next_obs, actions).min(0).values - 0.3 * log_probs
        targets = torch.from_numpy(rows["reward"]) + torch.from_numpy(rows["discount"]) * following
        taken = learner.agent.scaled(torch.from_numpy(rows["action"]))
        values = learner.critics(torch.from_numpy(rows["obs"]), taken)

    torch.manual_seed(1)
    loss, _ = learner.critic_loss(rows)

    assert float(loss.detach()) == pytest.approx(
        float(0.5 * ((values - targets) ** 2).sum() / len(rows)), rel=1e-5
    )


@pytest.mark.parametrize(("target", "rises"), [(5.0, True), (-50.0, False)])
def test_temperature_rises_while_the_entropy_is_below_its_target(target: float, rises: bool) -> None:
    learner = sac_learner()
    learner.target_entropy = target
    before = float(learner.log_alpha[0].detach())

    learner.update(transitions(TORQUES))

    assert (float(learner.log_alpha[0].detach()) > before) == rises


def test_targets_follow_the_critics_slowly() -> None:
    learner = sac_learner()
    before = [weight.clone() for weight in learner.target.parameters()]

    learner.update(transitions(TORQUES))

    for old, new, critic in zip(
        before, learner.target.parameters(), learner.critics.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.005 * (critic - old))


# --- over worker processes ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("algorithm", ["a2c", "a3c", "impala", "dqn"])
def test_cartpole_is_learnt_over_two_workers(tmp_path: Path, algorithm: str) -> None:
    """A random policy has 22; half of what an episode can give is learning beyond doubt."""
    summary = trained(algorithm, tmp_path / "run", "--env-id", "CartPole-v1", "--stop-at-return", "150")

    assert summary.episode_return is not None
    assert summary.episode_return >= 150
    assert len(summary.syncs_by_worker) == 2


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("nothing_left")
def test_pendulum_is_learnt_over_two_workers(tmp_path: Path) -> None:
    """A random policy has -1200 and worse."""
    trained("sac", tmp_path / "run", "--env-id", "Pendulum-v1", "--total-steps", "8000")

    returns = evaluate(EvaluateConfig(checkpoint=tmp_path / "run" / "checkpoint.pt", deterministic=True))
    assert np.mean(returns) > -300


def test_ppo_and_the_others_take_the_same_common_options() -> None:
    common = {item.name for item in dataclasses.fields(ppo.PPOConfig)} & {
        item.name for item in dataclasses.fields(sac.SACConfig)
    }

    assert {"env_id", "workers", "kl_threshold", "max_lag", "sync", "seed", "run_dir", "resume"} <= common
