"""The keys of a run and the file that takes them to its workers; only here do secrets touch a disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import zmq
from msgspec import Meta

from clusterenv.errors import ConnectError, LaunchError
from clusterenv.private_files import NotPrivate, require_private, write_private
from clusterenv.worker_start import CONNECTION_VARIABLE

MAX_MESSAGE_BYTES = 1 << 30
HEARTBEAT_S = 5.0
"""What a connection that does not say otherwise is held to."""

Key = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]
Endpoint = Annotated[str, Meta(pattern=r"^tcp://\S+:\d{1,5}$", max_length=256)]


@dataclass(frozen=True, slots=True)
class RunKeys:
    """One CURVE key pair for the head and one that all workers of the run share, as Z85 text."""

    server_public_key: str
    server_secret_key: str = field(repr=False)
    client_public_key: str
    client_secret_key: str = field(repr=False)

    @classmethod
    def generate(cls) -> RunKeys:
        """New keys.

        Raises:
            LaunchError: if this build of ZeroMQ cannot encrypt.
        """
        require_curve()
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return cls(*(key.decode() for key in (server_public, server_secret, client_public, client_secret)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """All that a worker needs to reach the head of its run, as it lies in the connection file."""

    run_id: Annotated[int, Meta(ge=0)]
    endpoints: Annotated[list[Endpoint], Meta(min_length=1, max_length=64)]
    server_public_key: Key
    client_public_key: Key
    client_secret_key: Key = field(repr=False)
    max_message_bytes: Annotated[int, Meta(ge=1)] = MAX_MESSAGE_BYTES
    heartbeat_s: Annotated[float, Meta(gt=0)] = HEARTBEAT_S
    interface: str | None = None
    """From where the worker connects: an interface, address or subnet of its host; none: as that routes."""

    @classmethod
    def for_worker(
        cls,
        keys: RunKeys,
        run_id: int,
        endpoints: Sequence[str],
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        heartbeat_s: float = HEARTBEAT_S,
        interface: str | None = None,
    ) -> Connection:
        """The workers' part of `keys`: the head's secret key stays with the head."""
        return cls(
            run_id=run_id,
            endpoints=list(endpoints),
            server_public_key=keys.server_public_key,
            client_public_key=keys.client_public_key,
            client_secret_key=keys.client_secret_key,
            max_message_bytes=max_message_bytes,
            heartbeat_s=heartbeat_s,
            interface=interface,
        )

    def write(self, path: Path) -> None:
        """Put the connection at `path`, whole or not at all, at no moment readable by others.

        Raises:
            LaunchError: if the folder cannot hold a private file.
        """
        try:
            write_private(path, msgspec.json.encode(self))
        except NotPrivate as error:
            raise LaunchError(f"it would hold keys: {error}") from error
        except OSError as error:
            raise LaunchError(f"cannot write the connection file {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> Connection:
        """The connection at `path`.

        Raises:
            ConnectError: if it cannot be read, others may read it, or it is no connection file.
        """
        try:
            file = path.open("rb")
        except OSError as error:
            raise ConnectError(f"cannot read the connection file {path}: {error.strerror}") from error
        with file:
            try:
                require_private(file.fileno(), path)
            except NotPrivate as error:
                raise ConnectError(f"it holds keys: {error}") from error
            return cls._parse(file.read(1 << 16), str(path))

    def to_env(self) -> dict[str, str]:
        """The environment variable that takes the connection to a worker."""
        return {CONNECTION_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Connection:
        """The connection in `environ`, which is this process's environment unless given.

        Raises:
            ConnectError: if it is not there or is no connection.
        """
        text = (os.environ if environ is None else environ).get(CONNECTION_VARIABLE)
        if text is None:
            raise ConnectError(f"no connection file was given and {CONNECTION_VARIABLE} is not set")
        return cls._parse(text.encode(), CONNECTION_VARIABLE)

    @classmethod
    def _parse(cls, text: bytes, origin: str) -> Connection:
        try:
            return msgspec.json.decode(text, type=cls)
        except ValueError as error:  # its text names a field, never a value
            raise ConnectError(f"{origin} does not hold a connection: {error}") from error


def require_curve() -> None:
    """Raise LaunchError unless this build of ZeroMQ can encrypt; ClusterEnv never talks without."""
    if not zmq.has("curve"):
        raise LaunchError(
            f"this build of ZeroMQ ({zmq.zmq_version()}) has no CURVE encryption, and ClusterEnv opens no "
            "port without; install pyzmq's own wheel: pip install --force-reinstall --only-binary :all: pyzmq"
        )
