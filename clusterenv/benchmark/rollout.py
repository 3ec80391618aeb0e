"""`rollout` of ClusterEnv against hand-written processes that do the same work, and against bare loops."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.benchmark.agents import AGENT_STYLES, AgentStyle, make_agent
from clusterenv.benchmark.processes import Processes
from clusterenv.benchmark.report import Report
from clusterenv.benchmark.twins import bare_loop, hand_written
from clusterenv.errors import ConfigError
from clusterenv.machine import machine_facts

SEED = 1
COMPARED = (("clusterenv", "hand_written"), ("clusterenv", "bare"), ("hand_written", "bare"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutBenchmark:
    """Environment steps per second of `rollout`, of hand-written processes and of bare loops, in turn."""

    env_id: str = "CartPole-v1"
    """Id of the environment."""
    workers: int = 2
    """Workers, hand-written processes, and bare loops."""
    envs_per_worker: int = 32
    """Environments of a worker and of a hand-written process."""
    num_steps: int = 128
    """Steps of one rollout."""
    seconds: float = 4.0
    """Length of a measurement; whole rollouts, so a little more."""
    repeats: int = 5
    """Measurements of each contender; in each repeat all of them run, one after the other."""
    agent_style: AgentStyle = "distribution"
    """Methods of the agent that ClusterEnv is given: `distribution` and `value`, or CleanRL's one; "residual"
    has other networks, and "torch" some that C++ does not repeat, as the hand-written processes have then."""
    json: Path | None = None
    """File to write the result to as well."""

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("workers", "envs_per_worker", "num_steps", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number from 1")
        if not self.seconds > 0:
            raise ConfigError("seconds", self.seconds, "a number of seconds above 0")
        if self.agent_style not in AGENT_STYLES:
            raise ConfigError("agent_style", self.agent_style, f"one of {', '.join(AGENT_STYLES)}")
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ConfigError("json", str(self.json), "a file in a folder that exists")

    def run(self) -> None:
        """Measure, print the report, and write it to `json` if given."""
        report = self.measure()
        sys.stdout.write(report.text())
        if self.json is not None:
            report.write(self.json)

    def measure(self) -> Report:
        """Run all contenders in turn, `repeats` times; who begins moves on with every repeat."""
        machine = machine_facts()
        with ExitStack() as stack:
            contenders = self._contenders(stack)
            names = list(contenders)
            rates: dict[str, list[float]] = {name: [] for name in names}
            for repeat in range(self.repeats):
                first = repeat % len(names)
                for name in names[first:] + names[:first]:
                    rates[name].append(contenders[name](self.seconds))
        settings = dataclasses.asdict(self)
        settings.pop("json")
        return Report(self._title(), settings, machine, rates, COMPARED)

    def _contenders(self, stack: ExitStack) -> dict[str, Callable[[float], float]]:
        """By name, what measures it; the others wait meanwhile."""
        cluster = stack.enter_context(closing(_ClusterRollouts(self)))
        twins = [
            (
                self.env_id,
                self.envs_per_worker,
                self.num_steps,
                SEED + worker * self.envs_per_worker,
                self.agent_style,
            )
            for worker in range(self.workers)
        ]
        loops = [(self.env_id, SEED + worker) for worker in range(self.workers)]
        return {
            "bare": stack.enter_context(closing(Processes(bare_loop, loops))).measure,
            "hand_written": stack.enter_context(closing(Processes(hand_written, twins))).measure,
            "clusterenv": cluster.measure,
        }

    def _title(self) -> str:
        return (
            f"{self.env_id}: {self.workers} x {self.envs_per_worker} environments, "
            f"rollouts of {self.num_steps} steps, MLP 2x64 ({self.agent_style}), "
            f"{self.repeats} x {self.seconds:g} s"
        )


class _ClusterRollouts:
    """ClusterEnv with an agent whose weights stay as they are: no learner trains in any contender."""

    def __init__(self, options: RolloutBenchmark) -> None:
        self._num_steps = options.num_steps
        self._env = ClusterEnv(
            {
                "type": "gymnasium",
                "env_name": options.env_id,
                "envs_per_node": options.envs_per_worker,
                "kl_threshold": 0.05,
            },
            LocalConfig(nodes=options.workers),
        )
        try:
            observation_space, action_space = self._env.launch()
            torch.manual_seed(SEED)
            self._agent = make_agent(options.agent_style, observation_space, action_space)
            self._env.reset(seed=SEED)
            self.measure(0.2)  # sends the agent and warms everything up
        except BaseException:
            self._env.close()
            raise

    def measure(self, seconds: float) -> float:
        """Environment steps per second of whole rollouts, the head's part included."""
        steps = 0
        start = now = time.monotonic()
        while now < start + seconds:
            batch = self._env.rollout(self._agent, num_steps=self._num_steps)
            steps += int(batch.valid.sum())
            now = time.monotonic()
        return steps / (now - start)

    def close(self) -> None:
        """End the workers."""
        self._env.close()
