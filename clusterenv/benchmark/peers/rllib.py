"""RLlib: the env runners of PPO, whose episodes come to the head."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune import register_env

from clusterenv.benchmark.contenders import Advancing, Contender, Shape
from clusterenv.benchmark.tasks import Task


def env_runners(task: Task, shape: Shape) -> Contender:
    """One of them for each worker, with a vector of environments each."""
    ray.init(num_cpus=shape.workers + 1, include_dashboard=False)
    register_env("task", lambda _: gym.make(task.env_id))
    networks = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = PPOConfig().environment("task").rl_module(model_config=networks)
    config.env_runners(
        num_env_runners=shape.workers,
        num_envs_per_env_runner=shape.envs_per_worker,
        rollout_fragment_length=shape.num_steps,
    )
    config.training(train_batch_size_per_learner=shape.num_envs * shape.num_steps)
    runners = config.build_algo().env_runner_group

    def advance() -> int:
        sampled = runners.foreach_env_runner(_sample, local_env_runner=False)
        return sum(len(episode) for episodes in sampled for episode in episodes)

    return Advancing(advance, ray.shutdown)


def _sample(runner: Any) -> Any:  # noqa: ANN401 - of any kind of env runner
    return runner.sample()
