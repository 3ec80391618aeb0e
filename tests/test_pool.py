from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from select import select

import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import pytest

from clusterenv.commands import Act, Collect, Evaluate, Failed, Reset, Step
from clusterenv.errors import EnvError, RunnerLost, SetupTimeout, SpaceError, StepTimeout
from clusterenv.pool import InlinePool, Pool, ProcessPool
from tests.envs import Count, Fails, Hangs, Index, RandomObs, Sampled
from tests.pools import (
    ROOT,
    EnvFn,
    Forced,
    arrays_of,
    carrier,
    carry_out,
    give_agent,
    reset,
    setup_for,
    started,
)
from tests.processes import alive, wait_until

pytestmark = pytest.mark.process

LONG = functools.partial(Count, 1000)
Start = Callable[..., Pool]


@pytest.fixture
def new_forkserver() -> Iterator[None]:
    """Pools of the test use a forkserver started in it, with the descriptors and variables of that time."""
    multiprocessing.forkserver._forkserver._stop()
    yield
    multiprocessing.forkserver._forkserver._stop()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts pools, and sees to it that nothing of them is left after the test."""
    pools: list[Pool] = []
    pids: list[int] = []

    def begin(env_fns: Sequence[EnvFn], runners: int = 1, **changes: object) -> Pool:
        pools.append(started(env_fns, runners, **changes))
        if runners:
            pids.extend(pools[-1].pids())
        return pools[-1]

    yield begin
    for pool in pools:
        pool.close(10.0)
    assert not alive(pids)


def step(num_envs: int) -> Step:
    return Step(actions=[np.zeros(num_envs, np.int64)])


def wait_for_loss(pool: Pool, within_s: float = 20.0) -> RunnerLost | StepTimeout:
    """The error that `check` raises, within the time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            pool.check(time.monotonic())
        except (RunnerLost, StepTimeout) as error:
            return error
        assert pool.poll() is None
        time.sleep(0.01)
    raise AssertionError(f"nothing was noticed within {within_s} s")


