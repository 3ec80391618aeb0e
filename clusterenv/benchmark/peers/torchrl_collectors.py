"""TorchRL: its collector over processes, each with one vector of Gymnasium's."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymWrapper

from clusterenv.benchmark.agents import Agent
from clusterenv.benchmark.contenders import SEED, Advancing, Contender, Shape
from clusterenv.benchmark.tasks import Task
from clusterenv.benchmark.twins import act


def multi_sync(task: Task, shape: Shape) -> Contender:
    """Batches of a rollout of every worker."""
    make = partial(_vector, task.env_id, shape.envs_per_worker)
    frames = shape.num_envs * shape.num_steps
    collector = MultiSyncCollector([make] * shape.workers, _policy(task), frames_per_batch=frames)
    batches = iter(collector)
    return Advancing(lambda: next(batches).numel(), collector.shutdown, ahead=1)


def _vector(env_id: str, num_envs: int) -> GymWrapper:
    envs = SyncVectorEnv([lambda: gym.make(env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymWrapper(envs, categorical_action_encoding=True)


def _policy(task: Task) -> TensorDictModule:
    torch.manual_seed(SEED)
    env = gym.make(task.env_id)
    agent = Agent(env.observation_space, env.action_space)
    return TensorDictModule(
        lambda obs: (*act(agent, obs), agent.value(obs)), ["observation"], ["action", "log_prob", "value"]
    )
