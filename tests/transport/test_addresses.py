from __future__ import annotations

import pytest

from clusterenv.errors import ConnectError, LaunchError
from clusterenv.transport.addresses import (
    Interface,
    candidate_addresses,
    choose,
    endpoint,
    from_source,
    read_interfaces,
    source_addresses,
)

CLUSTER_NODE = [
    Interface("lo", "127.0.0.1"),
    Interface("lo", "::1"),
    Interface("docker0", "172.17.0.1"),
    Interface("eth0", "10.1.2.3"),
    Interface("eth0", "fd00::3"),
    Interface("eth0", "fe80::3"),
    Interface("ib0", "10.9.2.3"),
    Interface("eth1", "192.168.5.5", up=False),
]


def test_loopback_link_local_and_dead_addresses_are_never_offered() -> None:
    assert choose(CLUSTER_NODE, None, preferred=None) == ["10.1.2.3", "10.9.2.3", "fd00::3", "172.17.0.1"]


def test_address_of_the_default_route_comes_first() -> None:
    assert choose(CLUSTER_NODE, None, preferred="10.9.2.3")[0] == "10.9.2.3"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("ib0", ["10.9.2.3"]),
        ("eth0", ["10.1.2.3", "fd00::3"]),
        ("10.9.0.0/16", ["10.9.2.3"]),
        ("10.0.0.0/8", ["10.1.2.3", "10.9.2.3"]),
        ("10.1.2.3", ["10.1.2.3"]),
        ("fd00::/8", ["fd00::3"]),
    ],
)
def test_selection_is_a_name_an_address_or_a_subnet(selection: str, expected: list[str]) -> None:
    assert choose(CLUSTER_NODE, selection, preferred=None) == expected


@pytest.mark.parametrize("selection", ["lo", "127.0.0.0/8", "eth1", "192.168.5.5", "wlan0", "10.8.0.0/16"])
def test_selection_that_fits_nothing_lists_the_interfaces(selection: str) -> None:
    with pytest.raises(LaunchError, match=f"no interface fits '{selection}'.*eth0 10.1.2.3.*eth1 .*down"):
        choose(CLUSTER_NODE, selection, preferred=None)


def test_host_with_loopback_only_lists_its_interfaces() -> None:
    with pytest.raises(
        LaunchError, match=r"no network interface of this host can be reached .*lo 127\.0\.1\.1"
    ):
        choose([Interface("lo", "127.0.1.1")], None, preferred=None)


def test_host_without_interfaces_says_so() -> None:
    with pytest.raises(LaunchError, match="the interfaces are: none"):
        choose([], None, preferred=None)


def test_endpoint_of_ipv6_has_brackets() -> None:
    assert endpoint("10.1.2.3", 5000) == "tcp://10.1.2.3:5000"
    assert endpoint("fd00::3", 5000) == "tcp://[fd00::3]:5000"


def test_this_host_has_loopback_and_never_offers_it() -> None:
    assert "127.0.0.1" in {item.address for item in read_interfaces()}
    try:
        offered = candidate_addresses()
    except LaunchError:
        return  # a sandbox without a network
    assert not [address for address in offered if address.startswith("127.") or address == "::1"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("127.0.0.1", ["127.0.0.1"]), ("127.0.0.2", ["127.0.0.2"]), ("127.0.0.0/8", ["127.0.0.1"])],
)
def test_source_is_an_own_address_loopback_too(selection: str, expected: list[str]) -> None:
    assert source_addresses(selection) == expected


def test_source_may_be_the_name_of_an_interface() -> None:
    assert "127.0.0.1" in source_addresses("lo")


@pytest.mark.parametrize("selection", ["ib77", "203.0.113.7", "203.0.113.0/24"])
def test_source_that_is_not_here_is_answered_with_what_is(selection: str) -> None:
    with pytest.raises(ConnectError, match=rf"fits worker_interface '{selection}'; they are: .*lo 127.0.0.1"):
        source_addresses(selection)


@pytest.mark.parametrize(
    ("target", "sources", "expected"),
    [
        ("tcp://10.0.0.1:5", [], "tcp://10.0.0.1:5"),
        ("tcp://10.0.0.1:5", ["fd00::2", "10.0.0.2"], "tcp://10.0.0.2:0;10.0.0.1:5"),
        ("tcp://[fd00::1]:5", ["10.0.0.2", "fd00::2"], "tcp://[fd00::2]:0;[fd00::1]:5"),
        ("tcp://[fd00::1]:5", ["10.0.0.2"], None),
    ],
)
def test_source_of_the_same_family_stands_before_the_target(
    target: str, sources: list[str], expected: str | None
) -> None:
    assert from_source(target, sources) == expected
