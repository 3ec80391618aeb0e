"""Observations of a rollout that runners write where the learner reads them: each row once, in its column.

The head has memory for the whole batch (see `batch_memory`) and tells workers where; their runners map it.
"""

from __future__ import annotations

import logging
import math
import mmap
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterenv import segments
from clusterenv.layout import Leaf, SpaceLayout
from clusterenv.native import Slab
from clusterenv.segments import Segment

Array = NDArray[Any]

LINE: Final = 64
"""Bytes of which each leaf has a whole number; the first of them hold the nonce of the memory."""

LARGE_ROW_BYTES: Final = 1 << 12

MOST_MAPPED: Final = 4
"""Batches whose memory a runner keeps mapped, since pages that it knows cost nothing to write."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Place(Segment):
    """Where the memory of a batch is, and of which batch: `num_steps` of all `num_envs` of the run."""

    num_steps: int
    num_envs: int


def lies_in_place(leaf: Leaf) -> bool:
    """Whether a leaf may be there: numbers, any bytes of which are some; booleans and samples are checked."""
    return leaf.dtype.kind in "iufc"


def has_large_rows(layout: SpaceLayout) -> bool:
    """Whether an observation is so large that to copy it costs more than what saves the copy."""
    numbers = filter(lies_in_place, layout.leaves)
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in numbers) >= LARGE_ROW_BYTES


def size_of(layout: SpaceLayout, num_steps: int, num_envs: int) -> int:
    """Bytes of a batch's memory."""
    rows = (num_steps + 1) * num_envs
    return LINE + sum(_leaf_bytes(leaf, rows) for leaf in layout.leaves if lies_in_place(leaf))


def leaves_in(
    memory: memoryview | mmap.mmap, layout: SpaceLayout, num_steps: int, num_envs: int
) -> list[Array]:
    """Arrays [T + 1, N, *shape] over a batch's memory, one for each leaf of `layout` that lies there."""
    arrays, start = [], LINE
    for leaf in filter(lies_in_place, layout.leaves):
        shape = (num_steps + 1, num_envs, *leaf.shape)
        arrays.append(np.ndarray(shape, leaf.dtype, memory, start))
        start += _leaf_bytes(leaf, shape[0] * num_envs)
    return arrays


def _leaf_bytes(leaf: Leaf, rows: int) -> int:
    return -(-rows * leaf.dtype.itemsize * math.prod(leaf.shape) // LINE) * LINE


class MappedBatches:
    """A runner's side: the memory of the last batches."""

    def __init__(self) -> None:
        """Nothing is mapped."""
        self._slabs: dict[int, Slab] = {}  # by nonce, the last used last
        self._place: Place | None = None

    def maps(self, place: Place, layout: SpaceLayout) -> bool:
        """Whether `columns` are those of `place` from now on; what the head has given up is forgotten."""
        nbytes = size_of(layout, place.num_steps, place.num_envs)
        self._slabs = {nonce: slab for nonce, slab in self._slabs.items() if segments.holds(slab, nonce)}
        slab = self._slabs.pop(place.nonce, None)
        try:
            self._slabs[place.nonce] = slab or segments.attach(replace(place, nbytes=nbytes))
        except (OSError, ValueError) as error:
            logger.info("observations travel, since the memory of their batch cannot be mapped: %s", error)
            return False
        while len(self._slabs) > MOST_MAPPED:
            del self._slabs[next(iter(self._slabs))]
        self._place = place
        return True

    def columns(self, layout: SpaceLayout, env_ids: NDArray[np.int64]) -> list[Array]:
        """Leaves [T + 1, n, ...] for neighbouring environments; those that do not lie there are new."""
        place = self._place
        assert place is not None, "the memory was mapped"
        memory = self._slabs[place.nonce].memory
        there = iter(leaves_in(memory, layout, place.num_steps, place.num_envs))
        return [
            next(there)[:, env_ids[0] : env_ids[-1] + 1]
            if lies_in_place(leaf)
            else np.empty((place.num_steps + 1, len(env_ids), *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
