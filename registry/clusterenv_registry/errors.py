"""What can go wrong between the name of an environment and its constructor."""

from __future__ import annotations


class RegistryError(Exception):
    """Root of every error that the registry raises on purpose."""


class UnknownEnvironment(RegistryError, LookupError):
    """No source offers the name; `suggestions` are the nearest names that exist."""

    def __init__(self, message: str, *, name: str = "", suggestions: tuple[str, ...] = ()) -> None:
        """Say `message`."""
        super().__init__(message)
        self.name = name
        self.suggestions = suggestions


class MissingExtra(RegistryError, ImportError):
    """The environment exists, but a package it needs is not installed; the message has the pip command."""


class RegistrationError(RegistryError, ValueError):
    """A name or a source cannot be registered as it is, or the name belongs to something else."""


class SourceError(RegistryError, ImportError):
    """The file or module of a registered environment cannot be loaded, or holds no such environment."""


class StoreError(RegistryError, OSError):
    """The file of registered environments cannot be read or written."""


class CheckError(RegistryError, ValueError):
    """An environment did not pass its check; `remote_traceback` is that of its own code."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        """Say `message`."""
        super().__init__(message)
        self.remote_traceback = remote_traceback
