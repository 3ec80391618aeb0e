"""Which runs this user has: those in the index, and those whose folders lie where runs are made."""

from __future__ import annotations

import enum
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterenv.errors import ClusterEnvError
from clusterenv.identity import Life
from clusterenv.launcher_config import SlurmConfig
from clusterenv.run_records import FOLDER_PREFIX, RunStatus, read_folder, read_index, strike

SILENT_S: Final = 60.0
"""Age of a report from which a head that cannot be looked at counts as silent."""
SHORT_ID: Final = 8
"""Digits of a run's id that are shown."""


class NoSuchRun(ClusterEnvError):
    """No run, or more than one, goes by the name that was given."""


class RunState(enum.StrEnum):
    """Where a run is in its life, as seen from this host."""

    RUNNING = "running"
    SILENT = "silent"
    """Its head is on a host that cannot be looked at from here, and has not reported for a while."""
    ELSEWHERE = "elsewhere"
    """Head and folder are on such a host: nothing can be told here but how it began."""
    DEAD = "dead"
    """Its head was killed; what it left may still be there."""
    ENDED = "ended"
    """It is over, and its logs are kept."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, what it last reported, and what has become of it."""

    status: RunStatus
    state: RunState
    reported: bool
    """Whether its folder can be read here; else all that is known is how it began."""

    @property
    def short_id(self) -> str:
        """Its id for people."""
        return self.status.run_id[:SHORT_ID]

    @property
    def folder(self) -> Path:
        """The folder of its keys and logs."""
        return Path(self.status.folder)

    @property
    def has_folder(self) -> bool:
        """Whether something is at its folder's path, or this user may not look."""
        try:
            return self.folder.exists()
        except OSError:
            return True

    @property
    def where(self) -> str:
        """Its head, for a sentence."""
        head = self.status.head
        return f"{self.status.script}, pid {head.pid} on {head.host}"


def find_runs(folders: Sequence[Path] | None = None) -> list[FoundRun]:
    """Every run of this user that can be seen from here, the oldest first.

    Entries of the index whose run is over and whose folder is gone are taken out of it.

    Args:
        folders: where run folders lie that the index need not name; none: where they are made by default.
    """
    found: dict[str, FoundRun] = {}
    for entry in read_index():
        status = read_folder(Path(entry.folder))
        run = look(status if status is not None and status.run_id == entry.run_id else entry)
        if run.state in (RunState.DEAD, RunState.ENDED) and not run.has_folder:
            strike(entry)
        else:
            found[entry.run_id] = run
    for folder in _run_folders(_usual_parents() if folders is None else folders):
        status = read_folder(folder)
        if status is not None:
            found.setdefault(status.run_id, look(status))
    return sorted(found.values(), key=lambda run: run.status.since)


def look(status: RunStatus) -> FoundRun:
    """What has become of the run that has reported `status`."""
    reported = read_folder(Path(status.folder)) is not None
    silent_s = time.time() - status.updated
    life = status.head.life
    if status.ended:
        state = RunState.ENDED
    elif life is Life.ALIVE:
        state = RunState.RUNNING
    elif life is Life.DEAD:
        state = RunState.DEAD
    elif not reported:
        state = RunState.ELSEWHERE
    else:
        state = RunState.SILENT if silent_s > SILENT_S else RunState.RUNNING
    return FoundRun(status, state, reported)


def again(run: FoundRun) -> FoundRun | None:
    """The run as it is now; None if nothing is left of its folder."""
    if not run.has_folder:
        return None
    status = read_folder(run.folder)
    return look(run.status if status is None or status.run_id != run.status.run_id else status)


def select(runs: Sequence[FoundRun], word: str | None) -> FoundRun:
    """The run that `word` names by the beginning of its id, its folder, or the folder's name.

    Without a word it is the only run there is.

    Raises:
        NoSuchRun: if there is none, or more than one; lists them.
    """
    fitting = [run for run in runs if word is None or _is_named(run, word)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(f"{run.short_id} ({run.where})" for run in fitting or runs) or "none"
    if word is None:
        raise NoSuchRun(f"say which run, by the beginning of its id; there are: {listed}")
    problem = f"{len(fitting)} runs go by {word!r}" if fitting else f"no run goes by {word!r}"
    raise NoSuchRun(f"{problem}; there are: {listed}")


def _is_named(run: FoundRun, word: str) -> bool:
    if not word:
        return False
    folder = run.folder
    return (
        run.status.run_id.startswith(word.lower()) or word == folder.name or Path(word).absolute() == folder
    )


def _usual_parents() -> list[Path]:
    parents = [Path(tempfile.gettempdir())]
    shared = SlurmConfig.shared_folder
    assert shared is not None
    with suppress(RuntimeError):  # this user has no home
        parents.append(Path(shared).expanduser())
    return parents


def _run_folders(parents: Sequence[Path]) -> Iterator[Path]:
    for parent in dict.fromkeys(parents):
        try:
            yield from sorted(parent.glob(f"{FOLDER_PREFIX}*"))
        except OSError:
            continue
