"""Vectors of Stable-Baselines3, stepped with random actions."""

from __future__ import annotations

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from clusterenv.benchmark.contenders import Advancing, Contender, Shape, stepping
from clusterenv.benchmark.tasks import Task


def dummy(task: Task, shape: Shape) -> Contender:
    """All environments in one process."""
    return _stepped(DummyVecEnv([lambda: gym.make(task.env_id)] * shape.num_envs), shape)


def subproc(task: Task, shape: Shape) -> Contender:
    """A process for each environment, forked: a fresh one of each would need its own copy of torch."""
    makers = [lambda: gym.make(task.env_id)] * shape.num_envs
    return _stepped(SubprocVecEnv(makers, start_method="fork"), shape)


def _stepped(envs: VecEnv, shape: Shape) -> Contender:
    envs.reset()
    return Advancing(stepping(envs.step, envs.action_space, shape.num_envs), envs.close)
