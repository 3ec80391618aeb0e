"""Names for environments: registered by hand, stored for a user, offered by plugins, or Gymnasium's own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterenv_registry.catalogue import register, resolve
    from clusterenv_registry.errors import (
        CheckError,
        MissingExtra,
        RegistrationError,
        RegistryError,
        SourceError,
        StoreError,
        UnknownEnvironment,
    )
    from clusterenv_registry.hookspecs import hookimpl

__all__ = [
    "CheckError",
    "MissingExtra",
    "RegistrationError",
    "RegistryError",
    "SourceError",
    "StoreError",
    "UnknownEnvironment",
    "hookimpl",
    "register",
    "resolve",
]

_HOMES = {"hookimpl": "hookspecs", "register": "catalogue", "resolve": "catalogue"}


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
