"""Who has no key, or stands between worker and head: nothing of theirs is taken, and serving goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from clusterenv.errors import ConnectError
from clusterenv.transport import Connection, RunKeys, sockets
from clusterenv.transport import messages as m
from tests.long_form import LONG
from tests.processes import wait_until
from tests.reliability.slowdown import GREETING
from tests.transport.conftest import DEADLINE_S, RUN_ID, Run, StartRun, raw_dealer
from tests.transport.proxy import relay
from tests.transport.test_server import BEAT, head_of

pytestmark = pytest.mark.process

CONNECTIONS = 10_000 if LONG else 300
FIRST_MESSAGE = 2
"""Frames of a worker before its first message: HELLO and INITIATE."""


def serves(run: Run, client: object) -> None:
    """A worker's message arrives, as the next one."""
    client.send(m.Ack(), sequence=77)  # type: ignore[attr-defined]
    assert run.get().sequence == 77


def plain(run: Run) -> socket.socket:
    host, port = run.server.endpoints[0].removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def read_to_the_end(connection: socket.socket) -> None:
    """Returns once the server has hung up."""
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            pass


# --- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [3])
def test_right_key_of_another_run_is_refused_counted_and_logged_once(
    start_run: StartRun, caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    run, other = start_run(), start_run()
    own = run.client()
    keys = RunKeys(run.keys.server_public_key, "", other.keys.client_public_key, other.keys.client_secret_key)
    connection = Connection.for_worker(keys, RUN_ID, run.server.endpoints)
    for number in range(attempts):
        with zmq.Context() as context, raw_dealer(context, connection) as dealer:
            dealer.send(head_of() + BEAT)
            wait_until(lambda number=number: run.server.refused_connections > number)

    serves(run, own)
    assert other.received.empty()
    assert caplog.text.count("refused a connection from 127.0.0.1: its key is not of this run") == 1


def test_key_of_the_run_for_a_head_that_is_another_is_refused(start_run: StartRun) -> None:
    """A worker of one run that is led to the head of another does not talk to it."""
    run, other = start_run(), start_run()
    with pytest.raises(ConnectError, match="was not reached") as caught:
        run.client(endpoints=other.server.endpoints)

    assert "refused the handshake" in str(caught.value) or "refused the key" in str(caught.value)
    assert other.received.empty()


# --- between worker and head ----------------------------------------------------------------------------


def test_recorded_connection_that_is_played_again_is_refused(run: Run) -> None:
    with relay(run.server.endpoints[0]) as between:
        worker = run.client(endpoints=[between.endpoint])
        for number in range(5):
            worker.send(m.Ack(), sequence=number)
            assert run.get().sequence == number
        recorded = bytes(between.sent[0])
    assert len(recorded) > 600

    before = run.server.refused_connections
    for _ in range(3):
        with plain(run) as again, contextlib.suppress(OSError):
            again.sendall(recorded)
            read_to_the_end(again)

    assert run.server.refused_connections > before
    serves(run, run.client())
    assert run.received.empty()


def swap() -> Callable[[int, bytes], list[bytes]]:
    held: list[bytes] = []

    def decide(number: int, frame: bytes) -> list[bytes]:
        if number == FIRST_MESSAGE:
            held.append(frame)
            return []
        return [frame, *held] if number == FIRST_MESSAGE + 1 else [frame]

    return decide


def altered(number: int, frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == FIRST_MESSAGE else [frame]


def twice(number: int, frame: bytes) -> list[bytes]:
    return [frame, frame] if number == FIRST_MESSAGE else [frame]


ATTACKS = {"reordered": (swap(), [[2], []]), "altered": (altered, [[]]), "repeated": (twice, [[1], []])}


@pytest.mark.parametrize("attack", ATTACKS)
def test_traffic_that_somebody_changes_on_its_way_is_not_taken(start_run: StartRun, attack: str) -> None:
    run = start_run(heartbeat_s=30.0)
    decide, allowed = ATTACKS[attack]
    own = run.client(heartbeat_s=30.0)
    with relay(run.server.endpoints[0], decide) as between:
        worker = run.client(endpoints=[between.endpoint], heartbeat_s=30.0)
        worker.send(m.Ack(), sequence=1)
        worker.send(m.Ack(), sequence=2)
        wait_until(lambda: run.server.refused_connections)
        worker.send(m.Ack(), sequence=3)

        serves_from = []
        own.send(m.Ack(), sequence=77)
        while (got := run.get().sequence) != 77:
            serves_from.append(got)
        assert serves_from in allowed


def test_message_that_is_cut_off_in_the_middle_is_none(run: Run) -> None:
    def cut(number: int, frame: bytes) -> list[bytes]:
        if number == FIRST_MESSAGE:
            raise EOFError  # the relay hangs up
        return [frame]

    with relay(run.server.endpoints[0], cut) as between:
        worker = run.client(endpoints=[between.endpoint])
        worker.send(m.Ack(), [bytes(1 << 16)], sequence=1)
        with pytest.raises(ConnectError):
            worker.receive(DEADLINE_S)

    serves(run, run.client())
    assert run.received.empty()


# --- without a key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0x06, 0x04 | 0x02, 0x02])
def test_frame_that_claims_2_to_the_60_bytes_is_cut_off_without_memory(run: Run, flags: int) -> None:
    client = run.client()
    before = psutil.Process().memory_info().rss
    with plain(run) as attacker:
        attacker.sendall(GREETING + bytes([flags]) + (1 << 60).to_bytes(8, "big") + bytes(1000))
        read_to_the_end(attacker)

    serves(run, client)
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_connections_that_drip_are_cut_off_and_hold_up_nobody(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 1.0)
    run = start_run()
    client = run.client()
    drips = [plain(run) for _ in range(20)]
    for number, drip in enumerate(drips):
        drip.sendall(GREETING[: number % 40])
    serves(run, client)
    for drip in drips:
        read_to_the_end(drip)
        drip.close()

    wait_until(lambda: run.server.unproven_connections >= len(drips))
    serves(run, client)
    serves(run, run.client())


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """At least `count` may be open in this process, as in one that has launched a run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= count, f"this needs a hard limit of {count} descriptors, not {hard}: ulimit -Hn"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "said", [b"", GREETING, b"GET / HTTP/1.1\r\n\r\n".ljust(100)], ids=["silent", "broken off", "HTTP"]
)
def test_connection_that_proves_no_key_is_counted_and_told_of_once(
    run: Run, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    caplog.set_level(logging.INFO, "clusterenv")
    client = run.client()
    serves(run, client)
    for number in range(3):
        with plain(run) as stranger:
            stranger.sendall(said)
        wait_until(lambda number=number: run.server.unproven_connections == number + 1)

    assert caplog.text.count("ended before its peer had proved the key of this run") == 1
    client.close(1.0)
    time.sleep(0.2)
    assert run.server.unproven_connections == 3


def test_head_closes_while_strangers_come_and_go(run: Run) -> None:
    crowd = [plain(run) for _ in range(50)]
    for each in crowd[::2]:
        each.close()
    began = time.monotonic()
    run.server.close(1.0)
    assert time.monotonic() - began < 5
    for each in crowd[1::2]:
        each.close()


def test_many_connections_without_a_key_are_borne_and_gone_afterwards(run: Run) -> None:
    client, late = run.client(), run.client()
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    words = ["--attack", run.server.endpoints[0], "--crowd", str(CONNECTIONS)]
    command = [sys.executable, "-m", "tests.reliability.slowdown", *words]
    with (
        descriptors(CONNECTIONS + 500),
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as crowd,
    ):
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == b"all\n"
        assert len(os.listdir("/proc/self/fd")) > CONNECTIONS // 2  # noqa: PTH208
        serves(run, client)
        serves(run, late)
        crowd.kill()
        crowd.wait()
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files + 8, 60)  # noqa: PTH208
        wait_until(lambda: run.server.unproven_connections >= CONNECTIONS)

    serves(run, client)
    serves(run, run.client())


EXHAUSTED = """
import queue, resource, sys, threading
from clusterenv.transport import Client, Connection, RunKeys, Server
from clusterenv.transport import messages as m
received, keys = queue.Queue(), RunKeys.generate()
server = Server(keys=keys, run_id=1, on_message=received.put, loopback_only=True, max_message_bytes=1 << 20,
                heartbeat_s=1.0)
connection = Connection.for_worker(keys, 1, server.endpoints)
client = Client(connection, incarnation=0)
client.connect(30)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
print(server.endpoints[0], flush=True)
for number, line in enumerate(sys.stdin):
    client.send(m.Ack(), sequence=number)
    print(received.get(timeout=30).sequence, flush=True)
client.close(0)
server.close(1)
"""


def test_head_without_a_free_descriptor_serves_the_workers_that_it_has(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EXHAUSTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        host, port = head.stdout.readline().strip().removeprefix("tcp://").split(":")
        crowd = [socket.create_connection((host, int(port)), timeout=DEADLINE_S) for _ in range(150)]

        def round_trips(first: int) -> None:
            for number in range(first, first + 20):
                print(file=head.stdin, flush=True)
                assert int(head.stdout.readline()) == number

        round_trips(0)
        for each in crowd:
            each.close()
        round_trips(20)
        began = time.monotonic()
        cpu = psutil.Process(head.pid).cpu_times()
        time.sleep(0.5)
        spent = psutil.Process(head.pid).cpu_times()
        assert (spent.user + spent.system) - (cpu.user + cpu.system) < 0.5 * (time.monotonic() - began)
        head.stdin.close()
        assert head.wait(DEADLINE_S) == 0
