from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from clusterenv.benchmark import processes
from clusterenv.benchmark.processes import Processes
from clusterenv.benchmark.twins import Advance, bare_loop, hand_written
from clusterenv.errors import DeadlineError, EnvError
from clusterenv.launchers.base import THREAD_VARIABLES

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children())
    yield
    left = set(psutil.Process().children()) - before
    assert not [child for child in left if "spawn_main" in " ".join(child.cmdline())]


def test_measure_sums_the_steps_of_bare_loops_and_hand_written_processes() -> None:
    with closing(Processes(bare_loop, [("CartPole-v1", 1)])) as bare:
        assert bare.measure(0.1) > 0
    with closing(Processes(hand_written, [("CartPole-v1", 4, 8, 1), ("Pendulum-v1", 4, 8, 5)])) as twins:
        assert twins.measure(0.1) > 0
        assert twins.measure(0.1) > 0


def test_rate_is_the_sum_over_the_processes_of_steps_by_time() -> None:
    with closing(Processes(_hundred_each_tenth_of_a_second, [(), ()])) as two:
        assert 200 < two.measure(0.95) <= 2000  # 1000 each, less what the machine makes a sleep longer


def test_processes_have_one_thread_for_numeric_libraries_whatever_we_have() -> None:
    before = dict(os.environ)
    with closing(Processes(_number_of_threads, [()])) as one:
        assert one.measure(0.01) > 0
    assert dict(os.environ) == before


def test_error_in_a_process_is_told_with_its_traceback() -> None:
    with pytest.raises(EnvError, match="NameNotFound: ") as caught:
        Processes(bare_loop, [("CartPole-v1", 1), ("NoSuchEnv-v0", 2)])
    assert "in bare_loop" in caught.value.remote_traceback


def test_death_of_a_process_is_an_error() -> None:
    with pytest.raises(EnvError, match="a process of the benchmark has died"):
        Processes(os._exit, [(1,)])


def test_process_that_does_not_answer_is_an_error_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "READY_S", 0.5)
    with pytest.raises(DeadlineError, match=r"did not answer within 0\.5 s"):
        Processes(time.sleep, [(600,)])


def _hundred_each_tenth_of_a_second() -> Advance:
    def advance() -> int:
        time.sleep(0.1)
        return 100

    return advance


def _number_of_threads() -> Advance:
    import torch

    assert torch.get_num_threads() == 1
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}
    return lambda: 1
