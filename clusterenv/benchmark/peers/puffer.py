"""PufferLib's vector over processes, stepped with random actions."""

from __future__ import annotations

import gymnasium as gym
from pufferlib import emulation, vector

from clusterenv.benchmark.contenders import SEED, Advancing, Contender, Shape, stepping
from clusterenv.benchmark.tasks import Task


def multiprocessing(task: Task, shape: Shape) -> Contender:
    """A process for each worker."""

    def make(buf: object = None, seed: int = 0) -> emulation.GymnasiumPufferEnv:
        return emulation.GymnasiumPufferEnv(env_creator=lambda: gym.make(task.env_id), buf=buf, seed=seed)

    envs = vector.make(
        make, backend=vector.Multiprocessing, num_envs=shape.num_envs, num_workers=shape.workers, seed=SEED
    )
    envs.reset(seed=SEED)
    return Advancing(stepping(envs.step, envs.single_action_space, shape.num_envs), envs.close)
