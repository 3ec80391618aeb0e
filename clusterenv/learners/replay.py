"""A replay buffer: the newest transitions, in memory or in a file from which a later run goes on."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ConfigError

Rows = NDArray[np.void]
"""Records [n] of a buffer's dtype."""

MAGIC = b"clusterenv replay 1\n"
COUNTERS_AT, DESCRIPTION_AT, ROWS_AT = 64, 128, 4096
"""Bytes at which a file has its two counters, what is in it as JSON, and the rows."""


class Replay:
    """A ring of rows [capacity] of a structured dtype, sampled uniformly.

    Rows are numbered from the first that was ever added; those from `first` up to `end` are there. Before new
    rows overwrite old ones `first` says so, and `end` counts them when they are written. So when a process
    is killed, its file holds whole rows, all but those of the `add` under way. Files are for the machine that
    wrote them; after a power cut, what was there at the last `flush` is.
    """

    def __init__(self, capacity: int, dtype: np.dtype[Any], path: Path | None = None) -> None:
        """An empty buffer; with `path`, what that file holds, which is made if it is not there.

        Raises:
            ConfigError: if the file is no buffer of these rows and this capacity, is in use by another run,
                or cannot be made.
        """
        self._dtype = dtype
        self._file = None
        if path is None:
            self._counters = np.zeros(2, np.int64)
            self._rows = np.zeros(capacity, dtype)
            return
        if not path.exists():
            _make(path, capacity, dtype)
        self._file = path.open("r+b")
        try:
            _check(path, self._file.fileno(), capacity, dtype)
        except ConfigError:
            self._file.close()
            raise
        self._memory = mmap.mmap(self._file.fileno(), 0)
        self._counters = np.frombuffer(self._memory, np.int64, count=2, offset=COUNTERS_AT)
        self._rows = np.frombuffer(self._memory, dtype, count=capacity, offset=ROWS_AT)

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
        capacity = len(self._rows)
        rows = rows[-capacity:]
        end = self.end + len(rows)
        self._counters[0] = max(self.first, end - capacity)
        start = self.end % capacity
        until_turn = min(len(rows), capacity - start)
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

    def flush(self) -> None:
        """A file on disk is what is in memory."""
        if self._file is not None:
            self._memory.flush()

    def close(self) -> None:
        """Another run may have the file; the buffer cannot be used any more."""
        if self._file is not None:
            self.flush()
            del self._counters, self._rows
            self._memory.close()
            self._file.close()
            self._file = None


def _description(capacity: int, dtype: np.dtype[Any]) -> bytes:
    return json.dumps({"capacity": capacity, "rows": dtype.descr}).encode()


def _make(path: Path, capacity: int, dtype: np.dtype[Any]) -> None:
    """An empty buffer is at `path`, in one move, with all the room that it will need."""
    description = _description(capacity, dtype)
    assert DESCRIPTION_AT + len(description) < ROWS_AT, "rows have too many columns"
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, ROWS_AT + capacity * dtype.itemsize)  # else SIGBUS later
            file.write(MAGIC)
            file.seek(DESCRIPTION_AT)
            file.write(description)
        unfinished.replace(path)
    except OSError as error:
        expected = f"a file that can be made ({error.strerror})"
        raise ConfigError("replay_file", str(path), expected) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _check(path: Path, descriptor: int, capacity: int, dtype: np.dtype[Any]) -> None:
    """The file is ours alone, and is what it is taken for."""
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
    if os.fstat(descriptor).st_size != ROWS_AT + capacity * dtype.itemsize:
        raise ConfigError("replay_file", str(path), "a whole file, which this is not")
