"""The file of environments that a user registered: one JSON document, changed under a lock and atomically."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clusterenv_registry.entry import (
    Broken,
    Entry,
    FileSource,
    ImportSource,
    as_item,
    check_name,
    from_item,
)
from clusterenv_registry.errors import RegistrationError, RegistryError, StoreError

FORMAT = 1
LOCK_TIMEOUT_S = 120.0
"""A live process holds it, since a dead one lets go; many at once on a busy machine take their time."""
FOUND: Final = ("sha256", "observation_space", "action_space")
"""What a check finds and an entry keeps."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The readable entries by name, and those that are not."""

    entries: dict[str, Entry]
    broken: tuple[Broken, ...]


def location() -> Path:
    """The file: in $CLUSTERENV_HOME, else in the user's data folder.

    The path begins with "~" if this user has no home.
    """
    home = os.environ.get("CLUSTERENV_HOME")
    try:
        if home:
            return Path(home).expanduser() / "environments.json"
        from platformdirs import user_data_path

        return user_data_path("clusterenv") / "environments.json"
    except RuntimeError:
        return Path(home or "~/.local/share/clusterenv") / "environments.json"


def read() -> Stored:
    """What is stored; a damaged file or entry is reported in `broken` and hides nothing else."""
    path = location()
    try:
        items = _items(path)
    except StoreError as error:
        return Stored({}, (Broken(f"file {path}", str(error).removeprefix(f"{path} ")),))
    entries: dict[str, Entry] = {}
    broken: list[Broken] = []
    for name, item in items.items():
        try:
            found = {key: str(item[key]) for key in FOUND if isinstance(item, dict) and key in item}
            entries[name] = Entry(check_name(name), from_item(item), f"file {path}", found)
        except RegistryError as error:
            broken.append(Broken(f"file {path}", str(error), name=name))
    return Stored(entries, tuple(broken))


def add(
    name: str,
    source: FileSource | ImportSource,
    found: Mapping[str, str] | None = None,
    *,
    replace: bool = False,
) -> None:
    """`name` stands for `source` from now on, for every process of this user.

    Args:
        name: what scripts say.
        source: where it comes from.
        found: what its check found, by the keys of `FOUND`.
        replace: whether `name` may stand for another source so far.

    Raises:
        RegistrationError: if it stands for another source and `replace` is false.
        StoreError: if the file cannot be read or written.
    """
    with _changing() as items:
        require_free(name, source, items, replace=replace)
        items[name] = {**as_item(source), **(found or {})}


def require_free(
    name: str, source: FileSource | ImportSource, items: Mapping[str, Any] | None = None, *, replace: bool
) -> None:
    """Return if `name` may stand for `source`, among `items` or else what is stored now.

    Raises:
        RegistrationError: if it stands for another source and `replace` is false.
        StoreError: if the file cannot be read.
    """
    check_name(name)
    items = _items(location()) if items is None else items
    if name in items and not replace and _shown(items[name]) != str(source):
        raise RegistrationError(
            f"{name!r} is already registered as {_shown(items[name])}; --replace makes it {source}"
        )


def remove(name: str) -> None:
    """`name` is no longer stored.

    Raises:
        RegistrationError: if it was not.
        StoreError: if the file cannot be read or written.
    """
    with _changing() as items:
        if name not in items:
            raise RegistrationError(f"{name!r} is not registered; there are: {', '.join(items) or 'none'}")
        del items[name]


def get(name: str) -> Entry:
    """The entry called `name`.

    Raises:
        RegistrationError: if there is none.
        StoreError: if it is damaged, or the file is.
    """
    stored = read()
    for broken in stored.broken:
        if broken.name in (name, None):
            raise StoreError(f"{name!r} in {broken.owner}: {broken.problem}")
    if name not in stored.entries:
        known = ", ".join(stored.entries) or "none"
        raise RegistrationError(f"{name!r} is not registered; there are: {known}")
    return stored.entries[name]


@contextlib.contextmanager
def _changing() -> Iterator[dict[str, Any]]:
    """The stored items under the lock; what the caller makes of them is written when the block ends well."""
    from filelock import FileLock, Timeout  # slow to import, and readers need no lock

    path = location()
    if path.parts[0].startswith("~"):
        raise StoreError(
            f"{path} cannot be made, since this user has no home; CLUSTERENV_HOME names a folder"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=LOCK_TIMEOUT_S, mode=0o600):
            items = _items(path)
            yield items
            _write(path, {"format": FORMAT, "environments": items})
    except Timeout as error:
        raise StoreError(f"{error.lock_file} was held by another process for {LOCK_TIMEOUT_S:g} s") from error
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be changed: {error}") from error


def _items(path: Path) -> dict[str, Any]:
    """The raw entries, damaged ones included, so that a change to one keeps the others."""
    if path.parts[0].startswith("~"):
        return {}
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}; mend it or delete it") from error
    if not isinstance(document, dict) or not isinstance(document.get("environments"), dict):
        raise StoreError(f"{path} holds no registered environments; mend it or delete it")
    if document.get("format") != FORMAT:
        raise StoreError(
            f"{path} has format {document.get('format')!r} and this ClusterEnv reads format {FORMAT}; "
            "use the newer ClusterEnv, or set CLUSTERENV_HOME to another folder"
        )
    return dict(document["environments"])


def _write(path: Path, document: dict[str, Any]) -> None:
    handle, scratch = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _shown(item: object) -> str:
    try:
        return str(from_item(item))
    except RegistrationError as error:
        return str(error)
