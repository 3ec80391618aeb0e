"""Memory of a batch: written by others, the caller's own, and used again only once nobody can tell."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from clusterenv import batch_memory, in_place, segments
from clusterenv.batch_memory import MOST_FREE, MOST_LENT, BatchMemories, Loan
from clusterenv.in_place import MappedBatches, Place, leaves_in, size_of
from clusterenv.layout import SpaceLayout

T, N = 4, 6
IMAGE = spaces.Box(0, 255, (128, 512), np.uint8)
LAYOUT = SpaceLayout.of(IMAGE)
HERE, ELSEWHERE = Mock(in_place=True), Mock(in_place=False)


@pytest.fixture
def memories() -> Iterator[BatchMemories]:
    memories = BatchMemories(LAYOUT, N, shared=True)
    yield memories
    memories.close()


def lent(memories: BatchMemories, num_steps: int = T) -> Loan:
    loan = memories.lend(num_steps)
    assert loan is not None
    return loan


def place_of(loan: Loan, num_steps: int = T) -> Place:
    return Place(num_steps=num_steps, **msgspec.structs.asdict(loan.message))


def write(loan: Loan, value: int, runner: MappedBatches | None = None) -> None:
    """As a runner that has all environments does."""
    runner = runner or MappedBatches()
    assert runner.maps(place_of(loan), LAYOUT)
    for leaf in runner.columns(LAYOUT, np.arange(N)):
        leaf[...] = value


def filled(memories: BatchMemories, loan: Loan, *fragments: Any) -> list[np.ndarray] | None:
    return memories.filled(loan, fragments, range(len(fragments)))


def nonces(memories: BatchMemories, rounds: int) -> set[int]:
    seen = set()
    for _ in range(rounds):
        loan = lent(memories)
        filled(memories, loan, HERE)
        seen.add(loan.message.nonce)
        del loan
    return seen


def test_what_a_runner_writes_is_the_callers(memories: BatchMemories) -> None:
    loan = lent(memories)
    write(loan, 7)
    (obs,) = filled(memories, loan, HERE, HERE) or []
    assert obs.shape == (T + 1, N, *IMAGE.shape)
    assert (obs == 7).all()

    obs[:, 0] = 1
    write(loan, 9)

    assert (obs[:, 0] == 1).all()  # pages that the caller has written are the caller's alone


def test_leaves_lie_beside_each_other_but_those_without_numbers() -> None:
    space = spaces.Dict(
        a=spaces.Box(-1, 1, (3,), np.float32),
        b=spaces.Text(4),
        c=IMAGE,
        d=spaces.MultiBinary(2),
        e=spaces.Discrete(5),
        f=spaces.Box(0, 1, (0, 2), np.float64),
    )
    layout = SpaceLayout.of(space)
    memories = BatchMemories(layout, N, shared=True)
    loan = lent(memories)
    for number, leaf in enumerate(loan.obs):
        leaf[...] = number
    assert [leaf.shape[2:] for leaf in loan.obs] == [(3,), IMAGE.shape, (2,), (), (0, 2)]
    assert all((leaf == number).all() for number, leaf in enumerate(loan.obs))
    runner = MappedBatches()
    assert runner.maps(place_of(loan), layout)
    columns = runner.columns(layout, np.array([2, 3]))
    assert [leaf.shape[:2] for leaf in columns] == [(T + 1, 2)] * 6
    assert columns[1].dtype == object
    memories.close()


def test_memory_returns_with_the_last_view_of_it(memories: BatchMemories) -> None:
    loan = lent(memories)
    (obs,) = filled(memories, loan, HERE) or []
    view, first = obs[1:, 2, 3], loan.message.nonce
    del loan, obs

    assert lent(memories).message.nonce != first
    assert view.shape == (T, *IMAGE.shape[1:])

    del view

    assert lent(memories).message.nonce == first


def test_pieces_are_few_however_many_rollouts_there_are(memories: BatchMemories) -> None:
    assert len(nonces(memories, 20)) == 1
    kept = [lent(memories) for _ in range(MOST_LENT)]
    assert memories.lend(T) is None

    for loan in kept:
        filled(memories, loan, HERE)
    before = _descriptors()
    kept.clear()
    del loan
    again = lent(memories)

    assert before - _descriptors() >= 2 * MOST_LENT - MOST_FREE - 2
    assert memories.lend(T + 1) is not None
    assert again.message.nbytes == size_of(LAYOUT, T, N)


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("fragments", [(HERE, None), (None, HERE), (ELSEWHERE, None)])
def test_memory_that_somebody_may_yet_write_to_is_never_used_again(
    memories: BatchMemories, fragments: tuple[Any, ...]
) -> None:
    loan = lent(memories)
    first, frozen = loan.message.nonce, MappedBatches()
    write(loan, 3, frozen)
    whole = filled(memories, loan, *fragments)
    assert (whole is None) == (fragments[0] is ELSEWHERE)
    for leaf in loan.obs:
        leaf[:, :2] = 0  # the columns of the one that was lost

    frozen.columns(LAYOUT, np.arange(2))[0][...] = 8

    assert (loan.obs[0][:, :2] == 0).all()
    del loan, whole, leaf
    assert first not in nonces(memories, 5)


def test_memory_of_a_call_that_failed_is_never_used_again(memories: BatchMemories) -> None:
    loan = lent(memories)
    first = loan.message.nonce
    del loan
    assert first not in nonces(memories, 5)


def test_runner_lets_go_of_what_was_given_up(memories: BatchMemories) -> None:
    runner = MappedBatches()
    loan = lent(memories)
    write(loan, 1, runner)
    mapped = runner._slabs[loan.message.nonce]
    assert segments.holds(mapped, loan.message.nonce)
    del loan

    other = lent(memories)  # takes back the first, which was not settled
    write(other, 1, runner)

    assert list(runner._slabs) == [other.message.nonce]


def test_runner_keeps_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "MOST_LENT", 10)
    memories, runner = BatchMemories(LAYOUT, N, shared=True), MappedBatches()
    kept = [lent(memories) for _ in range(10)]
    for loan in kept:
        write(loan, 1, runner)
    assert list(runner._slabs) == [loan.message.nonce for loan in kept[-in_place.MOST_MAPPED :]]
    memories.close()


def test_memory_that_does_not_fit_or_is_not_there_is_not_mapped(memories: BatchMemories) -> None:
    runner, loan = MappedBatches(), lent(memories)
    assert not runner.maps(place_of(loan, T + 1), LAYOUT)
    assert not runner.maps(place_of(loan), SpaceLayout.of(spaces.Box(0, 1, (3,), np.float32)))
    place = place_of(loan)
    memories.close()
    del loan
    assert not runner.maps(place, LAYOUT)


def test_child_that_was_forked_keeps_what_it_has_and_writes_for_itself(memories: BatchMemories) -> None:
    loan = lent(memories)
    write(loan, 5)
    (obs,) = filled(memories, loan, HERE) or []
    go_on, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        obs[0, 0] = 77
        os.read(go_on, 1)  # until the parent has made other batches, or has ended
        os._exit(0 if (obs[1:] == 5).all() and (obs[0, 0] == 77).all() else 1)
    first = loan.message.nonce
    del loan
    assert (obs == 5).all()

    del obs
    for _ in range(3):
        other = lent(memories)
        assert other.message.nonce != first
        write(other, 6)
        filled(memories, other, HERE)
        del other
    os.write(told, b"x")

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(nonces(memories, 3)) == 1  # what came after the fork is used again


def test_none_is_lent_where_it_does_not_pay_or_nobody_shares() -> None:
    small = SpaceLayout.of(spaces.Box(0, 255, (60, 60), np.uint8))
    assert BatchMemories(small, 1000, shared=True).lend(128) is None
    assert BatchMemories(LAYOUT, N, shared=False).lend(T) is None
    assert BatchMemories(LAYOUT, 1, shared=True).lend(1) is None
    words = SpaceLayout.of(spaces.Text(1 << 14))
    assert BatchMemories(words, 1000, shared=True).lend(128) is None


@pytest.mark.parametrize("module", ["segments", "mmap"])
def test_no_room_is_said_once_and_rollouts_go_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: str, memories: BatchMemories
) -> None:
    failing = Mock(side_effect=OSError(28, "No space left on device"), MAP_PRIVATE=2)
    failing.create = failing.mmap = failing
    monkeypatch.setattr(batch_memory, module, failing)
    with caplog.at_level(logging.INFO):
        assert memories.lend(T) is None
        assert memories.lend(T) is None
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    monkeypatch.undo()


def test_none_is_lent_once_no_worker_has_used_it(memories: BatchMemories) -> None:
    loan = lent(memories)
    assert filled(memories, loan, HERE, ELSEWHERE) is None
    del loan
    loan = lent(memories)
    assert filled(memories, loan, ELSEWHERE, ELSEWHERE) is None
    assert memories.lend(T) is None


def test_arrays_outlive_the_run(memories: BatchMemories) -> None:
    loan = lent(memories)
    write(loan, 4)
    filled(memories, loan, HERE)
    memories.close()
    assert memories.lend(T) is None
    assert (loan.obs[0] == 4).all()
    loan.obs[0][...] = 5


def test_array_over_memory_has_the_size_that_was_told() -> None:
    nbytes = size_of(LAYOUT, T, N)
    leaves = leaves_in(memoryview(bytearray(nbytes)), LAYOUT, T, N)
    assert nbytes == in_place.LINE + leaves[0].nbytes
