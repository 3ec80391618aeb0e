"""What goes wrong: each fault is done to a run from outside, as a cluster does it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE = float(os.environ.get("CLUSTERENV_PATIENCE", "3"))
"""All limits are longer by this: on a machine that is busy with other things, runners wait for seconds."""
LEASE_S = 1.0 * PATIENCE
STEP_TIMEOUT_S = 5.0 * PATIENCE

Inject = Callable[[], None]


@dataclass(frozen=True)
class Target:
    """The worker that a fault is done to, one of its runners and one of its environments."""

    worker: psutil.Process
    env: int
    folder: Path
    rng: random.Random

    def runner(self) -> psutil.Process:
        """The forkserver is a child of the worker, runners are children of that."""
        runners = [each for each in self.worker.children(recursive=True) if each.ppid() != self.worker.pid]
        return self.rng.choice(runners)


def _signalled(number: signal.Signals, who: str) -> Callable[[Target], Inject]:
    def prepare(target: Target) -> Inject:
        process = target.worker if who == "worker" else target.runner()
        return lambda: process.send_signal(number)

    return prepare


def _ordered(order: str) -> Callable[[Target], Inject]:
    """An environment does it at its next step."""

    def prepare(target: Target) -> Inject:
        path = target.folder / f"fault-{target.env}"
        return lambda: _write_whole(path, order)

    return prepare


def _write_whole(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def _without_descriptors(target: Target) -> Inject:
    """The worker can open nothing for a while."""

    def inject() -> None:
        pid = target.worker.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (target.worker.num_fds(), before[1]))
        time.sleep(0.5)
        with contextlib.suppress(ProcessLookupError):  # if it has ended, which is not the thread's to tell
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    return inject


def _head_without_descriptors(target: Target) -> Inject:
    """A worker is killed while the head, which has to start another, can open nothing for a while."""

    def inject() -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), before[1]))
        target.worker.kill()
        time.sleep(2 * LEASE_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return inject


def _memory_full(target: Target) -> Inject:
    """A worker is killed while no shared memory is left for the one that takes its place."""

    def inject() -> None:
        path = Path("/dev/shm/full")
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        target.worker.kill()
        time.sleep(2 * LEASE_S)
        path.unlink()

    return inject


def _network(down: list[str], up: list[str], seconds: float) -> Callable[[Target], Inject]:
    def inject() -> None:
        subprocess.run(down, check=True, timeout=10)
        time.sleep(seconds)
        subprocess.run(up, check=True, timeout=10)

    return lambda _: inject


LOSSES = (
    "worker_killed",
    "worker_stopped",
    "worker_terminated",
    "runner_killed",
    "runner_stopped",
    "env_hangs",
    "env_exits",
    "env_hogs",
    "head_without_descriptors",
    "memory_full",
)
"""After these a worker has been started again."""

FAULTS: dict[str, Callable[[Target], Inject]] = {
    "worker_killed": _signalled(signal.SIGKILL, "worker"),
    "worker_stopped": _signalled(signal.SIGSTOP, "worker"),
    "worker_terminated": _signalled(signal.SIGTERM, "worker"),
    "runner_killed": _signalled(signal.SIGKILL, "runner"),
    "runner_stopped": _signalled(signal.SIGSTOP, "runner"),
    "env_raises": _ordered("raise"),
    "env_hangs": _ordered("hang"),
    "env_exits": _ordered("exit"),
    "env_hogs": _ordered("hog"),
    "no_descriptors": _without_descriptors,
    "head_without_descriptors": _head_without_descriptors,
}

_DOWN, _UP = ["ip", "link", "set", "lo", "down"], ["ip", "link", "set", "lo", "up"]
_TC = ["tc", "qdisc"]
_SLOW = [*_TC, "add", "dev", "lo", "root", "tbf", "rate", "2mbit", "burst", "128kb", "latency", "400ms"]
_FAST = [*_TC, "del", "dev", "lo", "root"]

MACHINE_FAULTS: dict[str, Callable[[Target], Inject]] = {
    "network_paused": _network(_DOWN, _UP, 0.3),
    "network_cut": _network(_DOWN, _UP, 3 * LEASE_S),
    "network_slowed": _network(_SLOW, _FAST, 2.0),
    "memory_full": _memory_full,
}
"""Only where network and shared memory are the suite's own."""


def has_own_machine() -> bool:
    """Whether this process may cut its network and fill its /dev/shm: it is root in namespaces of its own."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    alone = [line.split(":")[0].strip() for line in lines] == ["lo"]
    return os.geteuid() == 0 and None not in (shutil.which("ip"), shutil.which("tc")) and alone
