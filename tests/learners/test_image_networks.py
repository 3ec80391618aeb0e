"""Networks for images: which one reads what, and that they see what the environment gave."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.adapters import adapt
from clusterenv.errors import ConfigError, SpaceError
from clusterenv.learners import a2c, impala, ppo
from clusterenv.learners.image_networks import (
    ROWS_AT_ONCE,
    ImageTorso,
    computes_bfloat16,
    image_shape,
    network_for,
)
from clusterenv.learners.networks import Agent
from clusterenv.learners.training import shuffled
from tests.learners.rollouts import made_up_rollout


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


LAST, FIRST, GRAY = image(64, 64, 3), image(4, 84, 84), image(40, 44)
ACTIONS = spaces.Discrete(5)


@pytest.mark.parametrize(
    ("space", "shape", "network"),
    [
        (LAST, (3, 64, 64), "impala"),
        (image(3, 64, 64), (3, 64, 64), "impala"),
        (FIRST, (4, 84, 84), "nature"),
        (GRAY, (1, 40, 44), "nature"),
        (image(20, 20, 3), (3, 20, 20), "mlp"),
        (image(64, 64, 64), None, "mlp"),
        (spaces.Box(0, 1, (64, 64, 3), np.float32), None, "mlp"),
        (spaces.Dict(a=LAST), None, "mlp"),
    ],
)
def test_network_follows_from_the_observations(
    space: gym.Space[Any], shape: tuple[int, int, int] | None, network: str
) -> None:
    assert image_shape(space) == shape
    assert network_for("auto", space) == network
    assert network_for("mlp", space) == "mlp"


def test_network_that_cannot_read_the_observations_says_so() -> None:
    with pytest.raises(SpaceError, match=r"the network nature reads images, .* from 36 by 36, not"):
        network_for("nature", image(20, 20, 3))
    with pytest.raises(ConfigError, match=r"hidden is \(\); expected at least one layer for"):
        Agent(LAST, ACTIONS, hidden=())


@pytest.mark.parametrize("space", [LAST, FIRST, GRAY], ids=["last", "first", "gray"])
@pytest.mark.parametrize("network", ["nature", "impala"])
def test_torso_keeps_leading_axes_and_sees_every_image(space: spaces.Box, network: Any) -> None:
    torch.manual_seed(0)
    agent = Agent(space, ACTIONS, network=network, precision="float32")
    obs = torch.randint(0, 256, (2, 3, *space.shape), dtype=torch.uint8)

    outputs, values = agent.outputs_and_values(agent.features(obs))

    assert (outputs.shape, values.shape) == ((2, 3, 5), (2, 3))
    assert len({round(value, 5) for value in values.flatten().tolist()}) == 6
    torch.testing.assert_close(agent.value(obs[1]), values[1])
    torch.testing.assert_close(agent.distribution(obs[1]).probs, agent.as_policy(outputs[1]).probs)
    assert agent.value(obs[0, :0]).shape == (0,)
    actor = agent.without_critic()
    assert torch.equal(actor.distribution(obs[1]).logits, agent.distribution(obs[1]).logits)
    assert {name.partition(".")[0] for name in actor.state_dict()} == {"torso", "actor"}


def test_channels_first_and_last_are_the_same_image_to_the_network() -> None:
    torch.manual_seed(0)
    last = ImageTorso(LAST, "impala", (8,), "float32")
    first = ImageTorso(image(3, 64, 64), "impala", (8,), "float32")
    first.load_state_dict(last.state_dict())
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)

    torch.testing.assert_close(first(images.permute(0, 3, 1, 2).contiguous()), last(images))


def test_many_images_give_what_few_at_a_time_give() -> None:
    agent = Agent(GRAY, ACTIONS, network="nature", precision="float32")
    images = torch.randint(0, 256, (ROWS_AT_ONCE + 5, *GRAY.shape), dtype=torch.uint8)

    with torch.no_grad():
        together = agent.value(images)

    torch.testing.assert_close(together, agent.value(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("network", ["nature", "impala"])
def test_image_networks_begin_orthogonal_with_features_of_the_size_of_the_images(network: Any) -> None:
    torch.manual_seed(0)
    agent = Agent(LAST, ACTIONS, network=network, precision="float32")
    images = torch.randint(0, 256, (32, 64, 64, 3), dtype=torch.uint8)
    convolution = next(part for part in agent.modules() if isinstance(part, torch.nn.Conv2d))
    rows = convolution.weight.flatten(1)

    gain = 1.0 if network == "impala" else math.sqrt(2)
    torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)), atol=1e-5, rtol=0)
    assert 0.1 < agent.torso(images).std() < 10
    assert agent.distribution(images).entropy().mean() > 0.99 * math.log(5)


def test_bfloat16_is_for_the_arithmetic_alone_and_close(tmp_path: Path) -> None:
    torch.manual_seed(0)
    exact = Agent(LAST, ACTIONS, precision="float32")
    fast = Agent(LAST, ACTIONS, precision="bfloat16")
    fast.load_state_dict(exact.state_dict())
    images = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)

    assert {parameter.dtype for parameter in fast.parameters()} == {torch.float32}
    assert fast.value(images).dtype == torch.float32
    assert 0 < (fast.value(images) - exact.value(images)).abs().max() < 0.05
    (tmp_path / "cpuinfo").write_text("model name\t: A\nflags\t\t: fpu avx512_bf16 sse\n")
    assert computes_bfloat16(tmp_path / "cpuinfo")
    assert not computes_bfloat16(tmp_path / "none")


def test_worker_acts_as_the_learner_computes() -> None:
    agent = Agent(LAST, ACTIONS, precision="float32")
    adapter = adapt(agent.without_critic(), LAST, ACTIONS)
    obs = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)

    acted = adapter.act(obs, seed=1, env_ids=np.arange(3), steps=np.zeros(3, np.int64))

    learnt = agent.distribution(torch.from_numpy(obs)).log_prob(torch.from_numpy(acted.actions))
    np.testing.assert_allclose(acted.log_probs, learnt.detach(), atol=1e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
def test_every_actor_critic_has_a_gradient_through_the_shared_network(algorithm: str) -> None:
    torch.manual_seed(0)
    agent = Agent(GRAY, ACTIONS, network="nature", precision="float32")
    rollout = made_up_rollout(agent, valid=np.random.default_rng(0).random((6, 4)) < 0.8)
    options: dict[str, Any] = {"env_id": "made-up", "batch_size": 5, "scale_rewards": False}
    before = [parameter.clone() for parameter in agent.parameters()]
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    shuffling = torch.Generator().manual_seed(0)

    if algorithm == "ppo":
        config = ppo.PPOConfig(**options, clip_value=0.2)
        samples = ppo.make_samples(agent, rollout, config, None)
        assert samples.features.dtype == torch.uint8
        parts = shuffled(samples, 1, shuffling, config.batch_size)
        assert max(map(len, parts)) <= 5
        assert len(parts) == math.ceil(len(samples) / 5)
        logs = ppo.update(agent, optimizer, samples, config, shuffling)
    elif algorithm == "a2c":
        del options["batch_size"]
        logs = a2c.update(agent, optimizer, rollout, a2c.A2CConfig(**options), None)
    else:
        samples = impala.make_samples(agent, agent, rollout, impala.IMPALAConfig(**options), None)
        logs = impala.update(agent, optimizer, samples, impala.IMPALAConfig(**options), shuffling)

    assert not any(torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True))
    assert {"entropy", "explained_variance"} <= logs.keys()
    assert any(name.startswith("kl_") for name in logs)
