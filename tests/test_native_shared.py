"""Shared memory and doorbells, from Python and between processes."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from clusterenv.native import Doorbell, Slab

LINE = 64
PATIENT_S = 30.0


@contextmanager
def child_of(body: object) -> Iterator[int]:
    """A fork that runs `body` and ends; it is killed and waited for in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_arrays_over_a_slab_share_its_memory_and_keep_it() -> None:
    slab = Slab.create(1 << 12)
    assert slab.nbytes == 1 << 12
    rows = np.frombuffer(slab.memory, np.float32, count=8, offset=LINE)
    other = Slab.attach(slab.descriptor, 1 << 12)
    rows[3] = 2.5
    assert np.frombuffer(other.memory, np.float32, count=8, offset=LINE)[3] == 2.5
    slab.close_descriptor()
    assert slab.descriptor == -1
    del slab, other
    rows[3] += 1
    assert rows.tolist() == [0, 0, 0, 3.5, 0, 0, 0, 0]


def test_slab_leaves_nothing_in_dev_shm() -> None:
    before = set(Path("/dev/shm").iterdir())
    slab = Slab.create(100)
    assert set(Path("/dev/shm").iterdir()) <= before
    assert os.fstat(slab.descriptor).st_mode & 0o777 == 0o600


def test_slab_that_finds_no_room_is_an_oserror() -> None:
    with pytest.raises(OSError, match="shared memory of 1152921504606846976 bytes") as caught:
        Slab.create(1 << 60)
    assert caught.value.errno in (errno.ENOMEM, errno.ENOSPC)


def test_sizes_that_do_not_fit_are_refused() -> None:
    slab = Slab.create(256)
    with pytest.raises(ValueError, match="bytes is 0"):
        Slab.create(0)
    with pytest.raises(ValueError, match="number of bytes that was expected"):
        Slab.attach(slab.descriptor, 128)
    with pytest.raises(ValueError, match="offset is 192; expected room for 128 bytes in a slab of 256"):
        Doorbell(slab, 192)
    with pytest.raises(ValueError, match="not aligned"):
        Doorbell(slab, 4)


def test_doorbell_wakes_another_thread_which_waits_without_the_gil() -> None:
    slab = Slab.create(Doorbell.nbytes)
    heard: list[bool] = []
    waiter = threading.Thread(target=lambda: heard.append(Doorbell(slab, 0).wait(0, PATIENT_S)))
    waiter.start()
    bell = Doorbell(slab, 0)
    bell.ring()
    waiter.join(PATIENT_S)
    assert heard == [True]
    assert bell.count == 1


def test_wait_ends_with_its_deadline() -> None:
    bell = Doorbell(Slab.create(Doorbell.nbytes), 0)
    assert bell.wait(0, 0.01, 0.001) is False
    assert bell.wait(0, 0.0) is False
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="timeout_s is"):
            bell.wait(0, wrong)


@pytest.mark.process
@pytest.mark.parametrize("spin_s", [0.0, 20e-6])
def test_processes_take_turns_over_rows_that_are_written_in_place(spin_s: float) -> None:
    slab = Slab.create(1 << 12)
    ours, theirs = Doorbell(slab, 0), Doorbell(slab, 2 * LINE)
    numbers = np.frombuffer(slab.memory, np.int64, count=16, offset=1 << 10)

    def echo() -> None:
        for turn in range(500):
            assert ours.wait(turn, PATIENT_S, spin_s)
            numbers[:] += 1
            theirs.ring()

    with child_of(echo):
        for turn in range(500):
            numbers[:] *= 2
            ours.ring()
            assert theirs.wait(turn, PATIENT_S, spin_s)
            numbers[:] %= 1000
    expected = 0
    for _ in range(500):
        expected = (expected * 2 + 1) % 1000
    assert numbers.tolist() == [expected] * 16


@pytest.mark.process
def test_waiter_whose_ringer_was_killed_ends_with_its_deadline() -> None:
    slab = Slab.create(Doorbell.nbytes)
    bell = Doorbell(slab, 0)

    def ring_for_ever() -> None:
        own = Doorbell(slab, 0)
        while True:
            own.ring()

    with child_of(ring_for_ever) as pid:
        assert bell.wait(0, PATIENT_S)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not bell.wait(bell.count, 0.05)


@pytest.mark.process
def test_signal_handlers_run_while_a_doorbell_is_waited_for() -> None:
    class Called(Exception):
        pass

    def handler(*_: object) -> None:
        raise Called

    before = signal.signal(signal.SIGUSR1, handler)
    me = os.getpid()

    def signal_soon() -> None:
        for _ in range(100):
            time.sleep(0.01)
            os.kill(me, signal.SIGUSR1)

    bell = Doorbell(Slab.create(Doorbell.nbytes), 0)
    try:
        with child_of(signal_soon):
            with pytest.raises(Called):
                bell.wait(0, PATIENT_S)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.process
def test_rings_of_several_processes_are_all_counted() -> None:
    slab = Slab.create(Doorbell.nbytes)

    def ring() -> None:
        bell = Doorbell(slab, 0)
        for _ in range(20_000):
            bell.ring()

    with child_of(ring) as one, child_of(ring) as other:
        for pid in (one, other):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Doorbell(slab, 0).count == 40_000
