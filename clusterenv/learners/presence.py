"""Locks that tell of the learners of a run which one lives, is ready, and waits for the others.

A lock is free the moment its process ends, whatever ends it, and file servers keep them for all hosts.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

State = Literal["lives", "ready", "waits"]
TELL_AFTER_S = 1.0
"""A shorter wait is not told, so that what is done many times a second costs nothing."""


class Presence:
    """One learner's locks in the folder of all, and a look at those of the others.

    That it waits is told by a thread. So a learner that hangs is known, though nothing can be asked of it: it
    is the one that does not wait.
    """

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        """Nothing is told yet."""
        self._folder, self._rank, self._size = folder, rank, size
        self._ends = ExitStack()
        self._over = threading.Event()
        self._waits_since: float | None = None  # set by the learner's thread, read by `_tell_waits`

    def __enter__(self) -> Presence:
        """This learner lives."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ends.enter_context(self._told("lives"))
        teller = threading.Thread(target=self._tell_waits, name="clusterenv-learner-waits", daemon=True)
        teller.start()
        self._ends.callback(teller.join)
        self._ends.callback(self._over.set)
        return self

    def __exit__(self, *_: object) -> None:
        """For the others it has ended."""
        self._ends.close()

    def is_ready(self) -> None:
        """This learner has all that it needs to begin."""
        self._ends.enter_context(self._told("ready"))

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Around what ends when all learners have come to it; if it fails, this one goes on telling so."""
        self._waits_since = time.monotonic()
        yield
        self._waits_since = None

    def has_lost_another(self) -> None:
        """This learner is about to end, because it has lost another one."""
        with suppress(OSError):  # the folder goes with the first learner
            self._left(self._rank).touch()

    def to_blame(self, state: State) -> list[int]:
        """The others that do not tell `state`, but for those that end because they have lost one too."""
        return [rank for rank in self.others_not(state) if not self._left(rank).exists()]

    def others_not(self, state: State) -> list[int]:
        """The other learners that do not tell `state`."""
        return [rank for rank in range(self._size) if rank != self._rank and not self._is_told(state, rank)]

    def _tell_waits(self) -> None:
        with ExitStack() as told:
            telling = False
            while not self._over.wait(TELL_AFTER_S / 2):
                since = self._waits_since
                waits = since is not None and time.monotonic() - since >= TELL_AFTER_S
                if waits and not telling:
                    told.enter_context(self._told("waits"))
                elif not waits:
                    told.close()
                telling = waits

    @contextmanager
    def _told(self, state: State) -> Iterator[None]:
        with self._lock(state, self._rank).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _is_told(self, state: State, rank: int) -> bool:
        try:
            with self._lock(state, rank).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def _left(self, rank: int) -> Path:
        return self._folder / f"learner-{rank}.left"

    def _lock(self, state: State, rank: int) -> Path:
        return self._folder / f"learner-{rank}.{state}"
