"""Runs, faults and the invariants that hold after each; all but the timing follows from a seed."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from clusterenv import ClusterEnv, LocalConfig, peers
from clusterenv.errors import EnvError
from clusterenv.pool import AGENT_TIMEOUT_S
from tests.agents import MLPAgent
from tests.chaos.calls import CALLS, Calls, followed
from tests.chaos.faults import (
    FAULTS,
    LEASE_S,
    LOSSES,
    MACHINE_FAULTS,
    PATIENCE,
    STEP_TIMEOUT_S,
    Target,
    has_own_machine,
)
from tests.chaos.ledger import Checker, Ledger, WrongRow
from tests.chaos.report import Outcome, Part
from tests.processes import alive, wait_until

NODES, ENVS_PER_NODE, RUNNERS = 2, 4, 2
FAULTS_OF_A_RUN = 20
CALL_PAUSE_S = 0.02
"""Between two calls while a fault is waited for: the cores are needed to start workers."""
CALL_S = AGENT_TIMEOUT_S + 40.0 * PATIENCE
"""A call that takes longer has hung: it is more than all limits that it may meet add up to."""
RECOVER_S = AGENT_TIMEOUT_S + 60.0 * PATIENCE


def planned(seed: int, faults: int, only: Sequence[str] | None = None) -> list[list[str]]:
    """The kinds of so many faults, in an order that follows from `seed`, for one run after the other."""
    own = has_own_machine()
    kinds = [*FAULTS, *(MACHINE_FAULTS if own else {}), "head_killed"]
    kinds = [kind for kind in kinds if only is None or kind in only]
    plan = [kinds[number % len(kinds)] for number in range(faults)]
    random.Random(seed).shuffle(plan)
    return [plan[start : start + FAULTS_OF_A_RUN] for start in range(0, faults, FAULTS_OF_A_RUN)]


def run_chaos(
    seed: int,
    batches: Mapping[int, Sequence[str]],
    part: Part,
    seconds: float = float("inf"),
    tell: Callable[[Part], None] = lambda _: None,
) -> None:
    """Inject the faults of `batches`, or as many as fit into `seconds`, and check every row and invariant.

    What follows from chance follows from `seed` and the number of the batch. `tell` is called with all that
    was seen after each fault.
    """
    end = time.monotonic() + seconds
    for number, batch in batches.items():
        if time.monotonic() > end:
            break
        began, rng = time.monotonic(), random.Random(f"{seed} {number}")
        runs = [kind for kind in batch if kind != "head_killed"]
        with _nothing_left(part), tempfile.TemporaryDirectory() as folder, _quick_restarts():
            _one_run(runs, Path(folder), rng, part, end, tell)
            for _ in range(len(batch) - len(runs)):
                if time.monotonic() < end:
                    _kill_a_head(rng, part)
                    tell(part)
        _measure(part)
        part.seconds += time.monotonic() - began
        if time.monotonic() < end:
            part.batches.append(number)


def _one_run(
    kinds: Sequence[str],
    folder: Path,
    rng: random.Random,
    part: Part,
    end: float,
    tell: Callable[[Part], None],
) -> None:
    env_fns = [partial(Ledger, env, folder) for env in range(NODES * ENVS_PER_NODE)]
    launcher = LocalConfig(nodes=NODES, cpus_per_node=RUNNERS)
    options: dict[str, Any] = {"lease_s": LEASE_S, "step_timeout_s": STEP_TIMEOUT_S, "max_restarts": 10_000}
    options["on_env_error"] = rng.choice(("raise", "rebuild"))
    with ClusterEnv(env_fns, launcher, **options) as env, followed() as taken:
        checker = Checker(env.num_envs)
        calls = Calls(env, MLPAgent(env), checker, taken)
        calls.reset(rng.randrange(1000))
        for kind in kinds:
            if time.monotonic() > end:
                break
            part.outcomes.append(_one_fault(kind, env, calls, folder, rng, part))
            tell(part)
        part.rows += checker.rows
        part.fragments += taken.fragments


def _one_fault(
    kind: str, env: ClusterEnv, calls: Calls, folder: Path, rng: random.Random, part: Part
) -> Outcome:
    rank = rng.randrange(NODES)
    worker = env.stats()["workers"][rank]
    restarts = worker["restarts"]
    target = Target(
        psutil.Process(worker["pid"]), rank * ENVS_PER_NODE + rng.randrange(ENVS_PER_NODE), folder, rng
    )
    inject = (FAULTS | MACHINE_FAULTS)[kind](target)
    fault = threading.Timer(rng.uniform(0, 0.3), inject)
    call = rng.choice(CALLS)
    outcome, longest, calm = "unharmed", 0.0, 0
    began = time.monotonic()
    fault.start()
    while calm < 3:
        if time.monotonic() - began > RECOVER_S:
            part.failures.append(f"{kind} in {call}: not recovered within {RECOVER_S:g} s")
            break
        started = time.monotonic()
        with _bounded():
            try:
                whole = calls.make(call)
            except EnvError:
                outcome, whole = "error", False
                calls.reset(rng.randrange(1000))
            except WrongRow as error:
                part.failures.append(f"{kind} in {call}: {error}")
                calls.settle()
                calls.reset(rng.randrange(1000))
                break
        longest = max(longest, time.monotonic() - started)
        stats = env.stats()["workers"][rank]
        again = stats["restarts"] > restarts and stats["state"] == "ready"
        outcome = "rows" if (again or not whole) and outcome == "unharmed" else outcome
        settled = (
            not fault.is_alive()
            and (kind not in LOSSES or again)
            and (kind != "env_raises" or outcome != "unharmed")
        )
        calm = calm + 1 if whole and settled else 0
        time.sleep(0 if whole and settled else CALL_PAUSE_S)
    fault.join()
    with _bounded():
        calls.settle()
    if longest > CALL_S:
        part.failures.append(f"{kind} in {call}: a call took {longest:.1f} s")
    return Outcome(kind, call, outcome, time.monotonic() - began, longest)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """A call that hangs ends the process, and tells where."""
    faulthandler.dump_traceback_later(2 * CALL_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


HEAD = """
import sys, tempfile
from functools import partial
from pathlib import Path
import numpy as np
from clusterenv import ClusterEnv, LocalConfig
from tests.agents import MLPAgent
from tests.chaos.ledger import Ledger
tempfile.tempdir, call, lease_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
env_fns = [partial(Ledger, i, Path(sys.argv[1])) for i in range(4)]
env = ClusterEnv(env_fns, LocalConfig(nodes=2), lease_s=lease_s)
env.reset(seed=0)
batches = env.stream(MLPAgent(env), 8) if call == "stream" else None
print("steps", flush=True)
while True:
    if batches is not None:
        batches.take()
    else:
        env.step(np.zeros(4, np.int64))
