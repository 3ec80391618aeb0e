"""Large frames for a process of the same machine and user stay in memory that both have mapped.

A message says where. The sender writes there again only once nothing of the receiver's refers to it; until
memory is free, or where none can be shared, frames travel as they do between machines. Workers lend to a head
that is near, and runners to their worker.
"""

from __future__ import annotations

import logging
import struct
import weakref
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterenv import segments
from clusterenv.errors import ProtocolError
from clusterenv.native import Slab

LARGE_BYTES: Final = 1 << 16
"""Smaller frames cost less on the wire than what it takes to keep an account of them."""

MOST_PLACES: Final = 4
"""Messages of one sender that may lie in memory at a time."""

SPARE: Final = 8
"""Memory is larger by one part in so many than is needed at first: fragments differ in how many episodes end,
and memory that is too small has to be made anew."""

LINE: Final = 64
GIVEN_BACK: Final = 1
"""Word of the first line that only the receiver writes: number of the last loan that it has given back."""
DROPPED: Final = 2
"""Word of the first line that only the sender writes: not 0 once it lends this memory no more."""

LOAN = struct.Struct("<QQ")
"""Nonce of the memory, number of the loan in it."""
FRAME = struct.Struct("<IQQ")
"""Number of a frame in its message, where its bytes begin, and how many they are."""

Array = NDArray[Any]

logger = logging.getLogger(__name__)


class _Memory:
    """One segment, as either side sees it: a line of words, then room for the frames of one message."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.words = np.frombuffer(slab.memory, np.int64, LINE // 8)
        self.room = np.frombuffer(slab.memory, np.uint8, offset=LINE)


class _Place(_Memory):
    """One that this process lends."""

    def __init__(self, slab: Slab, segment: segments.Segment) -> None:
        super().__init__(slab)
        self.segment = segment
        self.accepted = False
        self.loans = 0

    @property
    def is_free(self) -> bool:
        """Whether the last loan was given back."""
        return int(self.words[GIVEN_BACK]) == self.loans


class Lender:
    """The sender's side. The receiver has to accept an offer first; what is sent before travels as ever."""

    def __init__(self, *, is_near: bool) -> None:
        """Lend nothing unless the receiver `is_near`, which is to say that it may be on this machine."""
        self.lends = is_near
        """Whether it is worth asking."""
        self._places: list[_Place] = []
        self._unsaid: segments.Segment | None = None

    def lend(self, frames: Sequence[memoryview | bytes]) -> tuple[list[memoryview | bytes], bytes] | None:
        """The same frames with nothing in place of those that were lent, and what says where these lie.

        None where nothing is lent now.
        """
        place = self._place_for([len(frame) for frame in frames])
        if place is None:
            return None
        place.loans += 1
        left, start = list(frames), 0
        table = [LOAN.pack(place.segment.nonce, place.loans)]
        for number, frame in enumerate(frames):
            if len(frame) < LARGE_BYTES:
                continue
            place.room[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
            table.append(FRAME.pack(number, start, len(frame)))
            left[number] = b""
            start += _in_lines(len(frame))
        return left, b"".join(table)

    def ask(self, sizes: Sequence[int]) -> segments.Segment | None:
        """What to offer to the receiver before frames of these sizes are sent, which need not travel then."""
        self._place_for(sizes)
        return self.offer()

    def offer(self) -> segments.Segment | None:
        """What to offer to the receiver, once."""
        unsaid, self._unsaid = self._unsaid, None
        return unsaid

    def on_answer(self, nonce: int, *, mapped: bool) -> None:
        """The receiver has mapped the memory with this nonce, or cannot."""
        for place in self._places:
            if place.segment.nonce == nonce:
                if mapped:
                    place.accepted = True
                    place.slab.close_descriptor()
                else:
                    self.lends = False
                    self._places.clear()
                return

    def is_waiting_for(self, segment: segments.Segment) -> bool:
        """Whether the receiver has not answered an offer."""
        return any(place.segment is segment and not place.accepted for place in self._places)

    def _place_for(self, sizes: Sequence[int]) -> _Place | None:
        """Free memory with room for large frames; else more is offered, for later, if there may be any."""
        nbytes = sum(_in_lines(size) for size in sizes if size >= LARGE_BYTES)
        if not nbytes or not self.lends:
            return None
        free = [place for place in self._places if place.accepted and place.is_free]
        for place in free:
            if len(place.room) >= nbytes:
                return place
        if any(not place.accepted for place in self._places):
            return None
        for place in free:  # they are too small
            place.words[DROPPED] = 1
        self._places = [place for place in self._places if place not in free]
        if len(self._places) < MOST_PLACES:
            try:
                slab, segment = segments.create(LINE + nbytes + nbytes // SPARE)
            except OSError as error:
                logger.info("frames travel, since memory to share cannot be had: %s", error)
                self.lends = False
            else:
                self._places.append(_Place(slab, segment))
                self._unsaid = segment
        return None


class Borrower:
    """The receiver's side, for any senders. On one thread, but for what gives memory back."""

    def __init__(self, *, borrows: bool) -> None:
        """Refuse every offer unless it `borrows`."""
        self._borrows = borrows
        self._memories: dict[Hashable, dict[int, tuple[segments.Segment, _Memory]]] = {}

    def accepts(self, sender: Hashable, segment: segments.Segment) -> bool:
        """Whether what `sender` offers could be mapped from here."""
        self._forget_the_dead()
        if not self._borrows:
            return False
        try:
            memory = _Memory(segments.attach(segment))
        except (OSError, ValueError) as error:
            logger.info("frames travel, since memory that was offered cannot be mapped: %s", error)
            return False
        kept = self._memories.get(sender, {}).items()
        memories = {nonce: known for nonce, known in kept if not known[1].words[DROPPED]}
        if len(memories) >= MOST_PLACES:
            logger.info("memory that was offered is not mapped: %d more is lent already", MOST_PLACES)
            return False
        self._memories[sender] = {**memories, segment.nonce: (segment, memory)}
        return True

    def fetch(self, sender: Hashable, frames: Sequence[memoryview], table: memoryview) -> list[memoryview]:
        """The frames of a message, with those that were lent in their places; they cannot be written.

        Raises:
            ProtocolError: if `table` names what is not there.
        """
        if len(table) < LOAN.size or (len(table) - LOAN.size) % FRAME.size:
            raise ProtocolError(f"a table of lent frames of {len(table)} bytes")
        nonce, loan = LOAN.unpack_from(table)
        known = self._memories.get(sender, {}).get(nonce)
        if known is None:
            raise ProtocolError("frames in memory that was not offered")
        _, memory = known
        lease = memory.room[:]
        weakref.finalize(lease, memory.words.__setitem__, GIVEN_BACK, loan & ((1 << 63) - 1)).atexit = False
        view = lease.data.toreadonly()
        whole = list(frames)
        for number, start, nbytes in FRAME.iter_unpack(table[LOAN.size :]):
            is_there = number < len(frames) and not len(frames[number]) and start % LINE == 0
            if not is_there or not LARGE_BYTES <= nbytes <= len(lease) - min(start, len(lease)):
                raise ProtocolError(f"frame {number} of {nbytes} bytes is not where its message says")
            whole[number] = view[start : start + nbytes]
        return whole

    def _forget_the_dead(self) -> None:
        """Memory of processes that have ended is kept no longer than what refers to it."""
        for sender, memories in list(self._memories.items()):
            if not all(Path(f"/proc/{segment.pid}").exists() for segment, _ in memories.values()):
                del self._memories[sender]


def _in_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
