"""Pools and runners for the tests, and the agents that act in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from clusterenv import policy
from clusterenv.adapters import adapt
from clusterenv.commands import Command, Failed, LoadState, Reply, Reset, RunnerSetup, SetAgent
from clusterenv.pool import InlinePool, Pool, ProcessPool
from clusterenv.runner import Runner

ROOT = str(Path(__file__).parent.parent)
EnvFn = Callable[[], gym.Env]
Carry = Callable[[Command], Reply]


def setup_for(env_fns: Sequence[EnvFn], **changes: Any) -> RunnerSetup:
    """One environment for each callable, each with a blob of its own."""
    facts: dict[str, Any] = {
        "first_env": 0,
        "num_envs": len(env_fns),
        "env_blobs": [cloudpickle.dumps(env_fn) for env_fn in env_fns],
        "env_blob_of": list(range(len(env_fns))),
        "noise_seed": 7,
        "autoreset_mode": "NextStep",
        "sys_path": [ROOT],
        "step_timeout_s": 60.0,
        "cpus": None,
    }
    return RunnerSetup(**(facts | changes))


def runner_of(env_fns: Sequence[EnvFn], **changes: Any) -> Runner:
    """A runner in this process, with its environments built."""
    runner = Runner(setup_for(env_fns, **changes))
    runner.build()
    return runner


def started(env_fns: Sequence[EnvFn], runners: int, **changes: Any) -> Pool:
    """A pool with its environments built: of `runners` processes, or in this process for 0."""
    setup = setup_for(env_fns, **changes)
    pool: Pool = ProcessPool(setup, runners) if runners else InlinePool(setup)
    pool.start(60.0)
    return pool


def carry_out(pool: Pool, command: Command, within_s: float = 30.0) -> Reply:
    """The pool's answer, with the checks that a worker makes while it waits."""
    pool.submit(command)
    end = time.monotonic() + within_s
    while (reply := pool.poll()) is None:
        assert time.monotonic() < end, f"no answer within {within_s} s"
        pool.check(time.monotonic())
        time.sleep(0.002)
    return reply


def carrier(target: Pool | Runner) -> Carry:
    """What carries out a command on a pool or a runner and fails the test if that fails."""

    def carry(command: Command) -> Reply:
        reply = target.handle(command) if isinstance(target, Runner) else carry_out(target, command)
        assert not isinstance(reply, Failed), reply
        return reply

    return carry


def give_agent(carry: Carry, agent: object, env: gym.Env, version: int = 1) -> None:
    """The agent acts from now on."""
    adapter = adapt(agent, env.observation_space, env.action_space)
    carry(SetAgent(blob=adapter.dumps()))
    carry(LoadState(version=version, state=policy.encode_state(adapter.transfer_state())))


def reset(carry: Carry, num_envs: int, seed: int | None = None, **changes: Any) -> Reply:
    """The answer to a reset of all, with seeds s, s + 1, ..."""
    seeds = [None if seed is None else seed + i for i in range(num_envs)]
    return carry(Reset(seeds=seeds, **changes))


def arrays_of(reply: Any) -> Iterable[np.ndarray]:
    """All numbers of a reply."""
    yield from reply.frames()
    if getattr(reply, "params", None) is not None:
        yield reply.params


class Forced(nn.Module):
    """Logits from a table by the first number of the observation: the same to the last bit in any batch."""

    def __init__(self, actions: int = 2, rows: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = nn.Parameter(torch.randn(rows, actions, generator=generator))

    def distribution(self, obs: torch.Tensor) -> Distribution:
        return Categorical(logits=self.table[obs[:, 0].long() % len(self.table)])

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return 10 * obs[:, 0] + 1


class Far(nn.Module):
    """A Gaussian around `mean`, outside of most bounds."""

    def __init__(self, mean: float = 3.0, size: int = 2) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((size,), mean))

    def distribution(self, obs: torch.Tensor) -> Distribution:
        return Independent(Normal(self.mean.expand(len(obs), -1), 1.0), 1)


class Raises(Forced):
    """Fails from the observation `at` on."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def distribution(self, obs: torch.Tensor) -> Distribution:
        if obs.max() >= self.at:
            raise RuntimeError("no idea")
        return super().distribution(obs)
