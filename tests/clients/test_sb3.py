"""Stable-Baselines3 learns over workers, its wrappers wrap them, and its policy acts on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Sampled
from tests.spaces import assert_same

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed; .ci/clients runs this")

from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from clusterenv.integrations.sb3 import ClusterVecEnv

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SERIAL = LocalConfig(serial=True)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
VECTORS = gym.spaces.Box(-1, 1, (3,), np.float32)
PICTURES = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
WRAPPERS: dict[str, Any] = {
    "VecNormalize": VecNormalize,
    "VecMonitor": VecMonitor,
    "VecFrameStack": partial(VecFrameStack, n_stack=3),
    "VecNormalize of VecMonitor": lambda env: VecNormalize(VecMonitor(env), norm_reward=False),
}


class StopAtReturn(BaseCallback):
    """Ends the training when the last 20 episodes returned `goal` on average."""

    def __init__(self, goal: float) -> None:
        super().__init__()
        self.goal = goal

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in list(self.model.ep_info_buffer or ())[-20:]]
        return len(returns) < 20 or float(np.mean(returns)) < self.goal


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ppo_learns_cartpole_over_two_workers() -> None:
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", 16, seed=1, vec_env_cls=ClusterVecEnv, vec_env_kwargs={"launcher": TWO})
    model = PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98,
        learning_rate=1e-3, seed=1, device="cpu",
    )  # fmt: skip
    model.learn(100_000, callback=StopAtReturn(475))
    assert model.num_timesteps < 100_000
    mean, _ = evaluate_policy(model, env, n_eval_episodes=16)
    assert mean >= 475
    env.close()


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_give_what_they_give_over_dummy_vec_env(wrap: Any) -> None:
    fns = [partial(Sampled, VECTORS)] * 3

    def walk(env: VecEnv) -> list[Any]:
        env.seed(4)
        env.action_space.seed(4)
        seen: list[Any] = [env.reset()]
        for _ in range(40):
            obs, rewards, dones, infos = env.step(np.array([env.action_space.sample() for _ in range(3)]))
            ends = [info.get("terminal_observation") for info in infos]
            episodes = [
                (info.get("episode", {}).get("r"), info.get("episode", {}).get("l")) for info in infos
            ]
            seen += [obs, rewards, dones, ends, episodes]
        return seen

    assert_same(walk(wrap(ClusterVecEnv(fns, SERIAL))), walk(wrap(DummyVecEnv(fns))))


def test_pictures_are_transposed() -> None:
    env = VecTransposeImage(ClusterVecEnv([partial(Sampled, PICTURES)] * 2, SERIAL))
    assert env.reset().shape == (2, 1, 36, 36)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "how"),
    [
        (PPO, "CartPole-v1", {"n_steps": 64, "batch_size": 64}),
        (A2C, "Pendulum-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 50, "train_freq": 8}),
        (SAC, "Pendulum-v1", {"learning_starts": 50, "train_freq": 16}),
    ],
)
def test_algorithms_learn_the_same_weights_as_over_dummy_vec_env(
    algorithm: Any, env_id: str, how: Any
) -> None:
    def weights(**made: Any) -> dict[str, torch.Tensor]:
        env = make_vec_env(env_id, 4, seed=2, **made)
        model = algorithm("MlpPolicy", env, seed=2, device="cpu", **how)
        model.learn(512)
        return dict(model.policy.state_dict())

    expected = weights()
    seen = weights(vec_env_cls=ClusterVecEnv, vec_env_kwargs={"launcher": SERIAL})
    for name, tensor in expected.items():
        assert torch.equal(seen[name], tensor), name


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_policy_acts_on_the_workers(env_id: str) -> None:
    with ClusterEnv(env_id, TWO, envs_per_node=2, autoreset_mode="SameStep") as env:
        model = PPO("MlpPolicy", ClusterVecEnv(env), n_steps=32, batch_size=32, seed=3, device="cpu")
        policy: ActorCriticPolicy = model.policy
        obs, _ = env.reset(seed=3)
        _, _, _, _, info = env.step(policy)
        values, log_probs, _ = policy.evaluate_actions(torch.as_tensor(obs), torch.as_tensor(info["action"]))
        np.testing.assert_allclose(info["value"], values.detach().numpy()[:, 0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(info["log_prob"], log_probs.detach().numpy(), rtol=1e-4, atol=1e-5)

        batch = env.rollout(policy, 20)
        flat = torch.as_tensor(batch.obs.reshape(-1, *batch.obs.shape[2:]))
        taken = torch.as_tensor(batch.actions.reshape(-1, *batch.actions.shape[2:]))
        values, log_probs, _ = policy.evaluate_actions(flat, taken)
        np.testing.assert_allclose(batch.log_probs.ravel(), log_probs.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.values.ravel(), values.detach().numpy()[:, 0], rtol=1e-4, atol=1e-5)

        model.learn(128)  # the weights change, and the adapter goes on over the same environments
        assert (env.rollout(policy, 8).policy_version > 0).all()
        assert env.stats()["policy_version"] == 2
