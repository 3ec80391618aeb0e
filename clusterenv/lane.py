"""Steps through memory that a head shares with the runners of a worker on its own machine.

The worker allocates it; the head writes actions, every runner what its own rows gave. What does not fit, and
errors, stay in the runner, which gives them to the worker when the head has asked for them in a message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterenv import segments
from clusterenv.batches import StepBatch
from clusterenv.errors import ProtocolError
from clusterenv.layout import SpaceLayout
from clusterenv.native import Doorbell, Slab
from clusterenv.segments import Segment

Array = NDArray[Any]

LINE: Final = 64
INFO_BYTES: Final = 1 << 16
"""Room for the infos of one runner, as bytes; those of a step with more take the other way."""
NONCE, SEQUENCE = range(2)
"""Words of the head's line, of which the first is the worker's."""
HERE, NUM_FINAL, NUM_INFO_BYTES, STEPS = range(4)
"""Words of a runner's line: whether its answer is all here; ended rows; bytes of infos; rows stepped ever."""

_Infos = tuple[list[bytes], list[bytes]]
_decoder = msgspec.msgpack.Decoder(_Infos)


class Lane:
    """The memory, as any of the three sides sees it: arrays of all n rows, and bells and words of runners."""

    def __init__(self, slab: Slab, layouts: tuple[SpaceLayout, SpaceLayout], slices: Sequence[slice]) -> None:
        """Over a slab of `size_of` the same layouts (observation, action) and slices, one for each runner."""
        self.slab = slab
        self.slices = list(slices)
        places = _Places(slab)
        self.head_words = places.array(np.int64, LINE // 8)
        self.words = [places.array(np.int64, LINE // 8) for _ in slices]
        self.asked, self.look, self.answered = ([places.bell() for _ in slices] for _ in range(3))
        obs, actions, n = *layouts, slices[-1].stop
        self.actions = [places.array(leaf.dtype, n, *leaf.shape) for leaf in actions.leaves]
        self.obs = [places.array(leaf.dtype, n, *leaf.shape) for leaf in obs.leaves]
        self.rewards = places.array(np.float64, n)
        self.terminations, self.truncations = places.array(np.bool_, n), places.array(np.bool_, n)
        self.final_index = places.array(np.int64, n)
        self.final_obs = [places.array(leaf.dtype, n, *leaf.shape) for leaf in obs.leaves]
        self.infos = [places.array(np.uint8, INFO_BYTES) for _ in slices]
        self.nbytes = places.end

    @classmethod
    def create(cls, layouts: tuple[SpaceLayout, SpaceLayout], slices: Sequence[slice]) -> Lane | None:
        """New memory; None where a batch has parts without a fixed size.

        Raises:
            OSError: if there is no room for it.
        """
        if any(layout.objects for layout in layouts):
            return None
        slab, _ = segments.create(size_of(layouts, slices))
        return cls(slab, layouts, slices)

    @classmethod
    def attach(
        cls, segment: Segment, layouts: tuple[SpaceLayout, SpaceLayout], slices: Sequence[slice]
    ) -> Lane:
        """The memory of another process of this machine.

        Raises:
            OSError: if it cannot be reached from here, or is not what `segment` says.
        """
        expected = size_of(layouts, slices)
        if segment.nbytes != expected:
            raise OSError(f"memory of {segment.nbytes} bytes; expected {expected}")
        return cls(segments.attach(segment), layouts, slices)

    @property
    def segment(self) -> Segment:
        """For `attach` elsewhere."""
        nonce = int(self.head_words[NONCE])
        return Segment(pid=os.getpid(), descriptor=self.slab.descriptor, nbytes=self.slab.nbytes, nonce=nonce)

    @property
    def sequence(self) -> int:
        """Number of the step that was asked for last."""
        return int(self.head_words[SEQUENCE])

    @property
    def steps(self) -> int:
        """Rows that runners have stepped."""
        return sum(int(words[STEPS]) for words in self.words)

    def is_busy(self, runner: int) -> bool:
        """Whether a runner has not answered what it was asked."""
        return self.asked[runner].count != self.answered[runner].count

    # --- the head's side --------------------------------------------------------------------------------

    def ask(self, sequence: int, leaves: Sequence[Array]) -> None:
        """All runners step with action leaves [n, ...]; none of them may be busy."""
        for place, leaf in zip(self.actions, leaves, strict=True):
            place[...] = leaf
        self.head_words[SEQUENCE] = sequence
        for asked, look in zip(self.asked, self.look, strict=True):
            asked.ring()
            look.ring()

    def wait(self, timeout_s: float) -> bool:
        """Whether all runners have answered within the time."""
        for asked, answered in zip(self.asked, self.answered, strict=True):
            seen = answered.count  # before it is compared, so that a ring in between is not slept over
            if asked.count != seen and not answered.wait(seen, timeout_s):
                return False
        return True

    @property
    def any_busy(self) -> bool:
        """Whether any runner has not answered what it was asked."""
        return any(self.is_busy(runner) for runner in range(len(self.slices)))

    def take(self) -> StepBatch | None:
        """What all runners have answered, as copies; None if some of it is not here.

        Raises:
            ProtocolError: if it cannot be read.
        """
        if not all(int(words[HERE]) for words in self.words):
            return None
        batch = StepBatch(
            obs=[leaf.copy() for leaf in self.obs],
            rewards=self.rewards.copy(),
            terminations=self.terminations.copy(),
            truncations=self.truncations.copy(),
            final_index=self.final_index[:0],
            final_obs=[leaf[:0] for leaf in self.final_obs],
        )
        rows: list[Array] = []
        for words, infos, part in zip(self.words, self.infos, self.slices, strict=True):
            num_final, num_info_bytes = int(words[NUM_FINAL]), int(words[NUM_INFO_BYTES])
            if not (0 <= num_final <= part.stop - part.start and 0 <= num_info_bytes <= INFO_BYTES):
                raise ProtocolError(f"{num_final} ended rows and {num_info_bytes} bytes of infos")
            rows.append(np.arange(part.start, part.start + num_final))
            if num_info_bytes:
                told, final = _read_infos(infos[:num_info_bytes].tobytes())
                batch.infos += told
                batch.final_infos += final
        ended = np.concatenate(rows)
        batch.final_index = self.final_index[ended]
        batch.final_obs = [leaf[ended] for leaf in self.final_obs]
        return batch

    # --- a runner's side --------------------------------------------------------------------------------

    def asked_actions(self, runner: int) -> list[Array]:
        """Action leaves [k, ...] of its rows, which stay as they are until it has answered."""
        return [leaf[self.slices[runner]] for leaf in self.actions]

    def answer(self, runner: int, batch: StepBatch | None) -> None:
        """`batch` is what the rows of a runner gave; None if the head has to ask for it elsewhere."""
        words = self.words[runner]
        words[HERE] = 0
        if batch is not None:
            words[STEPS] += len(batch.rewards)
            if not batch.rebuilt and not batch.lost:
                words[HERE] = self._write(runner, batch)
        self.answered[runner].ring()

    def _write(self, runner: int, batch: StepBatch) -> bool:
        """Whether there was room."""
        nothing = not batch.infos and not batch.final_infos
        infos = b"" if nothing else msgspec.msgpack.encode((batch.infos, batch.final_infos))
        if len(infos) > INFO_BYTES:
            return False
        part, words = self.slices[runner], self.words[runner]
        ended = slice(part.start, part.start + len(batch.final_index))
        for place, leaf in zip(self.obs, batch.obs, strict=True):
            place[part] = leaf
        self.rewards[part] = batch.rewards
        self.terminations[part] = batch.terminations
        self.truncations[part] = batch.truncations
        self.final_index[ended] = batch.final_index + part.start
        for place, leaf in zip(self.final_obs, batch.final_obs, strict=True):
            place[ended] = leaf
        self.infos[runner][: len(infos)] = np.frombuffer(infos, np.uint8)
        words[NUM_FINAL], words[NUM_INFO_BYTES] = len(batch.final_index), len(infos)
        return True


def size_of(layouts: tuple[SpaceLayout, SpaceLayout], slices: Sequence[slice]) -> int:
    """Bytes of a lane's memory."""
    obs, actions = layouts
    n, runners = slices[-1].stop, len(slices)
    leaves = [*actions.leaves, *obs.leaves, *obs.leaves]
    arrays = [n * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves]
    arrays += [8 * n, n, n, 8 * n]
    lines = LINE * (1 + runners) + runners * (3 * Doorbell.nbytes + INFO_BYTES)
    return lines + sum(map(_in_lines, arrays))


def _in_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _read_infos(block: bytes) -> _Infos:
    try:
        infos: _Infos = _decoder.decode(block)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"infos of a step in shared memory: {error}") from None
    return infos


class _Places:
    """Deals out a slab, line by line."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.end = 0

    def array(self, dtype: Any, *shape: int) -> Array:  # noqa: ANN401 - whatever names a dtype
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        start, self.end = self.end, self.end + _in_lines(count * kind.itemsize)
        if not count:
            return np.empty(shape, kind)
        return np.frombuffer(self._slab.memory, kind, count, start).reshape(shape)

    def bell(self) -> Doorbell:
        start, self.end = self.end, self.end + Doorbell.nbytes
        return Doorbell(self._slab, start)
