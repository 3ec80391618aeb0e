"""What runs tell of themselves: a small private file in the folder of each, and an index of them all.

Only files that belong to this user and that nobody else can write or read are believed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from clusterenv.identity import ProcessIdentity
from clusterenv.private_files import is_own_folder, read_private, write_private

STATUS_FILE: Final = "status.json"
CONNECTION_FILE: Final = "connection.json"
FOLDER_PREFIX: Final = "clusterenv-"
MOST_BYTES: Final = 1 << 25

FolderPath = Annotated[str, Meta(pattern=r"^/[^\0]*$", max_length=4095)]
LogPath = Annotated[str, Meta(pattern=r"^[^\0]*$", max_length=4095)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since 1970."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    rank: int
    state: str
    present: bool
    """Whether it is connected."""
    host: str | None
    job_id: str | None
    policy_lag: int
    steps: int
    steps_per_s: float
    kl: float | None
    sync_count: int
    restarts: int
    note: str
    """Why it waits, or else its last error."""
    log_path: LogPath


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as its head last wrote it."""

    run_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
    head: ProcessIdentity
    folder: FolderPath
    script: str
    notebook: bool
    env: str
    launcher: str
    clusters: str | None = None
    """Slurm's name of the cluster, where it is another than that of the head."""
    since: Moment
    updated: Moment
    """When all this was so."""
    ended: bool = False
    """Whether the run is over and only its logs are kept."""
    workers: list[WorkerStatus]

    def encoded(self) -> bytes:
        """As it lies in a file."""
        return msgspec.json.encode(self)

    @property
    def connection_path(self) -> Path:
        """The file from which its workers have the address of the head."""
        return Path(self.folder) / CONNECTION_FILE

    @property
    def index_path(self) -> Path:
        """Its entry in the index."""
        return index_folder() / f"{self.run_id}.json"


def index_folder() -> Path:
    """Where the runs of this user are listed: in $CLUSTERENV_HOME, else in the user's folder for state.

    The path begins with "~" if this user has no home.
    """
    home = os.environ.get("CLUSTERENV_HOME")
    try:
        if home:
            return Path(home).expanduser().absolute() / "runs"
        from platformdirs import user_state_path

        return user_state_path("clusterenv") / "runs"
    except RuntimeError:
        return Path(home or "~/.local/state/clusterenv") / "runs"


def write_status(folder: Path, status: RunStatus) -> None:
    """Replace what the run in `folder` tells of itself.

    Raises:
        OSError: if it cannot be written.
    """
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a link has taken the place of the run's folder", str(folder))
    write_private(folder / STATUS_FILE, status.encoded(), durable=False)


def enter(status: RunStatus) -> None:
    """List the run in the index.

    Raises:
        OSError: if it cannot be written.
    """
    path = status.index_path
    if not path.is_absolute():
        raise FileNotFoundError(errno.ENOENT, "this user has no home", str(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, status.encoded(), durable=False)


def strike(status: RunStatus) -> None:
    """Take the run out of the index; never raises."""
    with suppress(OSError):
        status.index_path.unlink(missing_ok=True)


def read_folder(folder: Path) -> RunStatus | None:
    """What the run in `folder` tells of itself; None if there is none that can be believed."""
    if not (folder.name.startswith(FOLDER_PREFIX) and is_own_folder(folder)):
        return None
    status = _read(folder / STATUS_FILE)
    return status if status is not None and status.folder == str(folder) else None


def read_index() -> Iterator[RunStatus]:
    """The runs in the index, as they were when they began."""
    folder = index_folder()
    try:
        paths = sorted(folder.glob("*.json")) if folder.is_absolute() else []
    except OSError:
        return
    for path in paths:
        status = _read(path)
        if status is not None and status.run_id == path.stem:
            yield status


def _read(path: Path) -> RunStatus | None:
    try:
        return msgspec.json.decode(read_private(path, MOST_BYTES, own=True), type=RunStatus)
    except (OSError, ValueError):
        return None
