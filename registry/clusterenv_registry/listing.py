"""What people and programs are shown of an environment or a backend in the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterenv_registry.catalogue import Catalogue
from clusterenv_registry.entry import GYMNASIUM, Backend, Entry, SpecSource
from clusterenv_registry.errors import RegistryError

SHOWN_NAMES = 4
"""Of a backend's environments, in a line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """All that is known without building an environment."""

    name: str
    owner: str
    source: str
    backend: str = GYMNASIUM
    observation_space: str | None = None
    action_space: str | None = None
    env_names: Sequence[str] | None = None
    """Of a backend, its environments, if it tells them."""
    missing: str | None = None
    """What has to be done before it can be used."""

    def line(self) -> str:
        """The same in words, but for the name."""
        parts = [self.owner if self.source in (self.name, "") else f"{self.owner}: {self.source}"]
        if self.backend == self.name:
            parts.append(f"a backend; {self._names()}" if self.missing is None else "a backend")
        if self.observation_space is not None:
            parts.append(f"{self.observation_space} -> {self.action_space}")
        if self.missing is not None:
            parts.append(f"needs: {self.missing}")
        return "; ".join(parts)

    def _names(self) -> str:
        if self.env_names is None:
            return f"its environments are {self.name}:NAME"
        some = ", ".join(f"{self.name}:{name}" for name in self.env_names[:SHOWN_NAMES])
        more = len(self.env_names) - SHOWN_NAMES
        return some if more <= 0 else f"{some} and {more} others"


def listed(catalogue: Catalogue) -> Iterator[Listed]:
    """Every backend, those of our plugins that are not installed too, and every environment."""
    from clusterenv_registry.backends import OWN, install

    yield from map(_backend, catalogue.backends)
    for name in sorted(OWN.keys() - {backend.name for backend in catalogue.backends}):
        yield Listed(name=name, owner=OWN[name], source="", backend=name, missing=install(name))
    yield from map(_entry, catalogue.entries)


def _backend(backend: Backend) -> Listed:
    from clusterenv_registry.backends import env_names

    names, missing = None, None
    try:
        names = env_names(backend.source)
    except RegistryError as error:
        missing = str(error)
    return Listed(
        name=backend.name,
        owner=backend.owner,
        source=str(backend.source),
        backend=backend.name,
        env_names=names,
        missing=missing,
    )


def _entry(entry: Entry) -> Listed:
    return Listed(
        name=entry.name,
        owner=entry.owner,
        source=str(entry.source),
        observation_space=entry.found.get("observation_space"),
        action_space=entry.found.get("action_space"),
        missing=_missing(entry),
    )


def _missing(entry: Entry) -> str | None:
    """The command that installs what the environment needs."""
    from clusterenv_registry.loading import install_command

    return install_command(entry.source.spec) if isinstance(entry.source, SpecSource) else None
