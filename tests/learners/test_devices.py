"""The learner's device: what the words mean, and that every update computes where the agent is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.adapters import adapt
from clusterenv.cli import main
from clusterenv.errors import ConfigError
from clusterenv.learners import a2c, dqn, impala, ppo, sac
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.devices import learner_device
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from clusterenv.learners.transitions import NStepTransitions
from tests.learners.elsewhere import DEVICE, Elsewhere, elsewhere
from tests.learners.rollouts import made_up_rollout

BOX = spaces.Box(-1, 1, (3,), np.float32)
DISCRETE = spaces.Discrete(3, start=2)
IMAGES = spaces.Box(0, 255, (8, 8, 3), np.uint8)
CPU = torch.device("cpu")


def agent_for(observations: spaces.Space[Any]) -> Agent:
    torch.manual_seed(0)
    return Agent(
        observations,
        DISCRETE,
        hidden=(8,),
        normalize_obs=True,
        network="impala" if observations is IMAGES else "mlp",
        precision="float32",
    )


def adam(agent: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)


def ppo_update(agent: Agent, rollout: Any) -> dict[str, float]:
    config = ppo.PPOConfig(env_id="CartPole-v1", epochs=2, batch_size=10, clip_value=0.2)
    samples = ppo.make_samples(agent, rollout, config, RewardScale(4, 0.99))
    losses = ppo.update(agent, adam(agent), samples, config, torch.Generator().manual_seed(3))
    agent.observe(rollout.obs, rollout.valid)
    return losses


def a2c_update(agent: Agent, rollout: Any) -> dict[str, float]:
    config = a2c.A2CConfig(env_id="CartPole-v1")
    return a2c.update(agent, adam(agent), rollout, config, RewardScale(4, 0.99))


def impala_update(agent: Agent, rollout: Any) -> dict[str, float]:
    config = impala.IMPALAConfig(env_id="CartPole-v1", passes=2, num_minibatches=2)
    prox = copy.deepcopy(agent.without_critic())
    samples = impala.make_samples(agent, prox, rollout, config, None)
    losses = impala.update(agent, adam(agent), samples, config, torch.Generator().manual_seed(3))
    agent.observe(rollout.obs, rollout.valid)
    return losses


@pytest.mark.parametrize("observations", [BOX, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("update", [ppo_update, a2c_update, impala_update])
def test_update_computes_on_the_agents_device_what_it_computes_on_the_cpu(
    update: Any, observations: spaces.Space[Any]
) -> None:
    here = agent_for(observations)
    rollout = made_up_rollout(here)
    there = copy.deepcopy(here)
    losses = update(here, rollout)

    with elsewhere() as device:
        there.to(device)
        assert update(there, rollout) == pytest.approx(losses, rel=1e-4, abs=1e-5)

    assert there.device == DEVICE
    for name, tensor in there.state_dict().items():
        torch.testing.assert_close(tensor.inner, here.state_dict()[name], rtol=1e-4, atol=1e-5)


def transitions_of(agent: Any, observations: spaces.Box, actions: spaces.Space[Any]) -> Any:
    torch.manual_seed(0)
    rollout = made_up_rollout(Agent(observations, actions, hidden=(8,)))
    return NStepTransitions(observations, actions, n_steps=2, gamma=0.99)(rollout)


def dqn_update(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    agent = dqn.Agent(BOX, DISCRETE, hidden=(8,), num_envs=4).to(device)
    target = copy.deepcopy(agent.q)
    agent.epsilons.copy_(torch.full((4,), 0.1))
    rows = transitions_of(agent, BOX, DISCRETE)
    dqn.update(agent, target, adam(agent), rows, dqn.DQNConfig(env_id="CartPole-v1"))
    return agent


def sac_update(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    actions = spaces.Box(-2, 2, (2,), np.float32)
    agent = sac.Agent(BOX, actions, hidden=(8,)).to(device)
    learner = sac.Learner(agent, sac.SACConfig(env_id="Pendulum-v1", hidden=(8,)))
    learner.optimizer, learner.critic_optimizer = adam(agent), adam(learner.critics)
    rows = transitions_of(agent, BOX, actions)
    torch.manual_seed(1)
    learner.update(rows)
    return agent


@pytest.mark.parametrize("update", [dqn_update, sac_update])
def test_replayed_transitions_are_learnt_from_on_the_agents_device(update: Any) -> None:
    here = update(CPU).state_dict()

    with elsewhere() as device:
        there = update(device).state_dict()

    for name, tensor in there.items():
        torch.testing.assert_close(tensor.inner, here[name], rtol=1e-4, atol=1e-5)


def test_workers_get_the_weights_and_the_agent_on_the_cpu() -> None:
    agent = agent_for(BOX)
    rollout = made_up_rollout(agent)
    with elsewhere() as device:
        agent.to(device)
        adapter = adapt(agent, BOX, DISCRETE)

        state = adapter.state()
        evaluated = adapter.evaluate(rollout.obs[0], rollout.actions[0])

    assert all(type(array) is np.ndarray for array in state.values())
    assert evaluated.log_probs == pytest.approx(rollout.log_probs[0], abs=1e-5)
    assert isinstance(agent.actor[0].weight, Elsewhere)


def test_a_tensor_of_the_cpu_and_one_from_elsewhere_do_not_meet() -> None:
    with elsewhere() as device, pytest.raises(RuntimeError, match="of the CPU meets one from elsewhere"):
        torch.ones(3, device=device) + torch.ones(3)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_auto_takes_a_gpu_for_large_networks_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2)
    assert learner_device("auto", large=True, rank=3) == torch.device("cuda", 1)
    assert learner_device("auto", large=False) == CPU
    assert learner_device("cuda", large=False) == torch.device("cuda", 0)
    assert learner_device("cpu", large=True) == CPU

    with_gpus(monkeypatch, 0)
    assert learner_device("auto", large=True) == CPU


def test_a_gpu_that_is_not_there_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_gpus(monkeypatch, 0)
    with pytest.raises(
        ConfigError, match=r"device is 'cuda'; expected cpu or auto, since torch finds no GPU"
    ):
        learner_device("cuda", large=True)

    words = [
        "train",
        "a2c",
        "--env-id",
        "CartPole-v1",
        "--device",
        "cuda",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("clusterenv: device is 'cuda'; expected cpu or auto, since ")
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_another_device_is_read_on_the_cpu(tmp_path: Path) -> None:
    agent = agent_for(BOX)
    checkpoint = Checkpoint(
        algorithm="ppo",
        env_id="CartPole-v1",
        steps=1,
        agent=agent.state_dict(),
        agent_options={},
        optimizer={},
        config={"device": "cuda"},
    )
    checkpoint.save(tmp_path / "checkpoint.pt")

    loaded = Checkpoint.load(tmp_path / "checkpoint.pt")

    assert all(tensor.device == CPU for tensor in loaded.agent.values())
