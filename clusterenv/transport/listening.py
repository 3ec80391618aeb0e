"""Open the head's socket where workers can reach it, and only those that hold the run's key."""

from __future__ import annotations

import errno
from collections.abc import Iterable

import zmq

from clusterenv.errors import LaunchError
from clusterenv.transport.addresses import LOOPBACK, candidate_addresses, endpoint
from clusterenv.transport.curve import RunKeys
from clusterenv.transport.sockets import Socket, bounded_socket
from clusterenv.transport.zap import DOMAIN


def make_router(
    context: zmq.Context[Socket], keys: RunKeys, *, max_message_bytes: int, heartbeat_s: float
) -> Socket:
    """The head's socket, not bound yet; whom it lets in is decided by the Gatekeeper of `context`."""
    router = bounded_socket(context, zmq.ROUTER, max_message_bytes=max_message_bytes, heartbeat_s=heartbeat_s)
    router.setsockopt(zmq.BACKLOG, 1024)  # all workers of a large job may come at once
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.CURVE_SECRETKEY, keys.server_secret_key.encode())
    router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a gatekeeper nobody gets in, not everybody
    return router


def listen(
    router: Socket, port_range: tuple[int, int] | None, loopback_only: bool, interface: str | None
) -> list[str]:
    """Bind `router`, and return the endpoints that workers may try, most likely first.

    Raises:
        LaunchError: if no port of the range is free, or other hosts can reach no address of this one.
    """
    if loopback_only:
        return [endpoint(LOOPBACK, _bind(router, LOOPBACK, port_range))]
    candidates = candidate_addresses(interface)
    if any(":" in address for address in candidates):
        router.setsockopt(zmq.IPV6, 1)
    if interface is not None:
        return [endpoint(address, _bind(router, address, port_range)) for address in candidates]
    port = _bind(router, "*", port_range)
    return [endpoint(address, port) for address in candidates]


def _bind(router: Socket, address: str, port_range: tuple[int, int] | None) -> int:
    """The first free port of the range, or one that the system chose."""
    ports: Iterable[int | str] = ("*",) if port_range is None else range(port_range[0], port_range[1] + 1)
    for port in ports:
        try:
            router.bind(endpoint(address, port))
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or port_range is None:
                raise LaunchError(f"cannot listen on {address}, port {port}: {error.strerror}") from error
        else:
            return int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    raise LaunchError(f"all ports of port_range {port_range} are in use on this host")
