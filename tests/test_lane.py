"""Memory that head and runners share: what is read from it, who can attach, and what is left of it."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.batches import StepBatch
from clusterenv.errors import ProtocolError
from clusterenv.infos import decode_infos, encode_infos
from clusterenv.lane import HERE, INFO_BYTES, NUM_FINAL, NUM_INFO_BYTES, Lane
from clusterenv.layout import SpaceLayout
from clusterenv.pool import ProcessPool
from tests.envs import Count
from tests.pools import ROOT, setup_for
from tests.processes import alive, wait_until

OBS = SpaceLayout.of(spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(5)}))
LAYOUTS = OBS, SpaceLayout.of(spaces.Discrete(3))
SLICES = [slice(0, 2), slice(2, 5)]
SHM = Path("/dev/shm")


def lane_of() -> Lane:
    lane = Lane.create(LAYOUTS, SLICES)
    assert lane is not None
    return lane


def batch_of(rows: slice, ended: list[int], infos: list[bytes] | None = None) -> StepBatch:
    """A step whose numbers tell the row."""
    numbers = np.arange(rows.start, rows.stop)
    return StepBatch(
        obs=[np.repeat(numbers[:, None], 3, axis=1).astype(np.float32), numbers],
        rewards=numbers.astype(np.float64),
        terminations=numbers % 2 == 0,
        truncations=numbers % 2 == 1,
        final_index=np.array(ended, np.int64),
        final_obs=[np.full((len(ended), 3), 7, np.float32), np.array(ended, np.int64)],
        infos=infos or [],
    )


def answered(lane: Lane) -> Lane:
    lane.ask(9, [np.arange(5)])
    lane.answer(1, batch_of(SLICES[1], [1], [encode_infos([(3, {"k": 1})])]))
    lane.answer(0, batch_of(SLICES[0], [0]))
    return lane


def test_answers_of_all_runners_are_one_batch_in_copies() -> None:
    lane = lane_of()
    other = Lane.attach(lane.segment, LAYOUTS, SLICES)
    lane.ask(9, [np.arange(5)])
    assert other.asked_actions(1)[0].tolist() == [2, 3, 4]
    assert (other.is_busy(0), other.is_busy(1), other.sequence) == (True, True, 9)
    other.answer(1, batch_of(SLICES[1], [1], [encode_infos([(3, {"k": 1})])]))
    assert not lane.wait(0.01)
    other.answer(0, batch_of(SLICES[0], [0]))
    assert lane.wait(0.01)
    batch = lane.take()
    assert batch is not None
    assert batch.rewards.tolist() == batch.obs[1].tolist() == [0, 1, 2, 3, 4]
    assert batch.obs[0][:, 2].tolist() == [0, 1, 2, 3, 4]
    assert batch.final_index.tolist() == [0, 3]
    assert batch.final_obs[1].tolist() == [0, 1]
    assert decode_infos(batch.infos[0]) == [(3, {"k": 1})]
    assert lane.steps == 5
    lane.rewards[:] = -1
    lane.obs[1][:] = -1
    lane.final_index[:] = -1
    assert batch.rewards.tolist() == batch.obs[1].tolist() == [0, 1, 2, 3, 4]
    assert batch.final_index.tolist() == [0, 3]


def test_answer_that_does_not_fit_is_not_here() -> None:
    lane = lane_of()
    for told in (None, batch_of(SLICES[1], [], [b"x" * INFO_BYTES])):
        lane.ask(9, [np.arange(5)])
        lane.answer(0, batch_of(SLICES[0], []))
        lane.answer(1, told)
        assert lane.wait(0.01)
        assert lane.take() is None
    assert answered(lane).take() is not None


@pytest.mark.parametrize(
    ("word", "value"),
    [(NUM_FINAL, 4), (NUM_FINAL, -1), (NUM_INFO_BYTES, -1), (NUM_INFO_BYTES, INFO_BYTES + 1)],
)
def test_numbers_that_cannot_be_are_refused(word: int, value: int) -> None:
    lane = answered(lane_of())
    lane.words[1][word] = value
    with pytest.raises(ProtocolError, match="ended rows"):
        lane.take()


def test_infos_that_cannot_be_read_are_refused() -> None:
    lane = answered(lane_of())
    lane.infos[1][:3] = 255
    assert lane.words[1][HERE] == 1
    with pytest.raises(ProtocolError, match="infos"):
        lane.take()


def test_other_memory_than_was_announced_is_refused() -> None:
    segment = lane_of().segment
    lane = lane_of()
    for wrong in (
        dataclasses.replace(lane.segment, nonce=segment.nonce),
        dataclasses.replace(lane.segment, nbytes=lane.segment.nbytes + 64),
        dataclasses.replace(lane.segment, descriptor=1 << 20),
        dataclasses.replace(lane.segment, pid=1 << 22),
    ):
        with pytest.raises(OSError, match=r"/proc/|memory of \d+ bytes; expected"):
            Lane.attach(wrong, LAYOUTS, SLICES)
    with pytest.raises(OSError, match="expected"):
        Lane.attach(lane.segment, LAYOUTS, [slice(0, 6)])
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="no memory of this user"):
        Lane.attach(dataclasses.replace(lane.segment, descriptor=reading), LAYOUTS, SLICES)
    os.close(reading)
    os.close(writing)


@pytest.mark.process
def test_full_shared_memory_is_a_warning_and_steps_go_by_messages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> Lane:
        raise OSError(28, "shared memory of 4096 bytes cannot be allocated")

    monkeypatch.setattr(Lane, "create", full)
    pool = ProcessPool(setup_for([partial(Count, 5)] * 2), 2)
    try:
        pool.start(60.0)
        with caplog.at_level(logging.WARNING):
            assert pool.share() is None
        assert [record.message for record in caplog.records] == [
            "steps come by messages, not through shared memory: "
            "[Errno 28] shared memory of 4096 bytes cannot be allocated"
        ]
        assert pool.lane_work() == (0, 0)
    finally:
        pool.close(10.0)


@pytest.fixture
def segments() -> Callable[[], set[Path]]:
    """Names in /dev/shm that were not there before."""
    before = set(SHM.iterdir())
    return lambda: {path for path in SHM.iterdir() if path.name.startswith("clusterenv")} - before


HEAD = """
import sys, time, functools, numpy as np
from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count
env = ClusterEnv([functools.partial(Count, 100)] * 4, LocalConfig(nodes=2))
env.reset()
env.step(np.zeros(4, np.int64))
print(*[worker["pid"] for worker in env.stats()["workers"]], flush=True)
while True:
    env.step(np.zeros(4, np.int64))
"""


@pytest.mark.process
def test_nothing_is_left_in_dev_shm_when_the_head_is_killed(
    segments: Callable[[], set[Path]], tmp_path: Path
) -> None:
    folders = {"TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    environ = {**os.environ, **folders, "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    with subprocess.Popen([sys.executable, "-c", HEAD], stdout=subprocess.PIPE, env=environ) as head:
        assert head.stdout is not None
        pids = [int(word) for word in head.stdout.readline().split()]
        assert segments() == set()
        head.kill()
    wait_until(lambda: not alive(pids), 30.0)
    assert segments() == set()
