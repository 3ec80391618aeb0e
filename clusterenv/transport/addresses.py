"""At which addresses other hosts may reach this one, most likely first."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from clusterenv.errors import ConnectError, LaunchError

LOOPBACK = "127.0.0.1"

_VIRTUAL = ("br-", "cali", "cni", "docker", "flannel", "lxc", "podman", "veth", "virbr")
"""Beginnings of the names of interfaces that lead to containers and virtual machines of this host."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one network interface."""

    name: str
    address: str
    up: bool = True

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address, as a number."""
        return ipaddress.ip_address(self.address)

    def __str__(self) -> str:
        """Name and address, for an error."""
        return f"{self.name} {self.address}{'' if self.up else ' (down)'}"


def candidate_addresses(selection: str | None = None) -> list[str]:
    """Addresses to offer to workers on other hosts; never loopback.

    Args:
        selection: name of an interface ("ib0"), an address ("10.1.2.3") or a subnet ("10.1.0.0/16"); none:
            all interfaces.

    Raises:
        LaunchError: if there is none; lists the interfaces.
    """
    return choose(read_interfaces(), selection, preferred=_default_route_address())


def choose(interfaces: Sequence[Interface], selection: str | None, *, preferred: str | None) -> list[str]:
    """The addresses of `interfaces` that fit `selection`, `preferred` first among equals."""
    usable = [item for item in interfaces if item.up and not _is_local(item)]
    chosen = [item for item in usable if selection is None or _fits(item, selection)]
    if not chosen:
        what = (
            "no network interface of this host"
            if selection is None
            else f"no interface fits {selection!r} that"
        )
        listed = ", ".join(map(str, interfaces)) or "none"
        raise LaunchError(f"{what} can be reached from other hosts; the interfaces are: {listed}")
    chosen.sort(
        key=lambda item: (
            item.ip.is_link_local,
            _is_virtual(item),
            item.address != preferred,
            item.ip.version,
        )
    )
    return list(dict.fromkeys(item.address for item in chosen))


def source_addresses(selection: str) -> list[str]:
    """Addresses of this host that a connection may come from, those of loopback too.

    Args:
        selection: as in `candidate_addresses`.

    Raises:
        ConnectError: if there is none; lists the interfaces.
    """
    interfaces = read_interfaces()
    if _is_own_address(selection):  # all of 127.0.0.0/8 is, though no interface lists it
        return [selection]
    chosen = [item.address for item in interfaces if item.up and _fits(item, selection)]
    if not chosen:
        listed = ", ".join(map(str, interfaces)) or "none"
        raise ConnectError(
            f"no interface of {socket.gethostname()} fits worker_interface {selection!r}; they are: {listed}"
        )
    return list(dict.fromkeys(chosen))


def from_source(target: str, sources: Sequence[str]) -> str | None:
    """The endpoint `target` as ZeroMQ connects to it from the first of `sources` that can; None: none can."""
    if not sources:
        return target
    is_v6 = "[" in target
    source = next((address for address in sources if (":" in address) == is_v6), None)
    return None if source is None else f"{endpoint(source, 0)};{target.removeprefix('tcp://')}"


def endpoint(address: str, port: int | str) -> str:
    """The address as ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def read_interfaces() -> list[Interface]:
    """All IPv4 and IPv6 addresses of this host."""
    states = psutil.net_if_stats()
    return [
        Interface(name, item.address.split("%")[0], name in states and states[name].isup)
        for name, items in psutil.net_if_addrs().items()
        for item in items
        if item.family in (socket.AF_INET, socket.AF_INET6)
    ]


def is_own_endpoint(text: str) -> bool:
    """Whether the address of an endpoint, as ZeroMQ writes it, is one of this host."""
    return _is_own_address(text.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def _fits(item: Interface, selection: str) -> bool:
    if item.name == selection:
        return True
    try:
        return item.ip in ipaddress.ip_network(selection, strict=False)
    except ValueError:  # the name of an interface
        return False


def _is_own_address(selection: str) -> bool:
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(selection).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((selection, 0))
    except (ValueError, OSError):  # the name of an interface, a subnet, or an address of another host
        return False
    return True


def _is_local(item: Interface) -> bool:
    """Whether other hosts cannot use the address: loopback, or IPv6 that needs the name of an interface."""
    return item.ip.is_loopback or item.ip.is_unspecified or (item.ip.version == 6 and item.ip.is_link_local)


def _is_virtual(item: Interface) -> bool:
    return item.name.startswith(_VIRTUAL)


def _default_route_address() -> str | None:
    """The address from which this host would speak to the rest of the world; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # an address of a network reserved for documentation
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address
