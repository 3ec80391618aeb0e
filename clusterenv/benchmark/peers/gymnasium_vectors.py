"""Gymnasium's own vectors, stepped with random actions."""

from __future__ import annotations

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from clusterenv.benchmark.contenders import SEED, Advancing, Contender, Shape, stepping
from clusterenv.benchmark.tasks import Task


def sync(task: Task, shape: Shape) -> Contender:
    """All environments in one process."""
    return _stepped(SyncVectorEnv, task, shape)


def asynchronous(task: Task, shape: Shape) -> Contender:
    """A process for each environment."""
    return _stepped(AsyncVectorEnv, task, shape)


def _stepped(kind: type[SyncVectorEnv | AsyncVectorEnv], task: Task, shape: Shape) -> Contender:
    envs = kind([lambda: gym.make(task.env_id)] * shape.num_envs)
    envs.reset(seed=SEED)
    return Advancing(stepping(envs.step, envs.single_action_space, shape.num_envs), envs.close)
