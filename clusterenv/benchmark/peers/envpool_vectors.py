"""EnvPool: its own environments, written in C++, on a thread for each worker."""

from __future__ import annotations

import envpool
import numpy as np

from clusterenv.benchmark.contenders import SEED, Advancing, Contender, Shape, random_actions, stepping
from clusterenv.benchmark.tasks import Task


def sync(task: Task, shape: Shape) -> Contender:
    """All environments in each step."""
    envs = _make(task, shape, shape.num_envs)
    envs.reset()
    return Advancing(stepping(envs.step, envs.action_space, shape.num_envs), envs.close)


def asynchronous(task: Task, shape: Shape) -> Contender:
    """Half of the environments, whichever are done first."""
    half = shape.num_envs // 2
    envs = _make(task, shape, half)
    envs.async_reset()
    actions = random_actions(envs.action_space, half)

    def advance() -> int:
        for batch in actions:
            ids = np.asarray(envs.recv()[-1]["env_id"])
            envs.send(batch, ids)
        return half * len(actions)

    return Advancing(advance, envs.close)


def _make(task: Task, shape: Shape, batch_size: int) -> envpool.python.protocol.EnvPool:
    if not task.envpool_id:
        raise LookupError(f"EnvPool has nothing like {task.env_id}")
    sizes = {"num_envs": shape.num_envs, "batch_size": batch_size, "num_threads": shape.workers}
    return envpool.make(task.envpool_id, env_type="gymnasium", seed=SEED, **sizes)
