"""Memory for observations of rollouts over local workers: it becomes the caller's arrays, and is used again.

The caller's mapping is private: nobody else sees what is written there, nor does the caller see what a forked
child writes. Memory returns when the last array over it is gone, so that a batch which is kept never changes.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from numpy.typing import NDArray

from clusterenv import segments
from clusterenv.batches import Fragment
from clusterenv.in_place import has_large_rows, leaves_in, size_of
from clusterenv.layout import SpaceLayout
from clusterenv.native import Slab
from clusterenv.segments import Segment
from clusterenv.transport import messages as m

Array = NDArray[Any]

LARGE_BATCH_BYTES: Final = 1 << 20
"""Smaller ones are copied together."""

MOST_LENT: Final = 4
"""Batches that the caller may have at a time in such memory; others are copied together as ever."""

MOST_FREE: Final = 2
"""Pieces of memory that wait for the next rollout."""

logger = logging.getLogger(__name__)


class _Forks:
    """How often this process has forked, since a child keeps the arrays that there were."""

    def __init__(self) -> None:
        self.count = 0
        self._is_watching = False

    def watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            os.register_at_fork(before=self._forked, after_in_parent=self._forked)

    def _forked(self) -> None:
        self.count += 1


_forks = _Forks()


@dataclass(slots=True, eq=False)
class _Memory:
    slab: Slab
    segment: Segment
    num_steps: int
    forks: int = 0
    """Of this process, when it was lent last."""
    is_settled: bool = False
    """Whether everyone who was told of it has answered since, and writes there no more."""


@dataclass(frozen=True, slots=True, eq=False)
class Loan:
    """Memory for one rollout."""

    message: m.BatchMemory
    """For workers."""
    obs: list[Array]
    """[T + 1, N, ...] of each leaf that lies there; the memory returns when they are gone, views included."""
    memory: _Memory


class BatchMemories:
    """What a run has of it. On the thread of the caller's calls, but for what arrays append that go."""

    def __init__(self, layout: SpaceLayout, num_envs: int, *, shared: bool) -> None:
        """For observations [N, ...] with `layout`; none unless workers share memory with this process."""
        self._layout = layout
        self._num_envs = num_envs
        self._lends = shared and has_large_rows(layout)
        self._free: list[_Memory] = []
        self._lent: dict[int, _Memory] = {}  # by nonce
        self._gone: deque[int] = deque()
        self._pid = os.getpid()
        if self._lends:
            _forks.watch()

    def lend(self, num_steps: int) -> Loan | None:
        """Memory for the next rollout, its values unset; None if it is not worth it, or not to be had."""
        if not self._lends or os.getpid() != self._pid:
            return None
        self._take_back()
        try:
            memory = self._memory_for(num_steps)
            if memory is None:
                return None
            segment = memory.segment
            mapping = mmap.mmap(memory.slab.descriptor, segment.nbytes, mmap.MAP_PRIVATE)
        except OSError as error:
            self._stop(f"memory for them cannot be had: {error}")
            return None
        memory.is_settled, memory.forks = False, _forks.count
        self._lent[segment.nonce] = memory
        weakref.finalize(mapping, self._gone.append, segment.nonce).atexit = False
        message = m.BatchMemory(**asdict(segment), num_envs=self._num_envs)
        return Loan(message, leaves_in(mapping, self._layout, num_steps, self._num_envs), memory)

    def filled(
        self, loan: Loan, fragments: Sequence[Fragment | None], told: Sequence[int]
    ) -> list[Array] | None:
        """Leaves [T + 1, N, ...] for the caller; None if fragments have to be copied together.

        The columns of a worker that has given none have to be cleared: it may live, and write there yet, but
        not to pages that were written here.

        Args:
            loan: where workers were to write.
            fragments: by rank; None of a worker that has given none.
            told: ranks of those who were told of the memory.
        """
        there = [fragment.in_place for fragment in fragments if fragment is not None]
        has_ended = all(fragments[rank] is not None for rank in told)
        loan.memory.is_settled = has_ended
        if there and has_ended and not any(there):
            self._stop("no worker can write into memory of the batch")
        return loan.obs if all(there) else None

    def close(self) -> None:
        """Nothing is left but what the caller has."""
        self._lends = False
        if os.getpid() == self._pid:
            for memory in self._free:
                segments.retire(memory.slab)
        self._free.clear()
        self._lent.clear()

    def _memory_for(self, num_steps: int) -> _Memory | None:
        for memory in self._free:
            if memory.num_steps == num_steps:
                self._free.remove(memory)
                return memory
        nbytes = size_of(self._layout, num_steps, self._num_envs)
        if nbytes < LARGE_BATCH_BYTES or len(self._lent) >= MOST_LENT:
            return None
        slab, segment = segments.create(nbytes)
        return _Memory(slab, segment, num_steps)

    def _take_back(self) -> None:
        while self._gone:
            memory = self._lent.pop(self._gone.popleft())
            if memory.is_settled and memory.forks == _forks.count:
                self._free.append(memory)
            else:
                segments.retire(memory.slab)
        while len(self._free) > MOST_FREE:
            segments.retire(self._free.pop(0).slab)

    def _stop(self, why: str) -> None:
        logger.info("observations of rollouts are copied into the batch: %s", why)
        self.close()