class Calls(Count):
    """Count whose step first does what it is told."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__(1000)
        self.do = do

    def step(self, action: object) -> tuple:
        self.do()
        return super().step(action)


class Asks(Count):
    """Count whose info is the answer to a question."""

    def __init__(self, ask: Callable[[], float]) -> None:
        super().__init__(1000)
        self.ask = ask

    def _obs(self) -> np.ndarray:
        return np.array([self.ask()], np.float32)


def answers(start: Start, ask: Callable[[], float], runners: int = 1, **changes: object) -> list[float]:
    pool = start([functools.partial(Asks, ask)] * runners, runners, **changes)
    return reset(carrier(pool), runners).obs[0][:, 0].tolist()


# --- the same numbers, whatever runs the environments ------------------------------------------------------


@pytest.mark.parametrize("runners", [1, 3])
def test_steps_are_the_same_to_the_last_bit_in_any_number_of_processes(start: Start, runners: int) -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,), np.float64), "b": gym.spaces.Discrete(9)})
    env_fns = [functools.partial(Sampled, space)] * 3 + [functools.partial(Sampled, space)] * 4
    replies = []
    for pool in (start(env_fns, 0, first_env=5), start(env_fns, runners, first_env=5)):
        carry = carrier(pool)
        told = [reset(carry, 7, seed=3, options=cloudpickle.dumps({"x": 1}))]
        told += [carry(step(7)) for _ in range(12)]
        told += [carry(Reset(seeds=[None] * 7, mask=np.arange(7) == 4))]
        told += [carry(step(7)) for _ in range(3)]
        replies.append(told)
    for inline, processes in zip(*replies, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(arrays_of(inline), arrays_of(processes), strict=True))
        assert _infos(inline) == _infos(processes)


def _infos(reply: object) -> list[str]:
    from clusterenv.infos import decode_infos

    return [repr(row) for block in reply.infos for row in decode_infos(block)]


@pytest.mark.parametrize("runners", [1, 3])
def test_policies_act_the_same_to_the_last_bit_in_any_number_of_processes(start: Start, runners: int) -> None:
    env_fns = [functools.partial(Count, 2 + i, "term" if i % 2 else "trunc") for i in range(7)]
    replies = []
    for pool in (start(env_fns, 0, first_env=5), start(env_fns, runners, first_env=5)):
        carry = carrier(pool)
        give_agent(carry, Forced(), Count(), version=4)
        reset(carry, 7, seed=3)
        commands = [Collect(num_steps=9), Evaluate(), Act(), Act(), Collect(num_steps=5), step(7)]
        replies.append([carry(command) for command in commands])
    for inline, processes in zip(*replies, strict=True):
        assert type(inline) is type(processes)
        if not hasattr(inline, "frames"):
            assert np.array_equal(inline.params, processes.params)
            continue
        assert all(np.array_equal(a, b) for a, b in zip(arrays_of(inline), arrays_of(processes), strict=True))
        for name in ("episodes", "family", "policy_version"):
            assert getattr(inline, name, None) == getattr(processes, name, None)


def test_rows_of_a_slow_runner_stay_in_their_place(start: Start) -> None:
    pool = start([functools.partial(Index, i, 0.05 if i == 0 else 0.0) for i in range(3)], 3)
    reset(carrier(pool), 3)
    for _ in range(20):
        assert carrier(pool)(step(3)).obs[0][:, 0].tolist() == [0, 1, 2]


def test_no_more_runners_than_environments_are_started(start: Start) -> None:
    assert len(start([Count] * 2, 5).pids()) == 2


def test_start_tells_digests_layout_and_env_id(start: Start) -> None:
    pool = ProcessPool(setup_for([functools.partial(gym.make, "CartPole-v1")] * 3), 2)
    ready = pool.start(60.0)
    pool.close(5.0)
    assert ready.env_id == "CartPole-v1"
    assert pool.action_layout.leaves[0].dtype == np.int64
    assert ready == InlinePool(setup_for([functools.partial(gym.make, "CartPole-v1")])).start(60.0)


# --- what fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runners", [0, 2])
def test_env_that_cannot_be_built_is_an_error_of_start(runners: int) -> None:
    begin = time.monotonic()
    with pytest.raises(EnvError, match="on purpose") as caught:
        started([Count, Count, functools.partial(Fails, "init")], runners, first_env=4)
    assert caught.value.env_index == 6
    assert "in _fail" in caught.value.remote_traceback
    assert time.monotonic() - begin < 30


def test_different_spaces_in_two_runners_are_an_error_of_start() -> None:
    with pytest.raises(SpaceError, match="environments 1 to 1"):
        started([Count, RandomObs], 2)


@pytest.mark.parametrize("runners", [0, 1, 3])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_env_that_raises_is_named_and_the_pool_goes_on(start: Start, runners: int, where: str) -> None:
    pool = start([Count, Count, functools.partial(Fails, where)], runners, first_env=4)
    commands = [Reset(seeds=[None] * 3)] if where == "reset" else [Reset(seeds=[None] * 3), step(3)]
    for command in commands:
        reply = carry_out(pool, command)
    assert isinstance(reply, Failed)
    assert (reply.kind, reply.env_index) == ("env", 6)
    assert "in _fail" in reply.traceback
    first_two = Reset(seeds=[None] * 3, mask=np.array([True, True, False]))
    assert carrier(pool)(first_two).obs[0].tolist()[:2] == [[0], [0]]


def test_runner_killed_in_a_collect_is_noticed(start: Start) -> None:
    pool = start([functools.partial(Index, i, 0.01, 0.01) for i in range(4)], 2, first_env=8)
    give_agent(carrier(pool), Forced(), Count())
    pool.submit(Collect(num_steps=10_000))
    time.sleep(0.1)
    os.kill(pool.pids()[1], signal.SIGKILL)
    begin = time.monotonic()
    error = wait_for_loss(pool)
    assert time.monotonic() - begin < 2
    assert isinstance(error, RunnerLost)
    assert error.exit_code == -9
    assert "environments 10 to 11" in str(error)
    assert "killed by SIGKILL" in str(error)


def test_runner_killed_while_idle_is_noticed(start: Start) -> None:
    pool = start([Count], 1)
    os.kill(pool.pids()[0], signal.SIGSEGV)
    error = wait_for_loss(pool)
    assert (type(error), error.exit_code) == (RunnerLost, -11)


def test_env_that_ends_its_process_is_noticed_with_the_exit_code(start: Start) -> None:
    pool = start([functools.partial(Calls, functools.partial(os._exit, 3))], 1)
    reset(carrier(pool), 1)
    pool.submit(step(1))
    error = wait_for_loss(pool)
    assert (type(error), error.exit_code) == (RunnerLost, 3)
    assert "exit code 3" in str(error)


def test_env_that_calls_sys_exit_fails_and_the_pool_goes_on(start: Start) -> None:
    pool = start([functools.partial(Calls, functools.partial(sys.exit, 3))], 1)
    reset(carrier(pool), 1)
    reply = carry_out(pool, step(1))
    assert isinstance(reply, Failed)
    assert "SystemExit" in reply.message
    assert reset(carrier(pool), 1).obs[0].tolist() == [[0]]


def _close_all_descriptors() -> None:
    os.closerange(3, 1000)


def test_env_that_closes_all_descriptors_is_noticed(start: Start) -> None:
    pool = start([functools.partial(Calls, _close_all_descriptors)], 1)
    reset(carrier(pool), 1)
    pool.submit(step(1))
    assert isinstance(wait_for_loss(pool), RunnerLost)


def _hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(1000)  # a PyDLL keeps the GIL during the call


def _sleep_with_a_helper(note: str) -> None:
    helper = subprocess.Popen(["sleep", "1000"])
    Path(note).write_text(str(helper.pid))
    time.sleep(1000)


@pytest.mark.parametrize(
    "hang", [_hold_the_interpreter, functools.partial(time.sleep, 1000)], ids=["GIL", "sleep"]
)
def test_env_that_hangs_is_killed_after_step_timeout(start: Start, hang: Callable[[], None]) -> None:
    pool = start([functools.partial(Calls, hang), LONG], 2, step_timeout_s=1.0)
    reset(carrier(pool), 2)
    stuck = pool.pids()[0]
    begin = time.monotonic()
    pool.submit(step(2))
    error = wait_for_loss(pool)
    assert isinstance(error, StepTimeout)
    assert "environments 0 to 0" in str(error)
    assert "step_timeout_s = 1 s" in str(error)
    assert 1.0 <= time.monotonic() - begin < 2.5
    assert not alive([stuck])


def test_env_that_hangs_is_killed_with_the_processes_it_started(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    pool = start(
        [functools.partial(Calls, functools.partial(_sleep_with_a_helper, str(note)))], 1, step_timeout_s=1.0
    )
    reset(carrier(pool), 1)
    pool.submit(step(1))
    assert isinstance(wait_for_loss(pool), StepTimeout)
    wait_until(lambda: not alive([int(note.read_text())]), within_s=5)


def test_env_that_hangs_in_a_collect_is_killed(start: Start) -> None:
    pool = start([functools.partial(Hangs, "step")], 1, step_timeout_s=1.0)
    give_agent(carrier(pool), Forced(), Count())
    pool.submit(Collect(num_steps=3))
    assert isinstance(wait_for_loss(pool), StepTimeout)


def test_slow_env_is_not_taken_for_one_that_hangs(start: Start) -> None:
    pool = start([functools.partial(Index, i, 0.2, 0.2) for i in range(5)], 1, step_timeout_s=0.6)
    give_agent(carrier(pool), Forced(), Count())
    assert carrier(pool)(Collect(num_steps=2)).num_steps == 2  # 2 s, of which no call takes more than 0.2


def test_caller_that_looks_late_does_not_take_a_slow_env_for_one_that_hangs(start: Start) -> None:
    pool = start([functools.partial(Index, i, 0.2, 0.2) for i in range(8)], 1, step_timeout_s=0.6)
    reset(carrier(pool), 8)
    pool.submit(step(8))
    time.sleep(1.0)
    pool.check(time.monotonic())
    wait_until(pool.poll, within_s=10)


def test_env_that_is_never_built_ends_start_at_the_deadline() -> None:
    begin = time.monotonic()
    pool = ProcessPool(setup_for([Count, functools.partial(Hangs, "init")], first_env=2), 2)
    with pytest.raises(SetupTimeout, match=r"environments 3 to 3.*setup_timeout_s = 6 s"):
        pool.start(6.0)
    assert time.monotonic() - begin < 10
    assert pool.pids() == []


class Noisy(Count):
    """Count that prints much, then closes stdout for good."""

    def reset(self, **kwargs: object) -> tuple:
        os.write(1, b"x" * 300_000)
        sys.stdout.write("y" * 300_000)
        sys.stdout.close()
        os.close(1)
        return super().reset(**kwargs)


def test_env_that_prints_a_lot_and_closes_stdout_does_no_harm(new_forkserver: None, start: Start) -> None:
    saved = os.dup(1)
    with Path(os.devnull).open("wb") as devnull:
        os.dup2(devnull.fileno(), 1)
        try:
            pool = start([Noisy], 1)
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert reset(carrier(pool), 1).obs[0].tolist() == [[0]]
    assert carrier(pool)(step(1)).obs[0].tolist() == [[1]]


# --- the end -----------------------------------------------------------------------------------------------


def test_close_ends_a_runner_that_hangs_in_time_and_may_be_repeated() -> None:
    pool = started([functools.partial(Calls, _hold_the_interpreter), LONG], 2)
    pids = pool.pids()
    reset(carrier(pool), 2)
    pool.submit(step(2))
    begin = time.monotonic()
    pool.close(1.0)
    assert time.monotonic() - begin < 3
    assert not alive(pids)
    pool.close(1.0)


def test_close_ends_a_long_rollout_soon(start: Start) -> None:
    pool = start([functools.partial(Index, 0, 0.01, 0.01)], 1, step_timeout_s=1.0)
    give_agent(carrier(pool), Forced(), Count())
    pool.submit(Collect(num_steps=100_000))
    begin = time.monotonic()
    pool.close(20.0)
    assert time.monotonic() - begin < 3


def test_close_lets_environments_close(start: Start, tmp_path: Path) -> None:
    class Notes(Count):
        def close(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    pool = start([Notes] * 2, 2)
    pids = pool.pids()
    pool.close(10.0)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == sorted(pids)


PARENT = """
import functools, sys, time
from tests.pools import carrier, reset, started
from tests.test_pool import Calls, Count, _hold_the_interpreter, step
import multiprocessing.forkserver
if __name__ == "__main__":
    pool = started([functools.partial(Calls, _hold_the_interpreter), Count], 2)
    reset(carrier(pool), 2)
    if sys.argv[1] == "busy":
        pool.submit(step(2))
    print(*pool.pids(), multiprocessing.forkserver._forkserver._forkserver_pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_runners_and_forkserver_end_with_the_process_that_needs_them(tmp_path: Path, state: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    command = [sys.executable, str(script), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert len(alive(pids)) == 3
        time.sleep(0.2)
        parent.kill()
    wait_until(lambda: not alive(pids), within_s=5)


def test_process_that_forgets_to_close_its_pool_ends(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.replace("time.sleep(1000)", "raise SystemExit(5)"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script), "idle"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 5, done.stderr
    wait_until(lambda: not alive([int(pid) for pid in done.stdout.split()]), within_s=5)


def test_ctrl_c_does_not_reach_environments(start: Start) -> None:
    pool = start([LONG], 1)
    os.kill(pool.pids()[0], signal.SIGINT)
    reset(carrier(pool), 1)
    assert carrier(pool)(step(1)).obs[0].tolist() == [[1]]


# --- what an environment finds in its process --------------------------------------------------------------


def test_numeric_libraries_use_one_thread(
    new_forkserver: None, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads() -> float:
        import torch

        torch.ones(300, 300) @ torch.ones(300, 300)
        return 100 * torch.get_num_threads() + int(os.environ["OMP_NUM_THREADS"])

    assert answers(start, threads) == [101]
    assert "OMP_NUM_THREADS" not in os.environ


def test_number_of_threads_that_the_user_set_is_kept(
    new_forkserver: None, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    def threads() -> float:
        import torch

        return torch.get_num_threads()

    assert answers(start, threads) == [2]


def test_runner_is_forked_with_torch_already_imported(start: Start) -> None:
    def has_torch() -> float:
        return float("torch" in sys.modules and threading.active_count() == 2)  # main and ticks

    assert answers(start, has_torch) == [1]
    server = psutil.Process(multiprocessing.forkserver._forkserver._forkserver_pid)
    assert server.num_threads() == 1  # so that forking is safe


def test_runners_draw_different_numbers_from_global_generators(start: Start) -> None:
    for draw in (lambda: np.random.random(), lambda: random.random()):  # not the generators themselves
        first, again = answers(start, draw, 3), answers(start, draw, 3)
        assert len(set(first)) == 3
        assert first == again  # seeded by noise_seed
        assert first != answers(start, draw, 3, noise_seed=8)


def test_runner_runs_on_its_share_of_the_cores(start: Start) -> None:
    cores = sorted(os.sched_getaffinity(0))
    runners = min(2, len(cores))
    assert (
        answers(start, lambda: sum(os.sched_getaffinity(0)), runners, cpus=cores[:runners]) == cores[:runners]
    )


def test_env_may_start_processes_of_its_own(start: Start) -> None:
    def helped() -> float:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(float, ("7",))

    assert answers(start, helped) == [7]


def test_env_may_end_processes_of_its_own(start: Start) -> None:
    def exit_code() -> float:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        child.start()
        child.terminate()
        child.join(20)
        child.kill()
        return float(child.exitcode or 0)

    assert answers(start, exit_code) == [-signal.SIGTERM]


def test_runner_outlives_signals_after_it_has_forked(start: Start) -> None:
    def forked() -> float:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join(20)
        return float(child.exitcode or 0)

    pool = start([functools.partial(Asks, forked)], 1)
    assert reset(carrier(pool), 1).obs[0].tolist() == [[0]]
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pool.pids()[0], number)
    assert reset(carrier(pool), 1).obs[0].tolist() == [[0]]


def test_env_finds_modules_of_the_given_path(start: Start, tmp_path: Path) -> None:
    (tmp_path / "only_on_the_head.py").write_text("from tests.envs import Count\nclass Mine(Count): pass\n")
    setup = setup_for([Count], sys_path=[str(tmp_path), ROOT])
    setup.env_blobs[0] = b"conly_on_the_head\nMine\n."
    pool = ProcessPool(setup, 1)
    pool.start(60.0)
    assert reset(carrier(pool), 1).obs[0].tolist() == [[0]]
    pool.close(5.0)


# --- waiting -----------------------------------------------------------------------------------------------


def test_descriptors_become_readable_with_an_answer_or_a_loss(start: Start) -> None:
    pool = start([LONG] * 2, 2)
    assert select(pool.fds(), [], [], 0)[0] == []
    pool.submit(Reset(seeds=[None] * 2))
    assert select(pool.fds(), [], [], 10)[0]
    wait_until(pool.poll)
    assert select(pool.fds(), [], [], 0)[0] == []
    os.kill(pool.pids()[0], signal.SIGKILL)
    assert select(pool.fds(), [], [], 10)[0]
    wait_for_loss(pool)


def test_idle_runner_sends_nothing(start: Start) -> None:
    pool = start([LONG], 1, step_timeout_s=0.2)
    reset(carrier(pool), 1)
    assert select(pool.fds(), [], [], 0.5)[0] == []


def test_inline_pool_answers_at_once(start: Start) -> None:
    pool = start([LONG], 0)
    pool.submit(Reset(seeds=[None]))
    assert pool.poll() is not None
    assert pool.poll() is None
    assert pool.fds() == []
    assert pool.pids() == [os.getpid()]
    pool.check(time.monotonic())
