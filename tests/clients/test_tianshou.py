"""Tianshou's collector gathers over workers what it gathers over Tianshou's own environments, and learns."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from clusterenv import LocalConfig

pytest.importorskip("tianshou", reason="Tianshou is not installed; .ci/clients runs this")

with warnings.catch_warnings():  # what it warns of while it is imported is its own business
    warnings.simplefilter("ignore")
    from tianshou.algorithm import Reinforce
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import BaseVectorEnv, DummyVectorEnv, VectorEnvNormObs
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor

    from clusterenv.integrations.tianshou import ClusterVectorEnv

pytestmark = pytest.mark.process

TWO = LocalConfig(nodes=2, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)
ENV_FNS = [partial(gym.make, "CartPole-v1", max_episode_steps=60) for _ in range(4)]


def algorithm(env: BaseVectorEnv) -> Reinforce:
    torch.manual_seed(1)
    np.random.seed(1)
    space = gym.make("CartPole-v1")
    net = Net(state_shape=space.observation_space.shape, hidden_sizes=[16])
    actor = DiscreteActor(preprocess_net=net, action_shape=2, softmax_output=False)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=space.action_space,
        action_scaling=False,
        action_bound_method=None,
    )
    return Reinforce(policy=policy, optim=AdamOptimizerFactory(lr=1e-2))


def gathered(env: BaseVectorEnv, **how: Any) -> dict[str, np.ndarray]:
    """What three collections put into the buffer, and what the last one says of its episodes."""
    buffer = VectorReplayBuffer(2000, len(env))
    collector = Collector(algorithm(env), env, buffer)
    env.seed(3)
    collector.reset(gym_reset_kwargs={"seed": 3})
    for _ in range(3):
        stats = collector.collect(**how)
    keys = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
    seen = {key: np.array(getattr(buffer, key)) for key in keys}
    collector.close()
    return seen | {"returns": stats.returns, "lens": stats.lens, "env_id": np.array(buffer.info.env_id)}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", [{"n_step": 120}, {"n_episode": 7}, {"n_step": 80, "random": True}], ids=str)
def test_collector_gathers_the_same(how: dict[str, Any]) -> None:
    expected = gathered(DummyVectorEnv(ENV_FNS), **how)
    seen = gathered(ClusterVectorEnv(ENV_FNS, TWO), **how)
    for key, array in expected.items():
        assert seen[key].dtype == array.dtype, key
        np.testing.assert_array_equal(seen[key], array, err_msg=key)
    assert expected["terminated"].sum() > 3


def test_reinforce_learns_the_same_weights_with_normalised_observations() -> None:
    def weights(env: BaseVectorEnv) -> list[np.ndarray]:
        env = VectorEnvNormObs(env)
        learner = algorithm(env)
        start = [parameter.detach().clone() for parameter in learner.parameters()]
        collector = Collector(learner, env, VectorReplayBuffer(2000, len(env)))
        env.seed(3)
        collector.reset()
        learner.run_training(
            OnPolicyTrainerParams(
                training_collector=collector,
                max_epochs=2,
                epoch_num_steps=400,
                collection_step_num_env_steps=200,
                batch_size=64,
                update_step_num_repetitions=2,
                show_progress=False,
            )
        )
        collector.close()
        assert not any(map(torch.equal, start, learner.parameters()))
        return [parameter.detach().numpy() for parameter in learner.parameters()]

    expected = weights(DummyVectorEnv(ENV_FNS))
    seen = weights(ClusterVectorEnv(ENV_FNS, SERIAL))
    for ours, theirs in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
