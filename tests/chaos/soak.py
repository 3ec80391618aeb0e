"""Streaming with restarts for long: `python -m tests.chaos.soak --minutes 30 --out docs/images/soak.png`.

Memory, descriptors, threads and shared memory of the head and of its workers are sampled and drawn; the exit
status is 1 if one of them grows. Steps of the environments sleep, so that little of a core is used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from matplotlib.figure import Figure

from clusterenv import ClusterEnv, LocalConfig
from tests.agents import MLPAgent
from tests.envs import Count

NODES, ENVS, FRAGMENT_STEPS = 2, 4, 16
SAMPLE_S, KILL_S = 5.0, 90.0
LEASE_S = 10.0
SHM_PREFIX = "/dev/shm/"


class Sleepy(Count):
    """Most of a step is sleep."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__(20)
        self._sleep_s = sleep_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._sleep_s)
        return super().step(action)


@dataclass(frozen=True)
class Quantity:
    """Something that must not grow: by more than a share of what it is, and so much besides."""

    name: str
    share: float
    besides: float


QUANTITIES = (
    Quantity("head: RSS, MB", 0.02, 2.0),
    Quantity("head: descriptors", 0.0, 1.0),
    Quantity("head: threads", 0.0, 0.5),
    Quantity("workers: RSS, MB", 0.02, 8.0),
    Quantity("workers: descriptors", 0.0, 2.0),
    Quantity("workers: threads", 0.0, 1.0),
    Quantity("shared memory, MB", 0.0, 0.1),
)


def sample() -> list[float]:
    """One number for each of `QUANTITIES`."""
    head = psutil.Process()
    rest = head.children(recursive=True)
    numbers = []
    for group in ([head], rest):
        numbers += [
            sum(each.memory_info().rss for each in group) / 1e6,
            sum(each.num_fds() for each in group),
            sum(each.num_threads() for each in group),
        ]
    segments = dict(segment for each in [head, *rest] for segment in _shared_memory(each.pid))
    return [*numbers, sum(segments.values()) / 1e6]


def _shared_memory(pid: int) -> list[tuple[str, int]]:
    """Inode and bytes of the parts of /dev/shm that a process maps."""
    rows = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [
        (f"{row[4]}-{row[2]}", int(row[0].split("-")[1], 16) - int(row[0].split("-")[0], 16))
        for row in rows
        if len(row) == 6 and row[5].startswith(SHM_PREFIX)
    ]


def grown(quantity: Quantity, values: Sequence[float]) -> str | None:
    """What to say of a quantity that was more in the last fifth of the time than in the second."""
    fifth = max(1, len(values) // 5)
    early, late = float(np.median(values[fifth : 2 * fifth])), float(np.median(values[-fifth:]))
    if late <= early * (1 + quantity.share) + quantity.besides:
        return None
    return f"{quantity.name} has grown from {early:g} to {late:g}"


@dataclass
class Soak:
    """What a run has shown."""

    times: list[float] = field(default_factory=list)
    """In minutes."""
    samples: list[list[float]] = field(default_factory=list)
    fragments: int = 0
    restarts: int = 0


def soak(minutes: float, sleep_s: float) -> Soak:
    """Stream so long; every `KILL_S` a worker is killed, and another stream begun."""
    seen = Soak()
    env_fns = [partial(Sleepy, sleep_s)] * ENVS
    options: dict[str, Any] = {"lease_s": LEASE_S, "seed": 0, "max_restarts": 10_000}
    with ClusterEnv(env_fns, LocalConfig(nodes=NODES, cpus_per_node=1), **options) as env:
        agent = MLPAgent(env)
        end = (began := time.monotonic()) + 60 * minutes
        while time.monotonic() < end:
            kill_at = time.monotonic() + KILL_S
            with env.stream(agent, FRAGMENT_STEPS) as stream:
                while time.monotonic() < min(kill_at, end):
                    stream.take()
                    seen.fragments += 1
                    _change(agent)
                    _look(env, seen, began)
                if time.monotonic() < end:
                    _kill(env, seen.restarts % NODES)
                    seen.restarts += 1
                    stream.take()
    return seen


def _look(env: ClusterEnv, seen: Soak, began: float) -> None:
    """Sample if it is time for that, and all workers are there."""
    minutes = (time.monotonic() - began) / 60
    due = not seen.times or minutes - seen.times[-1] > SAMPLE_S / 60
    if due and all(worker["state"] == "ready" for worker in env.stats()["workers"]):
        seen.samples.append(sample())
        seen.times.append(minutes)


def _kill(env: ClusterEnv, rank: int) -> None:
    worker = env.stats()["workers"][rank]
    if worker["state"] == "ready":
        os.kill(worker["pid"], signal.SIGKILL)


def _change(agent: MLPAgent) -> None:
    """A new version, now and then far enough from the last to be pulled."""
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


def draw(seen: Soak, title: str) -> Figure:
    """Each quantity over time, from 0."""
    figure = Figure(figsize=(8, 10), layout="constrained")
    axes = figure.subplots(len(QUANTITIES), 1, sharex=True)
    for place, quantity, values in zip(axes, QUANTITIES, zip(*seen.samples, strict=True), strict=True):
        place.plot(seen.times, values, linewidth=1)
        place.set_ylim(0, max(1.0, 1.2 * max(values)))
        place.set_title(quantity.name, fontsize=9, loc="left")
    axes[-1].set_xlabel("minutes")
    figure.suptitle(title, fontsize=10)
    return figure


def main() -> int:
    """The exit status: 1 if something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sleep-ms", type=float, default=10, help="of each step of an environment")
    parser.add_argument("--out", type=Path, help="where to draw the figure")
    options = parser.parse_args()
    seen = soak(options.minutes, options.sleep_ms / 1000)
    title = (
        f"{options.minutes:g} minutes of streaming: {seen.fragments:,} fragments, {seen.restarts} restarts"
    )
    if options.out is not None:
        draw(seen, title).savefig(options.out, dpi=100)
    sys.stdout.write(f"{title}, {len(seen.samples)} samples\n")
    failed = False
    for quantity, values in zip(QUANTITIES, zip(*seen.samples, strict=True), strict=True):
        sys.stdout.write(f"{quantity.name}: {min(values):.1f} to {max(values):.1f}, last {values[-1]:.1f}\n")
        if said := grown(quantity, values):
            failed = True
            sys.stdout.write(f"FAILED: {said}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
