"""TorchRL's Gymnasium wrapper and collector get from ClusterEnv what they get from SyncVectorEnv."""

from __future__ import annotations

import warnings
from functools import partial

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from clusterenv import ClusterEnv, LocalConfig

pytest.importorskip("torchrl", reason="TorchRL is not installed; .ci/clients runs this")

with warnings.catch_warnings():  # what it warns of while it is imported is its own business
    warnings.simplefilter("ignore")
    from tensordict import TensorDictBase
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import EnvBase, GymWrapper
    from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

ENV_FNS = [partial(gym.make, "CartPole-v1", max_episode_steps=12 + i) for i in range(3)]
TWO = LocalConfig(nodes=2, cpus_per_node=1)
MODES = [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]  # the wrapper refuses the other


def wrapped(env: VectorEnv) -> EnvBase:
    torch.manual_seed(0)
    environment = GymWrapper(env)
    environment.set_seed(4)
    return environment


def assert_equal(seen: TensorDictBase, expected: TensorDictBase) -> None:
    assert set(seen.keys(include_nested=True)) == set(expected.keys(include_nested=True))
    for key in expected.keys(include_nested=True, leaves_only=True):
        torch.testing.assert_close(seen[key], expected[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
def test_wrapper_gives_the_same_rollout(mode: AutoresetMode) -> None:
    def rollout(env: VectorEnv) -> TensorDictBase:
        environment = wrapped(env)
        result = environment.rollout(50, break_when_any_done=False)
        environment.close()
        return result

    expected = rollout(SyncVectorEnv(ENV_FNS, autoreset_mode=mode))
    assert expected["next", "done"].sum() > 3
    assert_equal(rollout(ClusterEnv(ENV_FNS, TWO, autoreset_mode=mode)), expected)


def test_collector_gives_the_same_batches() -> None:
    def batches(env: VectorEnv) -> list[TensorDictBase]:
        environment = wrapped(env)
        actor = ProbabilisticActor(
            TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
        )
        collector = Collector(
            environment, actor, frames_per_batch=60, total_frames=180, auto_register_policy_transforms=True
        )
        result = [batch.clone() for batch in collector]
        collector.shutdown()
        return result

    expected = batches(SyncVectorEnv(ENV_FNS, autoreset_mode=AutoresetMode.SAME_STEP))
    seen = batches(ClusterEnv(ENV_FNS, TWO, autoreset_mode=AutoresetMode.SAME_STEP))
    assert len(seen) == len(expected) == 3
    for ours, theirs in zip(seen, expected, strict=True):
        assert_equal(ours, theirs)
