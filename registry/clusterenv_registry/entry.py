"""A named environment and where it comes from, as plain data: nothing is imported or built here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from clusterenv_registry.errors import RegistrationError

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

GYMNASIUM = "gymnasium"
"""The backend that `type` names by default; no environment can have this name."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class CallableSource:
    """A class or function of this process that makes an environment, or a backend's vector."""

    factory: Callable[..., Any]

    def __str__(self) -> str:
        """`module:name` where the callable has one."""
        name = getattr(self.factory, "__qualname__", None)
        return f"{self.factory.__module__}:{name}" if name else repr(self.factory)


@dataclass(frozen=True, slots=True)
class ImportSource:
    """`package.module:Class`, imported when an environment is built."""

    target: str

    def __str__(self) -> str:
        """The target itself."""
        return self.target


@dataclass(frozen=True, slots=True)
class FileSource:
    """A Python file or the folder of a package, and what in it makes the environment.

    Without `attribute` that is the one environment class that it defines, or its function `make_env`.
    """

    path: str
    attribute: str | None = None

    def __str__(self) -> str:
        """As the command line takes it."""
        return f"{self.path}:{self.attribute}" if self.attribute else self.path

    @classmethod
    def parse(cls, text: str) -> FileSource:
        """The source that `file.py` or `folder`, perhaps with `:Class`, stands for, its path absolute.

        Raises:
            RegistrationError: if there is no such file or package, or `Class` is no name.
        """
        path_text, attribute = text, None
        if ":" in text and not Path(text).exists():
            path_text, _, attribute = text.rpartition(":")
            if not attribute.isidentifier():
                raise RegistrationError(f"{attribute!r} in {text!r} is no class name; expected file.py:Class")
        path = Path(path_text).expanduser().absolute()
        tidy = Path(os.path.normpath(path))
        if path.exists() and tidy.exists() and tidy.samefile(path):  # not where ".." leaves a link's target
            path = tidy
        is_package = (path / "__init__.py").is_file() and path.name.isidentifier()
        if not is_package and not (path.is_file() and path.suffix == ".py"):
            seen = "no package" if path.is_dir() else "not a Python file" if path.exists() else "missing"
            raise RegistrationError(
                f"{path} is {seen}; expected a .py file or the folder of a package, perhaps with :Class, "
                "or package.module:Class"
            )
        return cls(str(path), attribute)


@dataclass(frozen=True, slots=True)
class SpecSource:
    """A Gymnasium specification, and the module whose import registered it if the id named one."""

    spec: EnvSpec
    module: str | None = None

    def __str__(self) -> str:
        """The id, as `gymnasium.make` takes it."""
        return f"{self.module}:{self.spec.id}" if self.module else self.spec.id


Source: TypeAlias = CallableSource | ImportSource | FileSource | SpecSource


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment of the catalogue."""

    name: str
    source: Source
    owner: str
    """Who offers it, for people: a plugin, a file, Gymnasium, this process."""
    found: Mapping[str, str] = field(default_factory=dict)
    """What its check found when it was registered: its spaces, and the SHA-256 of its code."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What makes whole vectors of environments, and offers them under names of its own."""

    name: str
    source: CallableSource | ImportSource
    owner: str
    """Who offers it, for people."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that should have offered environments and could not: kept as data, never in the way."""

    owner: str
    problem: str
    name: str | None = None
    """The environment concerned, where that is known."""
    traceback: str = ""

    def __str__(self) -> str:
        """What is broken and how, in one sentence."""
        what = self.owner if self.name is None else f"{self.name!r} in {self.owner}"
        return f"{what} is broken ({self.problem})"


def stored_source(text: str) -> FileSource | ImportSource:
    """What a user may register for all scripts: a file, a package's folder, or "package.module:Class".

    Raises:
        RegistrationError: if `text` is none of these.
    """
    before = text.partition(":")[0]
    if _TARGET.fullmatch(text) and not before.endswith(".py") and not Path(before).exists():
        return ImportSource(text)
    return FileSource.parse(text)


def as_item(source: Source) -> dict[str, str | None]:
    """The source as JSON holds it.

    Raises:
        RegistrationError: if it belongs to this process and cannot be kept in a file.
    """
    if isinstance(source, ImportSource):
        return {"target": source.target}
    if isinstance(source, FileSource):
        return {"path": source.path, "attribute": source.attribute}
    raise RegistrationError(f"{source} belongs to this process; expected a file, a package or module:Class")


def from_item(item: object) -> FileSource | ImportSource:
    """The source that `as_item` turned into `item`.

    Raises:
        RegistrationError: if `item` is anything else.
    """
    if isinstance(item, dict):
        target, path, attribute = (item.get(name) for name in ("target", "path", "attribute"))
        if isinstance(target, str) and _TARGET.fullmatch(target):
            return ImportSource(target)
        if isinstance(path, str) and (attribute is None or isinstance(attribute, str)):
            return FileSource(path, attribute)
    raise RegistrationError(f"a damaged entry, {item!r}; remove it with --remove and register it again")


def source_of(value: object) -> Source:
    """The source that `value` stands for: a callable, an EnvSpec or "package.module:Class".

    Raises:
        RegistrationError: if it is none of these.
    """
    # Whoever holds an EnvSpec has imported Gymnasium, so this asks for no import of its own.
    registration = sys.modules.get("gymnasium.envs.registration")
    if registration is not None and isinstance(value, registration.EnvSpec):
        return SpecSource(value)
    if isinstance(value, str) and _TARGET.fullmatch(value):
        return ImportSource(value)
    if callable(value):
        return CallableSource(value)
    raise RegistrationError(
        f"an environment cannot be made from {value!r}; expected a class or function that returns a "
        'gymnasium.Env, a gymnasium EnvSpec, or "package.module:Class"'
    )


def backend_source(value: object) -> CallableSource | ImportSource:
    """The source of a backend's factory.

    Raises:
        RegistrationError: if `value` is neither a callable nor "package.module:factory".
    """
    if isinstance(value, str) and _TARGET.fullmatch(value):
        return ImportSource(value)
    if callable(value):
        return CallableSource(value)
    raise RegistrationError(
        f'a backend cannot be made from {value!r}; expected a factory of vectors or "package.module:factory"'
    )


def check_name(name: object) -> str:
    """`name`, if an environment may be called so.

    Raises:
        RegistrationError: if it may not.
    """
    if isinstance(name, str) and name != GYMNASIUM and _NAME.fullmatch(name):
        return name
    raise RegistrationError(
        f"an environment cannot be called {name!r}; expected letters, digits, '_', '-' and '.', in parts "
        f'divided by "/" that begin with none of the last two, and not "{GYMNASIUM}"'
    )
