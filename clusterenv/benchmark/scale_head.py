"""One head with so many simulated workers: what it takes in time, processor, memory and network."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import torch

from clusterenv import ClusterEnv, ManualConfig
from clusterenv.batches import Fragment, ResetBatch, StepBatch
from clusterenv.benchmark.agents import Agent
from clusterenv.benchmark.descriptors import allow_descriptors
from clusterenv.benchmark.scale_workers import Answer, Simulation, simulate
from clusterenv.layout import SpaceLayout
from clusterenv.transport import messages as m

EPISODE_STEPS = 22
"""Length of an episode of CartPole with a policy that has not learned yet."""
REPEATS = 5
READY_S = 120.0
"""How long the simulating processes may take to import what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSetting:
    """What is simulated."""

    workers: int
    envs_per_worker: int
    num_steps: int
    fragment_s: float
    lease_s: float
    seconds: float
    processes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the head was over a time, in shares of one core."""

    python: float
    """All threads that run Python, which take turns."""
    network: float
    """Threads of ZeroMQ, which encrypt and decrypt."""
    receiving: float
    """The part of `python` in the thread that takes messages in."""

    @property
    def total(self) -> float:
        """All threads."""
        return self.python + self.network


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """What was measured with one number of workers."""

    workers: int
    register_s: float
    """From the launch until all are ready."""
    head_bytes_per_worker: float
    """Resident memory of the head, once all are ready."""
    idle: Load
    """Workers send heartbeats only."""
    step_ms: float
    """Median of `step(actions)`, whose environments take no time."""
    slowest_step_ms: float
    pull_s: float
    """A rollout of one step after which all have new weights, less one for which nobody pulls."""
    weight_bytes: int
    """What all of them pull."""
    fragment_bytes: float
    fragments_per_s: float
    offered_per_s: float
    """Workers by the time of a fragment."""
    stream: Load
    stream_bytes_per_worker: float
    """Resident memory of the head at the end of the stream."""


def measure_head(setting: ScaleSetting) -> ScalePoint:
    """Measure in this process, which should be a fresh one.

    Raises:
        LaunchError: if the system does not allow so many connections.
        ClusterEnvError: as launch, step, rollout and stream do.
    """
    allow_descriptors(4 * setting.workers + 256, f"a head with {setting.workers} workers")
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        config = {
            "env_name": "CartPole-v1",
            "envs_per_node": setting.envs_per_worker,
            "sync": "every",
            "lease_s": setting.lease_s,
        }
        launcher = ManualConfig(
            nodes=setting.workers,
            cpus_per_node=1,
            shared_folder=folder,
            queue_timeout_s=setting.timeout_s,
        )
        env = stack.enter_context(ClusterEnv(config, launcher))
        stack.enter_context(_simulated(env, setting, folder))
        return _measure(env, setting)


def _measure(env: ClusterEnv, setting: ScaleSetting) -> ScalePoint:
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    began = time.monotonic()
    with contextlib.redirect_stderr(io.StringIO()):  # the lines that would start the workers
        env.launch()
    register_s = time.monotonic() - began
    head_bytes = process.memory_info().rss - before_bytes
    with _loads() as idle:
        time.sleep(setting.seconds)
    env.reset(seed=1)
    actions = np.zeros(env.num_envs, np.int64)
    steps = _timed(lambda: env.step(actions), setting.seconds)
    pull_s, weight_bytes, agent = _pull(env)
    batches = iter(env.stream(agent, num_steps=setting.num_steps, fragments=max(1, setting.workers // 8)))
    _take(batches, 2 * setting.fragment_s)
    bytes_before = env.stats()["bytes_received"]
    with _loads() as stream:
        began = time.monotonic()
        rows = _take(batches, setting.seconds)
        took_s = time.monotonic() - began
    received = env.stats()["bytes_received"] - bytes_before
    fragments = rows / (setting.num_steps * setting.envs_per_worker)
    return ScalePoint(
        workers=setting.workers,
        register_s=register_s,
        head_bytes_per_worker=head_bytes / setting.workers,
        idle=idle[0],
        step_ms=1e3 * median(steps),
        slowest_step_ms=1e3 * max(steps),
        pull_s=pull_s,
        weight_bytes=weight_bytes,
        fragment_bytes=received / fragments,
        fragments_per_s=fragments / took_s,
        offered_per_s=setting.workers / setting.fragment_s,
        stream=stream[0],
        stream_bytes_per_worker=(process.memory_info().rss - before_bytes) / setting.workers,
    )


def _timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call, for about so long, and at least REPEATS of them."""
    call()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < REPEATS or time.monotonic() < end:
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
    return times


def _pull(env: ClusterEnv) -> tuple[float, int, Agent]:
    """Seconds that a pull by all workers adds to a rollout of one step, its bytes, and the agent."""
    torch.manual_seed(1)
    agent = Agent(env.single_observation_space, env.single_action_space)
    env.rollout(agent, num_steps=1)
    times: dict[bool, list[float]] = {False: [], True: []}
    before = env.stats()["weight_bytes_sent"]
    for _ in range(REPEATS):
        for changes in (False, True):
            if changes:
                with torch.no_grad():
                    next(agent.parameters()).add_(1e-3)
            began = time.monotonic()
            env.rollout(agent, num_steps=1)
            times[changes].append(time.monotonic() - began)
    nbytes = (env.stats()["weight_bytes_sent"] - before) // REPEATS
    return max(0.0, median(times[True]) - median(times[False])), nbytes, agent