"""


def _kill_a_head(rng: random.Random, part: Part) -> None:
    """A head is killed with SIGKILL while it steps or streams: its workers are gone soon."""
    call = rng.choice(("step", "stream"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", HEAD, folder, call, str(LEASE_S)]
        head = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert head.stdout is not None
        if head.stdout.readline() != "steps\n":
            part.failures.append(f"head_killed: it did not come up, exit code {head.wait()}")
            return
        started = [child.pid for child in psutil.Process(head.pid).children(recursive=True)]
        time.sleep(rng.uniform(0, 0.3))
        began = time.monotonic()
        head.kill()
        head.wait()
        head.stdout.close()
        try:
            wait_until(lambda: not alive(started), 30 + LEASE_S)
        except AssertionError:
            part.failures.append(f"head_killed: {alive(started)} of {started} live on")
    part.outcomes.append(Outcome("head_killed", call, "unharmed", time.monotonic() - began, 0.0))


@contextlib.contextmanager
def _quick_restarts() -> Iterator[None]:
    """A run sees more losses in a minute than real ones in a day, so the delays do not grow."""
    before = peers.FIRST_DELAY_S, peers.LONGEST_DELAY_S
    peers.FIRST_DELAY_S = peers.LONGEST_DELAY_S = 0.2
    try:
        yield
    finally:
        peers.FIRST_DELAY_S, peers.LONGEST_DELAY_S = before


@contextlib.contextmanager
def _nothing_left(part: Part) -> Iterator[None]:
    """No process, folder, or shared memory of a run is there after it."""
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        shared, children = set(os.listdir("/dev/shm")), _children()  # noqa: PTH208 - names alone
        try:
            yield
        finally:
            tempfile.tempdir = parent
        _, living = psutil.wait_procs(list(_children() - children), timeout=10)
        part.failures += [f"left running: {each.pid} {each.name()}" for each in living]
        part.failures += [f"left lying about: {path.name}" for path in Path(folder).glob("clusterenv-*")]
        left = {name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("clusterenv")}  # noqa: PTH208
        part.failures += [f"left in shared memory: {name}" for name in left]


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _measure(part: Part) -> None:
    gc.collect()
    own = psutil.Process()
    part.rss_mb.append(round(own.memory_info().rss / 1e6, 1))
    part.descriptors.append(own.num_fds())
    part.threads.append(own.num_threads())
