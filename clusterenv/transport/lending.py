"""Large frames of a worker on the head's own machine stay in memory that both have mapped.

The message says where. The worker writes there again only once nothing in the head refers to it; until memory
is free, or where none can be shared, frames travel as they do from any other machine.
"""

from __future__ import annotations

import logging
import struct
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterenv import segments
from clusterenv.errors import ProtocolError
from clusterenv.native import Slab
from clusterenv.transport.messages import Lend, Lent

LARGE_BYTES: Final = 1 << 16
"""Smaller frames cost less on the wire than what it takes to keep an account of them."""

MOST_PLACES: Final = 4
"""Messages of one worker that may lie in memory at a time."""

LINE: Final = 64
GIVEN_BACK: Final = 1
"""Word of the first line that only the head writes: the number of the last loan that it has given back."""

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
    """One that this worker lends."""

    def __init__(self, slab: Slab, segment: segments.Segment) -> None:
        super().__init__(slab)
        self.segment = segment
        self.accepted = False
        self.loans = 0

    @property
    def is_free(self) -> bool:
        """Whether the head has given the last loan back."""
        return int(self.words[GIVEN_BACK]) == self.loans


class Lender:
    """A worker's side. The head has to answer an offer first, so the first large message travels as ever."""

    def __init__(self, *, is_near: bool) -> None:
        """Lend nothing unless the head `is_near`, which is to say that it may be on this machine."""
        self._lends = is_near
        self._places: list[_Place] = []
        self._unsaid: Lend | None = None

    def lend(self, frames: Sequence[memoryview | bytes]) -> tuple[list[memoryview | bytes], bytes] | None:
        """The same frames with nothing in place of those that were lent, and what says where these lie.

        None where nothing is lent now.
        """
        large = [(number, frame) for number, frame in enumerate(frames) if len(frame) >= LARGE_BYTES]
        if not large or not self._lends:
            return None
        nbytes = sum(_in_lines(len(frame)) for _, frame in large)
        place = self._place_for(nbytes)
        if place is None:
            return None
        place.loans += 1
        left, start = list(frames), 0
        table = [LOAN.pack(place.segment.nonce, place.loans)]
        for number, frame in large:
            place.room[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
            table.append(FRAME.pack(number, start, len(frame)))
            left[number] = b""
            start += _in_lines(len(frame))
        return left, b"".join(table)

    def offer(self) -> Lend | None:
        """What to say to the head, once."""
        unsaid, self._unsaid = self._unsaid, None
        return unsaid

    def on_answer(self, answer: Lent) -> None:
        """The head has memory mapped, or cannot."""
        for place in self._places:
            if place.segment.nonce == answer.nonce:
                if answer.mapped:
                    place.accepted = True
                    place.slab.close_descriptor()
                else:
                    self._lends = False
                    self._places.clear()
                return

    def _place_for(self, nbytes: int) -> _Place | None:
        """Free memory with so much room; else more is offered, for later, if there may be any."""
        free = [place for place in self._places if place.accepted and place.is_free]
        for place in free:
            if len(place.room) >= nbytes:
                return place
        if any(not place.accepted for place in self._places):
            return None
        self._places = [place for place in self._places if place not in free]  # they are too small
        if len(self._places) < MOST_PLACES:
            try:
                slab, segment = segments.create(LINE + nbytes)
            except OSError as error:
                logger.info("frames travel, since memory to share cannot be had: %s", error)
                self._lends = False
            else:
                self._places.append(_Place(slab, segment))
                self._unsaid = Lend(**asdict(segment))
        return None


@dataclass(frozen=True, slots=True)
class _Account:
    """Memory that was offered, and by whom."""

    memory: _Memory
    offer: Lend


class Borrower:
    """The head's side, for all workers. On one thread, but for what gives memory back."""

    def __init__(self, *, borrows: bool) -> None:
        """Refuse every offer unless it `borrows`."""
        self._borrows = borrows
        self._accounts: dict[bytes, list[_Account]] = {}

    def on_offer(self, peer: bytes, offer: Lend) -> Lent:
        """Map what a worker offers, if that can be done from here."""
        self._forget_the_dead()
        mapped = False
        if self._borrows:
            segment = segments.Segment(
                pid=offer.pid, descriptor=offer.descriptor, nbytes=offer.nbytes, nonce=offer.nonce
            )
            try:
                account = _Account(_Memory(segments.attach(segment)), offer)
            except (OSError, ValueError) as error:
                logger.info("frames of a worker travel, since its memory cannot be mapped: %s", error)
            else:
                accounts = self._accounts.setdefault(peer, [])
                accounts.append(account)
                del accounts[:-MOST_PLACES]  # one that was too small is replaced by another
                mapped = True
        return Lent(nonce=offer.nonce, mapped=mapped)

    def fetch(self, peer: bytes, frames: Sequence[memoryview], table: memoryview) -> list[memoryview]:
        """The frames of a message, with those that were lent in their places; they cannot be written.

        Raises:
            ProtocolError: if `table` names what is not there.
        """
        if len(table) < LOAN.size or (len(table) - LOAN.size) % FRAME.size:
            raise ProtocolError(f"a table of lent frames of {len(table)} bytes")
        nonce, loan = LOAN.unpack_from(table)
        memory = next((a.memory for a in self._accounts.get(peer, ()) if a.offer.nonce == nonce), None)
        if memory is None:
            raise ProtocolError("frames in memory that was not offered")
        lease = memory.room[:]
        weakref.finalize(lease, memory.words.__setitem__, GIVEN_BACK, loan & ((1 << 63) - 1)).atexit = False
        view = lease.data.toreadonly()
        whole = list(frames)
        for number, start, nbytes in FRAME.iter_unpack(table[LOAN.size :]):
            if number >= len(frames) or len(frames[number]) or nbytes > len(lease) - min(start, len(lease)):
                raise ProtocolError(f"frame {number} of {nbytes} bytes is not where its message says")
            whole[number] = view[start : start + nbytes]
        return whole

    def _forget_the_dead(self) -> None:
        """Memory of workers that have ended is kept no longer than what refers to it."""
        for peer, accounts in list(self._accounts.items()):
            if not _is_there(account.offer.pid for account in accounts):
                del self._accounts[peer]


def _is_there(pids: Iterable[int]) -> bool:
    return all(Path(f"/proc/{pid}").exists() for pid in pids)


def _in_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