def _take(batches: Iterator[Any], seconds: float) -> int:
    """Environment steps of the batches of about so long."""
    rows, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        rows += int(next(batches).valid.sum())
    return rows


@contextmanager
def _loads() -> Iterator[list[Load]]:
    """The load of what happens inside, as the only element of a list that is filled at the end."""
    found: list[Load] = []
    before, began = _cpu_s(), time.monotonic()
    yield found
    took_s = time.monotonic() - began
    python, network, receiving = ((now - then) / took_s for now, then in zip(_cpu_s(), before, strict=True))
    found.append(Load(python, network, receiving))


def _cpu_s() -> tuple[float, float, float]:
    """Processor time of all threads that run Python, of ZeroMQ's, and of the one that takes messages in."""
    io_thread = {thread.native_id for thread in threading.enumerate() if thread.name == "clusterenv-head-io"}
    network = receiving = total = 0.0
    for thread in psutil.Process().threads():
        used = thread.user_time + thread.system_time
        total += used
        receiving += used if thread.id in io_thread else 0.0
        name = Path(f"/proc/self/task/{thread.id}/comm")
        with contextlib.suppress(OSError):
            network += used if name.read_text().startswith("ZMQ") else 0.0
    return total - network, network, receiving


@contextmanager
def _simulated(env: ClusterEnv, setting: ScaleSetting, folder: Path) -> Iterator[None]:
    """Processes that simulate the workers; they wait for the connection file, and are gone at the end."""
    context = get_context("spawn")
    answers = _answers(env, setting)
    processes: list[SpawnProcess] = []
    ready = context.Semaphore(0)
    try:
        for number in range(setting.processes):
            first, last = (setting.workers * part // setting.processes for part in (number, number + 1))
            simulation = Simulation(
                ranks=range(first, last),
                folder=folder,
                fragment_s=setting.fragment_s,
                timeout_s=setting.timeout_s,
                **answers,
            )
            processes.append(context.Process(target=simulate, args=(simulation, ready), daemon=True))
            processes[-1].start()
        for _ in processes:
            ready.acquire(timeout=READY_S)
        yield
    finally:
        env.close()  # they leave when they are told to
        for process in processes:
            process.join(timeout=5.0)
            process.kill()
            process.join()


def _answers(env: ClusterEnv, setting: ScaleSetting) -> dict[str, Any]:
    """What workers answer: zeros in the shapes of the real thing."""
    n = setting.envs_per_worker
    obs, actions = (
        SpaceLayout.of(space) for space in (env.single_observation_space, env.single_action_space)
    )
    step = StepBatch(
        obs=obs.zeros(n),
        rewards=np.zeros(n),
        terminations=np.zeros(n, np.bool_),
        truncations=np.zeros(n, np.bool_),
        final_index=np.zeros(0, np.int64),
        final_obs=obs.zeros(0),
    )
    return {
        "digests": (obs.digest, actions.digest),
        "fragments": {steps: _fragment(obs, actions, steps, n) for steps in (1, setting.num_steps)},
        "step_frames": [bytes(frame) for frame in step.frames()],
        "obs_frames": [bytes(frame) for frame in ResetBatch(obs=obs.zeros(n)).frames()],
    }


def _fragment(obs: SpaceLayout, actions: SpaceLayout, num_steps: int, num_envs: int) -> Answer:
    lead = (num_steps, num_envs)
    ends = np.arange(EPISODE_STEPS, num_steps * num_envs, EPISODE_STEPS)
    final_index = np.stack([ends // num_envs, ends % num_envs], axis=1).astype(np.int64)
    terminations = np.zeros(lead, np.bool_)
    terminations[final_index[:, 0], final_index[:, 1]] = True
    rng = np.random.default_rng(0)
    seen = [rng.uniform(size=leaf.shape).astype(leaf.dtype) for leaf in obs.zeros(*lead)]
    fragment = Fragment(
        obs=seen,
        actions=actions.zeros(*lead),
        rewards=np.ones(lead, np.float32),
        terminations=terminations,
        truncations=np.zeros(lead, np.bool_),
        log_probs=np.full(lead, -0.7, np.float32),
        values=rng.uniform(size=lead).astype(np.float32),
        valid=np.ones(lead, np.bool_),
        last_obs=obs.zeros(num_envs),
        last_values=np.zeros(num_envs, np.float32),
        final_index=final_index,
        final_obs=obs.zeros(len(ends)),
        final_values=np.zeros(len(ends), np.float32),
        policy_version=0,
    )
    policy = m.PolicyInfo(
        policy_version=0, kl=0.0, sync_count=0, syncs_by_reason={}, checks=0, check_s=0.0, kl_threshold=0.05
    )
    episodes = [
        m.Episode(env_id=int(row), episode_return=float(EPISODE_STEPS), length=EPISODE_STEPS)
        for row in final_index[:, 1]
    ]
    reply = m.FragmentReply(
        policy=policy,
        num_sampled=0,
        fragment=0,
        num_steps=num_steps,
        num_final=len(ends),
        episodes=episodes,
        family="categorical",
        family_sizes=[2],
    )
    return Answer(reply, [bytes(frame) for frame in fragment.frames()])
