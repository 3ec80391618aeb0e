"""A worker's side over real sockets: how it finds the head, what it says if it cannot, what it receives."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq

from clusterenv.errors import ConnectError, ProtocolError
from clusterenv.transport import Client, Connection, RunKeys
from clusterenv.transport import messages as m
from tests.transport.conftest import DEADLINE_S, RUN_ID, Run, StartRun

pytestmark = pytest.mark.process


def failure(connection: Connection, timeout_s: float) -> tuple[str, float]:
    """The text with which connecting fails, and the seconds that it took."""
    client = Client(connection, incarnation=0)
    started = time.monotonic()
    try:
        with pytest.raises(ConnectError) as caught:
            client.connect(timeout_s)
        return str(caught.value), time.monotonic() - started
    finally:
        client.close(0)


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def babbling_port() -> Iterator[int]:
    """A port whose owner speaks another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(b"SSH-2.0-OpenSSH_9.2 but this is far from ZeroMQ's greeting" * 4)
                    peer.settimeout(1)
                    with contextlib.suppress(OSError):
                        peer.recv(1 << 10)

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)


# --- connecting -----------------------------------------------------------------------------------------


def test_connect_finds_the_head_behind_endpoints_that_fail(
    run: Run, closed_port: int, mute_port: int
) -> None:
    endpoints = [f"tcp://127.0.0.1:{closed_port}", f"tcp://127.0.0.1:{mute_port}", *run.server.endpoints]
    started = time.monotonic()

    client = run.client(endpoints=endpoints)

    assert time.monotonic() - started < 5
    assert client.endpoint == run.server.endpoints[0]
    client.send(m.Ack(), sequence=1)
    assert run.get().sequence == 1


def test_connect_waits_for_a_head_that_comes_later(start_run: StartRun, closed_port: int) -> None:
    keys = RunKeys.generate()
    client = Client(Connection.for_worker(keys, RUN_ID, [f"tcp://127.0.0.1:{closed_port}"]), incarnation=0)
    connecting = threading.Thread(target=client.connect, args=(DEADLINE_S,))
    connecting.start()
    connecting.join(0.3)
    assert connecting.is_alive()

    run = start_run(keys=keys, port_range=(closed_port, closed_port))
    connecting.join(DEADLINE_S)

    client.send(m.Ack(), sequence=1)
    assert run.get().sequence == 1
    client.close(0)


def test_every_endpoint_that_failed_is_listed_with_its_reason(
    run: Run, closed_port: int, mute_port: int
) -> None:
    endpoints = [f"tcp://127.0.0.1:{closed_port}", f"tcp://127.0.0.1:{mute_port}"]

    text, took_s = failure(run.connection(endpoints=endpoints), 1.0)

    assert text.startswith("the head was not reached in 1.")
    assert f"tcp://127.0.0.1:{closed_port}: Connection refused" in text
    assert f"tcp://127.0.0.1:{mute_port}: it takes connections but does not answer" in text
    assert took_s < 3


def test_service_that_is_no_head_is_named_as_such(run: Run, babbling_port: int) -> None:
    text, took_s = failure(run.connection(endpoints=[f"tcp://127.0.0.1:{babbling_port}"]), 1)

    assert "it closed the connection: no ClusterEnv head, or one that is ending" in text
    assert took_s < 3


def test_zeromq_service_without_encryption_is_named_as_such(run: Run) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as plain:
        port = plain.bind_to_random_port("tcp://127.0.0.1")

        text, took_s = failure(run.connection(endpoints=[f"tcp://127.0.0.1:{port}"]), 60)

    assert "no ClusterEnv head" in text
    assert took_s < 5


def test_key_that_is_not_on_the_list_is_noticed_within_five_seconds(run: Run) -> None:
    stranger = RunKeys.generate()
    connection = replace(
        run.connection(),
        client_public_key=stranger.client_public_key,
        client_secret_key=stranger.client_secret_key,
    )

    text, took_s = failure(connection, 60)

    assert "the head refused the key of this worker, which belongs to another run" in text
    assert took_s < 5
    assert run.server.refused_connections >= 1


def test_head_of_another_run_is_noticed_within_five_seconds(start_run: StartRun) -> None:
    first, second = start_run(), start_run()

    text, took_s = failure(first.connection(endpoints=second.server.endpoints), 60)

    assert "it refused the handshake: another run, or no ClusterEnv head" in text
    assert took_s < 5
    assert second.received.empty()


def test_refusal_by_one_endpoint_leaves_the_others_their_chance(start_run: StartRun) -> None:
    wrong, right = start_run(), start_run()

    client = right.client(endpoints=[*wrong.server.endpoints, *right.server.endpoints])

    assert client.endpoint == right.server.endpoints[0]


def test_endpoint_with_an_impossible_port_is_an_error(run: Run) -> None:
    text, _ = failure(run.connection(endpoints=["tcp://127.0.0.1:99999"]), 0.5)

    assert "tcp://127.0.0.1:99999: " in text


def test_endpoint_that_is_no_address_is_an_error(run: Run) -> None:
    text, _ = failure(run.connection(endpoints=["tcp://*:5"]), 60)

    assert "tcp://*:5 is no address that can be connected to: Invalid argument" in text


