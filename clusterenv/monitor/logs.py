"""The logs of a run's workers: their ends, and what is added to them."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clusterenv.launchers.base import end_of_log
from clusterenv.monitor.finding import FoundRun
from clusterenv.run_records import WorkerStatus

LOOK_EVERY_S: Final = 0.3
MOST_SHOWN: Final = 1 << 26
"""Bytes that are read of the end of a log, or of what was added to it since the last look."""

Say = Callable[[str], object]


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


@dataclass(slots=True)
class Log:
    """What a worker writes."""

    rank: int
    path: Path
    position: int = 0
    """Bytes that were shown, or skipped."""
    inode: int | None = None
    """Which file they were in."""
    decoder: codecs.IncrementalDecoder = field(default_factory=_decoder)
    """Keeps the beginning of a letter whose end is not yet written."""

    def added(self) -> str:
        """What is new since the last look; from the beginning if the file was written anew."""
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if file.seek(0, 2) < self.position or self.inode not in (None, inode):
                    self.position = 0
                    self.decoder.reset()
                self.inode = inode
                file.seek(self.position)
                new = file.read(MOST_SHOWN)
        except OSError:
            return ""
        self.position += len(new)
        return self.decoder.decode(new)

    def skip(self) -> None:
        """What is there now is not shown by `added`."""
        with suppress(OSError):
            seen = self.path.stat()
            self.position, self.inode = seen.st_size, seen.st_ino


def logs_of(run: FoundRun, rank: int | None) -> list[Log]:
    """The log of each worker, or of that of `rank`; of its job where a worker has not begun one."""
    workers = [worker for worker in run.status.workers if rank is None or worker.rank == rank]
    return [Log(worker.rank, _path(worker)) for worker in workers]


def _path(worker: WorkerStatus) -> Path:
    path = Path(worker.log_path)
    of_job = path.with_name(f"job-{worker.job_id}.log")
    with suppress(OSError):  # this user may not look there
        return of_job if worker.job_id and not path.exists() and of_job.exists() else path
    return path


def show(logs: Sequence[Log], lines: int, say: Say) -> None:
    """Show the last `lines` lines of each; with several, a title before each."""
    for log in logs:
        log.skip()
        if len(logs) > 1:
            say(_title(log))
        if lines == 0:
            continue
        text = end_of_log(log.path, lines, MOST_SHOWN)
        say(f"{text}\n" if text else f"(nothing is in {log.path} on this host)\n")


def follow(logs: Sequence[Log], say: Say, goes_on: Callable[[], bool]) -> None:
    """Show what is added to the logs for as long as `goes_on`, and what was added at its end."""
    shown = logs[-1]
    last = False
    while not last:
        last = not goes_on()
        for log in logs:
            text = log.added()
            if text and log is not shown:
                shown = log
                say(_title(log))
            if text:
                say(text)
        if not last:
            time.sleep(LOOK_EVERY_S)


def _title(log: Log) -> str:
    return f"==> worker {log.rank}: {log.path} <==\n"
