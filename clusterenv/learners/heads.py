"""One head at a time trains in a folder: who that is, and the end of what a killed one has left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from clusterenv.errors import ConfigError
from clusterenv.identity import Life, ProcessIdentity
from clusterenv.monitor.finding import find_runs
from clusterenv.monitor.stopping import Stopping

HEAD_FILE = "head.json"
MOST_BYTES = 1 << 16


def succeed(folder: Path) -> None:
    """Nothing is left of the head that trained in `folder` before: its workers and jobs are not taken over.

    Says on standard error what was found, and waits a few seconds for each of its runs at most.

    Raises:
        ConfigError: if that head lives.
    """
    former = _read(folder / HEAD_FILE)
    if former is None or former == ProcessIdentity.own():
        return
    where = f"pid {former.pid} on {former.host}"
    if former.life is Life.ALIVE:
        raise ConfigError("resume", str(folder), f"a run that has ended; its head ({where}) lives")
    if former.life is Life.ELSEWHERE:
        _say(f"the head before ({where}) cannot be looked at from here; its workers leave when it is gone\n")
        return
    runs = [run for run in find_runs() if run.status.head == former]
    left = "ending what it has left" if runs else "nothing is left of it"
    _say(f"the head before ({where}) was killed; {left}\n")
    if not Stopping(0.0, _say, force=False).stop(runs):
        _say("not all of it has ended; going on with workers of our own\n")


@contextmanager
def heading(folder: Path) -> Iterator[None]:
    """Meanwhile `folder` says that this process trains in it.

    Raises:
        ConfigError: if it takes no file.
    """
    try:
        (folder / HEAD_FILE).write_bytes(msgspec.json.encode(ProcessIdentity.own()))
    except OSError as error:
        expected = f"a folder in which files can be written ({error.strerror})"
        raise ConfigError("run_dir", str(folder), expected) from error
    try:
        yield
    finally:
        (folder / HEAD_FILE).unlink(missing_ok=True)


def _read(path: Path) -> ProcessIdentity | None:
    """Who is named at `path`; None if nobody is."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=ProcessIdentity)
    except (OSError, ValueError):
        return None


def _say(text: str) -> None:
    sys.stderr.write(text)
