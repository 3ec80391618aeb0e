"""The subjects of `bench throughput` by name: where each is made, and what has to be installed for it.

A peer is added by a function `(task, shape) -> Contender` in a module of `peers` and a line here.
"""

from __future__ import annotations

from dataclasses import dataclass

_OURS = "clusterenv.benchmark.throughput_contenders"
_PEERS = "clusterenv.benchmark.peers"


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject."""

    make: str
    """Module and function, with a colon between."""
    does: str
    """What it does, for people."""
    package: str = ""
    """The module that has to be there; empty: it comes with ClusterEnv."""
    install: str = ""
    """The command that installs it."""
    spins: bool = False
    """Whether its processes use cores while nobody asks for anything: they are stopped meanwhile."""


SUBJECTS: dict[str, Subject] = {
    "bare": Subject(f"{_OURS}:bare", "env.step in a loop on every core"),
    "hand-written": Subject(f"{_OURS}:twins", "SyncVectorEnv and a torch policy in every worker"),
    "step-actions": Subject(f"{_OURS}:step_actions", "ClusterEnv.step(actions)"),
    "step-agent": Subject(f"{_OURS}:step_agent", "ClusterEnv.step(agent)"),
    "rollout": Subject(f"{_OURS}:rollout", "ClusterEnv.rollout(agent)"),
    "stream": Subject(f"{_OURS}:stream", "ClusterEnv.stream(agent)"),
    "gymnasium-sync": Subject(f"{_PEERS}.gymnasium_vectors:sync", "SyncVectorEnv, random actions"),
    "gymnasium-async": Subject(f"{_PEERS}.gymnasium_vectors:asynchronous", "AsyncVectorEnv, random actions"),
    "sb3-dummy": Subject(
        f"{_PEERS}.sb3:dummy",
        "DummyVecEnv, random actions",
        "stable_baselines3",
        "pip install stable-baselines3",
    ),
    "sb3-subproc": Subject(
        f"{_PEERS}.sb3:subproc",
        "SubprocVecEnv, random actions",
        "stable_baselines3",
        "pip install stable-baselines3",
    ),
    "pufferlib": Subject(
        f"{_PEERS}.puffer:multiprocessing",
        "Multiprocessing vector, random actions",
        "pufferlib",
        "pip install pufferlib-core",
        spins=True,
    ),
    "envpool-sync": Subject(
        f"{_PEERS}.envpool_vectors:sync",
        "its own environments in C++, random actions",
        "envpool",
        "pip install envpool",
    ),
    "envpool-async": Subject(
        f"{_PEERS}.envpool_vectors:asynchronous",
        "the same with send and recv of half of them",
        "envpool",
        "pip install envpool",
    ),
    "torchrl": Subject(
        f"{_PEERS}.torchrl_collectors:multi_sync", "MultiSyncCollector", "torchrl", "pip install torchrl"
    ),
    "rllib": Subject(f"{_PEERS}.rllib:env_runners", "env runners of PPO", "ray", "pip install 'ray[rllib]'"),
    "sample-factory": Subject(
        f"{_PEERS}.sample_factory_sampler:sampler",
        "its sampler, synchronous",
        "sample_factory",
        "pip install sample-factory",
        spins=True,
    ),
}
