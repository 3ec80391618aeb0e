"""Rollouts of ClusterEnv over EnvPool against loops over bare pools with the same policy, in turns."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing

import envpool
import torch
import tyro

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.benchmark.agents import Agent
from clusterenv.benchmark.processes import Processes
from clusterenv.benchmark.report import Report
from clusterenv.benchmark.twins import Advance, acting_in
from clusterenv.machine import machine_facts

SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Environment steps per second, rows that are only reset included on both sides."""

    env_id: str = "CartPole-v1"
    """Id of EnvPool's."""
    processes: int = 1
    """Workers, and bare pools in processes of their own."""
    num_envs: int = 64
    """Environments of each."""
    threads: int = 2
    """Threads of each pool."""
    num_steps: int = 128
    """Steps of one rollout."""
    seconds: float = 2.0
    """Length of a measurement."""
    pairs: int = 5
    """Measurements of each; who begins changes with every pair."""


def bare(env_id: str, num_envs: int, threads: int, num_steps: int, seed: int) -> Advance:
    """A pool and a torch agent, written as a user without a library would."""
    pool = envpool.make_gymnasium(env_id, num_envs=num_envs, num_threads=threads, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EnvPool takes no seed at reset, and rounds bounds
        return acting_in(pool, num_steps, seed)


def rollouts(options: Options, stack: ExitStack) -> Callable[[float], float]:
    """What measures ClusterEnv for some seconds."""
    launcher = LocalConfig(nodes=options.processes, cpus_per_node=options.threads)
    config = {"type": "envpool", "env_name": options.env_id, "envs_per_node": options.num_envs}
    env = stack.enter_context(ClusterEnv(config, launcher))
    spaces = env.launch()
    torch.manual_seed(SEED)
    agent = Agent(*spaces)
    env.reset(seed=SEED)

    def measure(seconds: float) -> float:
        steps = 0
        start = now = time.monotonic()
        while now < start + seconds:
            steps += len(env.rollout(agent, num_steps=options.num_steps))
            now = time.monotonic()
        return steps / (now - start)

    measure(0.2)  # sends the agent and warms everything up
    return measure


def measure(options: Options) -> Report:
    """Both in turns, `pairs` times."""
    arguments = [
        (options.env_id, options.num_envs, options.threads, options.num_steps, SEED + number)
        for number in range(options.processes)
    ]
    with ExitStack() as stack:
        contenders = {
            "bare_envpool": stack.enter_context(closing(Processes(bare, arguments))).measure,
            "clusterenv": rollouts(options, stack),
        }
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for pair in range(options.pairs):
            for name in sorted(contenders, reverse=bool(pair % 2)):
                rates[name].append(contenders[name](options.seconds))
    title = f"{options.env_id}: {options.processes} x {options.num_envs} environments, tanh MLP 2x64"
    settings = dataclasses.asdict(options)
    return Report(title, settings, machine_facts(), rates, [("clusterenv", "bare_envpool")])


if __name__ == "__main__":
    sys.stdout.write(measure(tyro.cli(Options, prog="python -m clusterenv_envpool.bench")).text())
