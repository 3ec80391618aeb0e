"""ClusterEnv's own ways, bare loops, and hand-written twins, as contenders of `bench throughput`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.benchmark.agents import Agent
from clusterenv.benchmark.contenders import SEED, Advance, Advancing, Contender, Shape, stepping
from clusterenv.benchmark.processes import Processes
from clusterenv.benchmark.tasks import Task
from clusterenv.benchmark.twins import bare_loop, hand_written


def bare(task: Task, shape: Shape) -> Contender:
    """One loop for each core that is granted: the ceiling of everything written in Python."""
    del shape
    cores = len(os.sched_getaffinity(0))
    return Processes(bare_loop, [(task.env_id, SEED + core) for core in range(cores)])


def twins(task: Task, shape: Shape) -> Contender:
    """A hand-written process for each worker."""
    each = shape.envs_per_worker
    arguments = [(task.env_id, each, shape.num_steps, SEED + rank * each) for rank in range(shape.workers)]
    return Processes(hand_written, arguments)


def step_actions(task: Task, shape: Shape) -> Contender:
    """Random actions from the head."""
    return _over(task, shape, lambda env: stepping(env.step, env.single_action_space, env.num_envs))


def step_agent(task: Task, shape: Shape) -> Contender:
    """The policy on the workers, one step for each call."""

    def advance_of(env: ClusterEnv) -> Advance:
        agent = _agent(env)

        def advance() -> int:
            env.step(agent)
            return env.num_envs

        return advance

    return _over(task, shape, advance_of)


def rollout(task: Task, shape: Shape) -> Contender:
    """Whole rollouts, one call for each."""

    def advance_of(env: ClusterEnv) -> Advance:
        agent = _agent(env)
        return lambda: int(env.rollout(agent, num_steps=shape.num_steps).valid.sum())

    return _over(task, shape, advance_of)


def stream(task: Task, shape: Shape) -> Contender:
    """Batches of a stream, each of as many fragments as workers make in the same time."""
    env = _env(task, shape)
    return Streaming(env, _agent(env), shape)


class Streaming:
    """A stream that is open while it is measured: its workers would use the cores in the turns of others."""

    def __init__(self, env: ClusterEnv, agent: Agent, shape: Shape) -> None:
        """`env` is closed with this."""
        self._env = env
        self._agent = agent
        self._shape = shape

    def measure(self, seconds: float) -> float:
        """Environment steps per second from the first batch on."""
        shape, steps = self._shape, 0
        with self._env.stream(self._agent, shape.num_steps, fragments=shape.workers) as batches:
            batches.take()
            start = now = time.monotonic()
            while now < start + seconds:
                steps += int(batches.take().valid.sum())
                now = time.monotonic()
        return steps / (now - start)

    def close(self) -> None:
        """End the workers."""
        self._env.close()


def _over(task: Task, shape: Shape, advance_of: Callable[[ClusterEnv], Advance]) -> Contender:
    """A contender over ClusterEnv; the weights stay as they are: no learner trains in any contender."""
    env = _env(task, shape)
    return Advancing(advance_of(env), env.close)


def _env(task: Task, shape: Shape) -> ClusterEnv:
    env = ClusterEnv(
        {"env_name": task.env_id, "envs_per_node": shape.envs_per_worker, "kl_threshold": 0.05},
        LocalConfig(nodes=shape.workers),
    )
    try:
        env.reset(seed=SEED)
    except BaseException:
        env.close()
        raise
    return env


def _agent(env: ClusterEnv) -> Agent:
    torch.manual_seed(SEED)
    return Agent(env.single_observation_space, env.single_action_space)
