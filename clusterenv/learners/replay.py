"""A replay buffer: the newest transitions, in a file with which a run goes on, and what draws from it."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ConfigError

Rows = NDArray[np.void]
"""Records [n] of a buffer's dtype."""

REPLAY_FILE = "replay"
"""In the folder of a run that was given no other file."""

MAGIC = b"clusterenv replay 2\n"
IDENTITY_AT, COUNTERS_AT, DESCRIPTION_AT, ROWS_AT = 32, 64, 128, 4096
"""Bytes at which a file has its 16 random bytes, its two counters, what is in it as JSON, and the rows."""


class Replay:
    """The newest rows of a structured dtype, at most `capacity`, sampled uniformly; a ring in a mapped file.

    Rows are numbered from the first that was ever added; those from `first` up to `end` are there. Before new
    rows overwrite old ones `first` says so, and `end` counts them when they are written. So when a process
    is killed, its file holds whole rows, all but those of the `add` under way. The ring has room for `spare`
    rows more than count, so that after as many the rows of a milestone are still all there. Files are for the
    machine that wrote them; after a power cut, what was there at the last milestone is.
    """

    def __init__(self, capacity: int, dtype: np.dtype[Any], path: Path, *, spare: int = 0) -> None:
        """What the file at `path` holds; an empty one is made if there is none.

        Raises:
            ConfigError: if the file is no buffer of these rows and this capacity, has less to spare, is in
                use by another run, or cannot be made.
        """
        if not path.exists():
            _make(path, capacity, dtype, spare)
        self._capacity = capacity
        self._path = path
        self._file = path.open("r+b")
        try:
            ring = _check(path, self._file.fileno(), capacity, dtype, spare)
        except ConfigError:
            self._file.close()
            raise
        self._memory = mmap.mmap(self._file.fileno(), 0)
        self._identity = self._memory[IDENTITY_AT : IDENTITY_AT + 16].hex()
        self._counters = np.frombuffer(self._memory, np.int64, count=2, offset=COUNTERS_AT)
        self._rows = np.frombuffer(self._memory, dtype, count=ring, offset=ROWS_AT)

    def __enter__(self) -> Replay:
        """The buffer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def first(self) -> int:
        """Number of the oldest row."""
        return int(self._counters[0])

    @property
    def end(self) -> int:
        """Number of the next row."""
        return int(self._counters[1])

    def __len__(self) -> int:
        """Rows that can be sampled."""
        return self.end - self.first

    def add(self, rows: Rows) -> None:
        """The buffer holds `rows`; the oldest make room for them."""
        ring = len(self._rows)
        rows = rows[-ring:]
        end = self.end + len(rows)
        self._counters[0] = max(self.first, end - self._capacity)
        start = self.end % ring
        until_turn = min(len(rows), ring - start)
        self._rows[start : start + until_turn] = rows[:until_turn]
        self._rows[: len(rows) - until_turn] = rows[until_turn:]
        self._counters[1] = end

    def sample(self, size: int, generator: np.random.Generator) -> Rows:
        """`size` rows, each drawn from all, in memory of their own."""
        numbers = generator.integers(self.first, self.end, size)
        sampled: Rows = self._rows[numbers % len(self._rows)]
        return sampled

    def in_order(self) -> Rows:
        """All rows, the oldest first, in memory of their own."""
        rows: Rows = self._rows[np.arange(self.first, self.end) % len(self._rows)]
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Which rows of which file are there; they are on disk."""
        self._memory.flush()
        return {"file": self._identity, "first": self.first, "end": self.end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The rows are those that `state_dict` told of; later ones are forgotten.

        Raises:
            ConfigError: if the file is another, or some of them were overwritten.
        """
        first, end = state["first"], state["end"]
        if self._identity != state["file"] or end > self.end or self.end - len(self._rows) > first:
            expected = f"the file in which the run to resume had its transitions {first} to {end - 1}"
            raise ConfigError("replay_file", str(self._path), expected)
        self._counters[:] = first, end

    def close(self) -> None:
        """Another run may have the file; the buffer cannot be used any more."""
        if not self._file.closed:
            self._memory.flush()
            del self._counters, self._rows
            self._memory.close()
            self._file.close()


class Sampler:
    """Draws the batches to learn from: so many transitions for each one that was collected."""

    def __init__(self, *, seed: int, batch_size: int, replay_ratio: float, learning_starts: int) -> None:
        """Nothing was drawn."""
        self._generator = np.random.default_rng(seed)
        self._batch_size = batch_size
        self._replay_ratio = replay_ratio
        self._learning_starts = learning_starts
        self._owed = 0.0  # transitions to learn from

    def batches(self, replay: Replay, collected: int) -> Iterator[Rows]:
        """What is to be learnt from once `collected` more transitions are in the buffer."""
        if len(replay) >= self._learning_starts:
            self._owed += collected * self._replay_ratio
        while self._owed >= self._batch_size:
            self._owed -= self._batch_size
            yield replay.sample(self._batch_size, self._generator)

    def state_dict(self) -> dict[str, Any]:
        """What is owed, and the generator."""
        return {"owed": self._owed, "generator": json.dumps(self._generator.bit_generator.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._owed = state["owed"]
        self._generator.bit_generator.state = json.loads(state["generator"])


def _description(capacity: int, dtype: np.dtype[Any]) -> bytes:
    return json.dumps({"capacity": capacity, "rows": dtype.descr}).encode()


def _make(path: Path, capacity: int, dtype: np.dtype[Any], spare: int) -> None:
    """An empty buffer is at `path`, in one move, with all the room that it will need."""
    description = _description(capacity, dtype)
    assert DESCRIPTION_AT + len(description) < ROWS_AT, "rows have too many columns"
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            size = ROWS_AT + (capacity + spare) * dtype.itemsize
            os.posix_fallocate(file.fileno(), 0, size)  # else SIGBUS later
            file.write(MAGIC)
            file.seek(IDENTITY_AT)
            file.write(os.urandom(16))
            file.seek(DESCRIPTION_AT)
            file.write(description)
        unfinished.replace(path)
    except OSError as error:
        room = f"room for {capacity} rows and those between two milestones, {spare}"
        expected = f"a file that can be made ({error.strerror}) with {room}"
        raise ConfigError("replay_file", str(path), expected) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _check(path: Path, descriptor: int, capacity: int, dtype: np.dtype[Any], spare: int) -> int:
    """The file is ours alone, and is what it is taken for; returns how many rows have room in it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError("replay_file", str(path), "a file that no other run uses") from error
    head = os.pread(descriptor, ROWS_AT, 0)
    if not head.startswith(MAGIC):
        raise ConfigError("replay_file", str(path), "a file that `clusterenv train` made")
    wanted = _description(capacity, dtype)
    if head[DESCRIPTION_AT:].rstrip(b"\0") != wanted:
        seen = head[DESCRIPTION_AT:].rstrip(b"\0").decode(errors="replace")
        raise ConfigError("replay_file", str(path), f"one of {wanted.decode()}, not of {seen}")
    ring, cut = divmod(os.fstat(descriptor).st_size - ROWS_AT, dtype.itemsize)
    if cut or ring < capacity:
        raise ConfigError("replay_file", str(path), "a whole file, which this is not")
    if ring < capacity + spare:
        expected = (
            f"a file with room for the {spare} rows between two milestones, not for {ring - capacity}: "
            f"give another, or a checkpoint_every smaller by {capacity + spare - ring}"
        )
        raise ConfigError("replay_file", str(path), expected)
    return ring
