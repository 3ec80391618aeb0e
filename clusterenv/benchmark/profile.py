"""Where the processor's time of a rollout goes, beside a hand-written loop and the bare environments.

Everything runs in one process, with OMP_NUM_THREADS=1 in one thread, and is measured in processor time. That
is the same on a machine that does other things too, but for what these do to its caches.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import cloudpickle
import gymnasium as gym
import torch

from clusterenv import policy
from clusterenv.adapters import adapt
from clusterenv.benchmark.agents import AgentStyle, make_agent
from clusterenv.benchmark.twins import bare_loop, hand_written
from clusterenv.collector import Collector
from clusterenv.commands import Collect, Command, Failed, LoadState, Reset, RunnerSetup, SetAgent
from clusterenv.recording import Recording
from clusterenv.runner import Runner
from clusterenv.shard import Shard

SEED = 1
PARTS: tuple[tuple[str, type, str], ...] = (
    ("policy and steps in C++", Collector, "advance"),
    ("policy: forward, sample", Runner, "_decide"),
    ("environments", Shard, "step_into"),
    ("resets (within steps)", Shard, "_reset_row"),
    ("recording", Recording, "keep"),
    ("episodes", Recording, "count_episodes"),
    ("values of all steps", Recording, "fragment"),
)
"""What is timed, and under which name it is shown; shown is what ran.

The second, third and fifth do the work of the first for agents and environments that it does not take.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileBenchmark:
    """Microseconds of processor time for one step of one runner's environments, part by part."""

    env_id: str = "CartPole-v1"
    """Id of the environment."""
    num_envs: int = 32
    """Environments of the runner."""
    num_steps: int = 128
    """Steps of a rollout."""
    repeats: int = 21
    """Rollouts; medians are shown, and the least."""
    agent_style: AgentStyle = "distribution"
    """Methods of the agent: `distribution` and `value`, or CleanRL's one; "residual" has other networks, and
    "torch" some that C++ does not repeat."""

    def run(self) -> None:
        """Measure and print."""
        torch.set_num_threads(1)
        runner = self._runner()
        lines = [f"{self.env_id}, {self.num_envs} environments ({self.agent_style}): us of CPU per step", ""]
        collect = Collect(num_steps=self.num_steps)
        with _timed() as spent:
            rows = [_spent_in(runner, collect, spent, self.num_steps) for _ in range(self.repeats)]
        seen = [name for name in rows[0] if any(row[name] for row in rows)]
        lines += [_line(name, [row[name] for row in rows]) for name in seen]
        whole = self._measure(lambda: _do(runner, collect))
        loop = hand_written(self.env_id, self.num_envs, self.num_steps, SEED, self.agent_style)
        twin = self._measure(lambda: [loop() for _ in range(self.num_steps)])
        bare = bare_loop(self.env_id, SEED)
        looks = -(-self.num_envs * self.num_steps // bare())
        floor = self._measure(lambda: [bare() for _ in range(looks)])
        lines += ["", _line("rollout, not timed inside", whole), _line("hand-written", twin)]
        lines += [_line("bare environments", floor), ""]
        lines += [f"hand-written / rollout {median(twin) / median(whole):.2f}"]
        lines += [f"bare / rollout {median(floor) / median(whole):.2f}"]
        sys.stdout.write("\n".join(lines) + "\n")

    def _measure(self, work: Callable[[], object]) -> list[float]:
        """Microseconds of each repeat, by step of all environments."""
        work()
        times = []
        for _ in range(self.repeats):
            start = time.thread_time_ns()
            work()
            times.append((time.thread_time_ns() - start) / 1e3 / self.num_steps)
        return times

    def _runner(self) -> Runner:
        """A runner in this process, ready to collect, and past the first rollout."""
        make = functools.partial(gym.make, self.env_id)
        setup = RunnerSetup(
            first_env=0,
            num_envs=self.num_envs,
            env_blobs=[cloudpickle.dumps(make)],
            env_blob_of=[0] * self.num_envs,
            noise_seed=SEED,
            autoreset_mode="NextStep",
            sys_path=[],
            step_timeout_s=60.0,
            cpus=None,
        )
        runner = Runner(setup, own_process=True)
        runner.build()
        env = make()
        torch.manual_seed(SEED)
        agent = make_agent(self.agent_style, env.observation_space, env.action_space)
        adapter = adapt(agent, env.observation_space, env.action_space)
        _do(runner, SetAgent(blob=adapter.dumps()))
        _do(runner, LoadState(version=1, state=policy.encode_state(adapter.transfer_state())))
        _do(runner, Reset(seeds=list(range(self.num_envs))))
        _do(runner, Collect(num_steps=self.num_steps))
        return runner


def _do(runner: Runner, command: Command) -> None:
    reply = runner.handle(command)
    if isinstance(reply, Failed):
        raise reply.error()


def _spent_in(runner: Runner, collect: Collect, spent: dict[str, int], num_steps: int) -> dict[str, float]:
    """Microseconds of each part in one rollout, by step."""
    spent.clear()
    start = time.thread_time_ns()
    _do(runner, collect)
    spent["all"] = time.thread_time_ns() - start
    return {name: spent[name] / 1e3 / num_steps for name in ("all", *(name for name, _, _ in PARTS))}


@contextmanager
def _timed() -> Iterator[dict[str, int]]:
    """Nanoseconds spent in each of PARTS inside."""
    spent: dict[str, int] = defaultdict(int)
    before = [(owner, name, vars(owner)[name]) for _, owner, name in PARTS]
    for (label, owner, name), (_, _, method) in zip(PARTS, before, strict=True):
        setattr(owner, name, _clocked(method, label, spent))
    try:
        yield spent
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _clocked(method: Callable[..., Any], label: str, spent: dict[str, int]) -> Callable[..., Any]:
    @functools.wraps(method)
    def clocked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the method gives
        start = time.thread_time_ns()
        try:
            return method(*args, **kwargs)
        finally:
            spent[label] += time.thread_time_ns() - start

    return clocked


def _line(name: str, times: list[float]) -> str:
    return f"{name:28} {median(times):8.1f}   least {min(times):8.1f}"
