"""Find the endpoint at which the head answers, and say for each of the others what failed."""

from __future__ import annotations

import random
import secrets
import socket
import struct
import time
from collections.abc import Sequence

import zmq

from clusterenv.errors import ConnectError
from clusterenv.transport.addresses import from_source, source_addresses
from clusterenv.transport.curve import Connection
from clusterenv.transport.sockets import ROUTING_ID_BYTES, Socket, bounded_socket, has_message

_HEAD_START_S = 0.25
"""How long a more likely endpoint is tried before the next one joins in."""

_REFUSED_PATIENCE_S = 2.0
"""Once an endpoint has refused us, the others have this long to do better."""

_RETRY_S = (0.5, 1.0)
"""Least and most time before an endpoint is tried again."""

_NEVER_MS = 3_600_000
"""ZeroMQ's own reconnecting would hide refusals and lose messages in silence; we try again ourselves."""

_EVENTS = {
    zmq.EVENT_CONNECTED: "it takes connections but does not answer",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the head refused the key of this worker, which belongs to another run",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there is no ClusterEnv head",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it refused the handshake: another run, or no ClusterEnv head",
    zmq.EVENT_CLOSED: "unreachable",
    zmq.EVENT_CONNECT_RETRIED: "unreachable",
    zmq.EVENT_DISCONNECTED: "it closed the connection: no ClusterEnv head, or one that is ending",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "connected",
}
_REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)
_UNREACHABLE = (zmq.EVENT_CLOSED, zmq.EVENT_CONNECT_RETRIED)


class Line:
    """One connection to one endpoint, made once and never made again, with what ZeroMQ tells of it."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        connection: Connection,
        endpoint: str,
        sources: Sequence[str],
        routing_id: bytes,
        failed_before: int | None = None,
    ) -> None:
        """Begin to connect, from one of `sources` if there are any.

        `failed_before` is the event that ended the try before this one.
        """
        self.endpoint = endpoint
        self._sources = sources
        self.routing_id = routing_id
        self.started = time.monotonic()
        self.retry_at = self.started + random.uniform(*_RETRY_S)  # jitter: a whole job may start at once
        self.event: int | None = None
        self.failed_before = failed_before
        self.refused = False
        self.socket = bounded_socket(
            context,
            zmq.DEALER,
            max_message_bytes=connection.max_message_bytes,
            heartbeat_s=connection.heartbeat_s,
        )
        self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self.socket.setsockopt(zmq.IPV6, 1)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, connection.server_public_key.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, connection.client_public_key.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, connection.client_secret_key.encode())
        self.monitor = self.socket.get_monitor_socket(sum(_EVENTS))
        try:
            self.socket.connect(from_source(endpoint, sources) or endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConnectError(
                f"{endpoint} is no address that can be connected to: {error.strerror}"
            ) from error

    @property
    def ready(self) -> bool:
        """Whether both sides have proven their keys."""
        return self.event == zmq.EVENT_HANDSHAKE_SUCCEEDED

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.event not in (None, zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def update(self) -> None:
        """Take note of what has happened to the connection."""
        while has_message(self.monitor):
            what, _ = self.monitor.recv_multipart(zmq.NOBLOCK)
            event = struct.unpack("=Hi", what)[0]
            if event in _EVENTS and not (self.refused and event not in _REFUSALS):
                self.event = event
                self.refused = self.refused or event in _REFUSALS

    def explain(self) -> str:
        """The endpoint and what failed there; asks the system where ZeroMQ does not tell."""
        event = self.failed_before if self.failed_before and not self.ended else self.event
        told = "no answer" if event is None else _EVENTS[zmq.Event(event)]
        if event in _UNREACHABLE:
            told = _plain_connect(self.endpoint, self._sources) or told
        return f"{self.endpoint}: {told}"

    def close(self, linger_s: float = 0.0) -> None:
        """Let go of the connection."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=int(linger_s * 1000))


def dial(
    context: zmq.Context[Socket],
    connection: Connection,
    endpoints: Sequence[str],
    timeout_s: float,
    routing_id: bytes | None = None,
) -> Line:
    """A line to the first endpoint at which the head of this run answers; with a random id unless given.

    Raises:
        ConnectError: when the time is up, or sooner if the key was refused; lists what failed where. At once
            if this host has no interface that the connection asks for.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    sources = [] if connection.interface is None else source_addresses(connection.interface)
    fitting = [each for each in endpoints if from_source(each, sources) is not None]
    if not fitting:
        raise ConnectError(
            f"no endpoint of the head ({', '.join(endpoints)}) has the family of worker_interface "
            f"{connection.interface!r}, which is {', '.join(sources)}"
        )
    lines: dict[str, Line] = {}
    try:
        while True:
            _start_lines(context, connection, fitting, sources, lines, routing_id)
            _wait_for_news(lines, deadline)
            ready = [line for line in lines.values() if line.ready]
            if ready:
                return lines.pop(ready[0].endpoint)
            refused = [line.started for line in lines.values() if line.refused]
            if refused:
                deadline = min(deadline, min(refused) + _REFUSED_PATIENCE_S)
            now = time.monotonic()
            if now >= deadline:
                failures = "".join(f"\n  {line.explain()}" for line in lines.values())
                raise ConnectError(f"the head was not reached in {now - started:.1f} s:{failures}")
    finally:
        for line in lines.values():
            line.close()


def _start_lines(
    context: zmq.Context[Socket],
    connection: Connection,
    endpoints: Sequence[str],
    sources: Sequence[str],
    lines: dict[str, Line],
    routing_id: bytes | None,
) -> None:
    """Try the next endpoint once those before it had a head start, and failed ones again after a while."""
    now = time.monotonic()
    for endpoint in endpoints:
        line = lines.get(endpoint)
        if line is not None and not (line.ended and not line.refused and now >= line.retry_at):
            if not line.ended and now - line.started < _HEAD_START_S:
                return
            continue
        failed_before = None
        if line is not None:
            failed_before = line.event
            line.close()
        own_id = routing_id or random_routing_id()
        lines[endpoint] = Line(context, connection, endpoint, sources, own_id, failed_before)


def _wait_for_news(lines: dict[str, Line], deadline: float) -> None:
    poller = zmq.Poller()
    for line in lines.values():
        poller.register(line.monitor, zmq.POLLIN)
    wait_s = min(_HEAD_START_S, deadline - time.monotonic())
    poller.poll(max(0, int(wait_s * 1000)))
    for line in lines.values():
        line.update()


def random_routing_id() -> bytes:
    """An id that no other worker has; it does not begin with the zero byte that ZeroMQ keeps for itself."""
    return b"w" + secrets.token_bytes(ROUTING_ID_BYTES - 1)


def _plain_connect(endpoint: str, sources: Sequence[str]) -> str | None:
    """Why a plain connection fails, in the system's words; ZeroMQ does not tell."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    source = next(((each, 0) for each in sources if (":" in each) == ("[" in host)), None)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=0.5, source_address=source):
            return None
    except (OSError, OverflowError) as error:  # the latter for a port above 65535
        return str(getattr(error, "strerror", None) or error)