def test_client_that_is_not_connected_says_so(run: Run) -> None:
    client = Client(run.connection(), incarnation=0)
    run.clients.append(client)

    with pytest.raises(ConnectError, match="not connected to a head"):
        client.send(m.Ack(), sequence=0)
    with pytest.raises(ConnectError, match="not connected to a head"):
        client.receive(0)


# --- receiving ------------------------------------------------------------------------------------------


def test_receive_returns_empty_when_the_time_is_up(run: Run) -> None:
    client = run.client()
    started = time.monotonic()

    assert client.receive(0.2) == ([], [])

    assert 0.15 < time.monotonic() - started < 2
    assert client.receive(0) == ([], [])


def test_receive_reports_readable_descriptors(run: Run) -> None:
    client = run.client()
    readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
    try:
        os.write(writers[1], b"x")
        assert client.receive(DEADLINE_S, readers) == ([], [readers[1]])
        os.write(writers[2], b"x")
        assert client.receive(DEADLINE_S, [readers[0], readers[2]]) == ([], [readers[2]])
        assert client.receive(0) == ([], [])
    finally:
        for end in (*readers, *writers):
            os.close(end)


def test_connection_that_is_lost_is_an_error_after_the_last_message(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    run.server.send(run.peer(client), m.CloseCommand(reason="done"), incarnation=0, sequence=0)
    run.server.close(5)

    assert client.receive(DEADLINE_S)[0][0].message == m.CloseCommand(reason="done")
    for _ in range(2):
        with pytest.raises(ConnectError, match=r"the connection to the head at .* was lost"):
            client.receive(DEADLINE_S)


def test_malformed_message_of_the_head_is_an_error(run: Run) -> None:
    client = run.client(max_message_bytes=1 << 16)
    peer = run.peer(client)

    run.server.send(peer, m.StepCommand(), [bytes(40_000)] * 2, incarnation=0, sequence=0)

    with pytest.raises(ProtocolError, match="a message of 3 parts, which are too many or exceed"):
        client.receive(DEADLINE_S)


def test_head_that_does_not_read_is_an_error_and_not_a_hang(start_run: StartRun) -> None:
    release = threading.Event()
    run = start_run(on_message=lambda _: release.wait(DEADLINE_S))
    client = run.client()

    def send_without_end() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            client.send(m.Ack(), [bytes(50_000)], sequence=0)

    with pytest.raises(ConnectError, match="does not read what this worker sends"):
        send_without_end()
    release.set()


def test_close_hands_over_what_was_sent_before(run: Run) -> None:
    client = run.client()
    for number in range(20):
        client.send(m.Ack(), [bytes(1 << 20)], sequence=number)

    client.close(DEADLINE_S)
    client.close(0)

    assert [run.get().sequence for _ in range(20)] == list(range(20))


def test_close_ends_in_time_when_the_head_is_gone(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    run.server.close(1)
    client.send(m.Ack(), sequence=0)
    started = time.monotonic()

    client.close(0.3)

    assert time.monotonic() - started < 2


@pytest.mark.parametrize("interface", ["127.0.0.2", "127.0.0.0/8", "lo"])
def test_client_reaches_the_head_from_the_interface_it_was_given(run: Run, interface: str) -> None:
    client = run.client(interface=interface)

    client.send(m.Ack(), sequence=3)

    assert run.get().sequence == 3


def test_connection_comes_from_the_address_it_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connection = Connection.for_worker(
            RunKeys.generate(), RUN_ID, [f"tcp://127.0.0.1:{port}"], interface="127.0.0.2"
        )
        failing = threading.Thread(target=failure, args=(connection, 0.5))
        failing.start()
        peer, address = listener.accept()
        peer.close()
        failing.join(DEADLINE_S)

    assert address[0] == "127.0.0.2"


def test_interface_that_is_not_here_fails_at_once_and_names_those_that_are(closed_port: int) -> None:
    connection = Connection.for_worker(
        RunKeys.generate(), RUN_ID, [f"tcp://127.0.0.1:{closed_port}"], interface="ib77"
    )

    text, seconds = failure(connection, DEADLINE_S)

    assert "fits worker_interface 'ib77'; they are: " in text
    assert "lo 127.0.0.1" in text
    assert seconds < DEADLINE_S / 2


def test_endpoint_of_another_family_than_the_interface_is_not_tried(closed_port: int) -> None:
    endpoints = [f"tcp://[::1]:{closed_port}"]
    connection = Connection.for_worker(RunKeys.generate(), RUN_ID, endpoints, interface="127.0.0.2")

    text, _ = failure(connection, DEADLINE_S)

    assert text == (
        f"no endpoint of the head ({endpoints[0]}) has the family of worker_interface '127.0.0.2', "
        "which is 127.0.0.2"
    )


def test_refused_port_is_told_of_an_own_source_too(closed_port: int) -> None:
    connection = Connection.for_worker(
        RunKeys.generate(), RUN_ID, [f"tcp://127.0.0.1:{closed_port}"], interface="127.0.0.2"
    )

    assert f"tcp://127.0.0.1:{closed_port}: Connection refused" in failure(connection, 0.3)[0]
