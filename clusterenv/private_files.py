"""Files that only their user can read: written whole or not at all, and believed only if they are private."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import Final

from clusterenv.errors import ClusterEnvError

LAST_WRITES_S: Final = 3.0
"""How long a process that is being ended may still write into a folder that is being removed."""


class NotPrivate(ClusterEnvError, PermissionError):
    """A file or folder belongs to somebody else, or others may use it: says which and why."""


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Put `content` at `path`, whole or not at all, at no moment readable by others.

    Args:
        path: its folder exists; what is there is replaced in one move.
        content: the bytes.
        durable: return only when the disk has them.

    Raises:
        NotPrivate: if the file system does not keep the file private.
        OSError: if it cannot be written; nothing is left then.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            require_private(handle, path)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(handle)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_private(path: Path, most_bytes: int, *, own: bool = False) -> bytes:
    """The first `most_bytes` of the file at `path`.

    Args:
        path: no link is followed.
        most_bytes: what lies behind is not read.
        own: the file must belong to this user too.

    Raises:
        NotPrivate: if others may read it, or it belongs to somebody else where `own` is asked for.
        OSError: if it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        require_private(handle, path, own=own)
        return file.read(most_bytes)


def require_private(place: int | Path, path: Path, *, own: bool = False) -> None:
    """Return if only its owner may use what is at `place`, an open file or a path.

    Raises:
        NotPrivate: if not; it names `path`.
    """
    seen = os.fstat(place) if isinstance(place, int) else place.lstat()
    mode = stat.S_IMODE(seen.st_mode)
    if own and seen.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to user {seen.st_uid}, not to this one")
    if mode & 0o077:
        wanted = 0o700 if stat.S_ISDIR(seen.st_mode) else 0o600
        raise NotPrivate(
            f"{path} must be private but its mode is {mode:04o}; it must be {wanted:04o}: "
            f"`chmod {wanted:o}` it, or use a file system that keeps modes"
        )


def is_own_folder(path: Path) -> bool:
    """Whether `path` is a folder, no link to one, that belongs to this user and that no other may enter."""
    try:
        require_private(path, path, own=True)
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def remove_folder(folder: Path) -> bool:
    """Whether `folder` is gone, with all that is in it; what is being written meanwhile too. Never raises."""
    deadline = time.monotonic() + LAST_WRITES_S
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.is_dir() or folder.is_symlink():
            return not os.path.lexists(folder)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
