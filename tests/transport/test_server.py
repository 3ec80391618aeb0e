"""The head's side over real sockets: what it takes, what it refuses, and that it always goes on."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import zmq

from clusterenv.errors import LaunchError, ProtocolError, StateError
from clusterenv.transport import Client, Connection, Envelope, RunKeys, Server
from clusterenv.transport import messages as m
from clusterenv.transport import server as server_module
from clusterenv.transport.codec import HEADER, MAX_FRAMES
from clusterenv.transport.messages import PROTOCOL_VERSION
from tests.transport.conftest import DEADLINE_S, LIMIT_BYTES, RUN_ID, Run, StartRun, raw_dealer

pytestmark = pytest.mark.process


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        threading.Event().wait(0.005)


# --- traffic --------------------------------------------------------------------------------------------


def test_messages_go_both_ways_with_their_frames_and_sizes(run: Run) -> None:
    client = run.client()
    array = np.arange(5, dtype=np.float32)

    sent = client.send(m.StepReply(num_final=0, infos=[b"x"], final_infos=[]), [array], sequence=9)
    received = run.get()
    replied = run.server.send(received.peer, m.StepCommand(), [array], incarnation=0, sequence=10)
    envelopes, _ = client.receive(DEADLINE_S)

    assert received.message == m.StepReply(num_final=0, infos=[b"x"], final_infos=[])
    assert np.frombuffer(received.frames[0], dtype=np.float32).tolist() == array.tolist()
    assert (received.sequence, received.nbytes) == (9, sent)
    assert [(each.message, each.sequence, each.nbytes) for each in envelopes] == [
        (m.StepCommand(), 10, replied)
    ]
    assert (run.server.bytes_received, run.server.bytes_sent) == (sent, replied)


def test_messages_of_many_workers_come_together(start_run: StartRun, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    receive = Server._receive

    def counted(self: Server) -> bool:
        before = self.bytes_received
        more = receive(self)
        turns.append(self.bytes_received - before)
        return more

    monkeypatch.setattr(Server, "_receive", counted)
    monkeypatch.setattr(server_module, "_REST_PER_WORKER_S", 1.0)
    monkeypatch.setattr(server_module, "_LONGEST_REST_S", 0.5)
    run = start_run(num_workers=256)
    client = run.client()
    for sequence in range(20):
        client.send(m.Ack(), sequence=sequence)
        time.sleep(0.005)
    assert [run.get().sequence for _ in range(20)] == list(range(20))
    assert sum(taken > 0 for taken in turns) <= 4


def test_two_workers_are_told_apart(run: Run) -> None:
    first, second = run.client(), run.client()
    peers = run.peer(first), run.peer(second)

    run.server.send(peers[1], m.CloseCommand(reason="second"), incarnation=0, sequence=0)
    run.server.send(peers[0], m.CloseCommand(reason="first"), incarnation=0, sequence=0)

    assert first.receive(DEADLINE_S)[0][0].message == m.CloseCommand(reason="first")
    assert second.receive(DEADLINE_S)[0][0].message == m.CloseCommand(reason="second")


def test_incarnation_of_the_worker_is_told(run: Run) -> None:
    client = Client(run.connection(), incarnation=3)
    run.clients.append(client)
    client.connect(DEADLINE_S)
    client.send(m.Ack(), sequence=0)

    assert run.get().incarnation == 3


def test_large_frame_arrives_and_outlives_the_server(start_run: StartRun) -> None:
    run = start_run()
    client = run.client()
    array = np.random.default_rng(0).integers(0, 255, size=LIMIT_BYTES - 1024, dtype=np.uint8)

    client.send(m.ResetReply(infos=[]), [array, array[:3]], sequence=0)
    large, small = run.get().frames
    client.close(0)
    run.server.close(1)
    gc.collect()

    assert np.array_equal(np.frombuffer(large, dtype=np.uint8), array)
    assert np.frombuffer(large[8:], dtype=np.float64).flags.aligned
    assert bytes(small) == array[:3].tobytes()


def test_heartbeat_does_not_wait_behind_a_large_message(start_run: StartRun) -> None:
    run = start_run(max_message_bytes=1 << 27, shared_memory=False)
    client = run.client(max_message_bytes=1 << 27)
    peer = run.peer(client)

    client.send(m.ResetReply(infos=[]), [bytes(1 << 26)], sequence=1)
    client.send(m.Heartbeat(steps=1, working_on=1), sequence=0)
    first, second = run.get(), run.get()

    assert isinstance(first.message, m.Heartbeat)
    assert isinstance(second.message, m.ResetReply)
    assert first.peer == second.peer == peer


def test_heartbeat_is_answered_over_its_own_connection(run: Run) -> None:
    client = run.client()
    peer = run.peer(client)

    run.server.send(peer, m.HeartbeatAck(), incarnation=0, sequence=0)

    assert client.receive(DEADLINE_S)[0][0].message == m.HeartbeatAck()


def test_send_from_many_threads_loses_nothing_and_keeps_each_order(run: Run) -> None:
    client = run.client()
    peer = run.peer(client)
    threads, each = 8, 100  # fewer together than may wait for one worker

    def talk(thread: int) -> None:
        for number in range(each):
            run.server.send(peer, m.StepCommand(), [bytes([thread])], incarnation=0, sequence=number)

    talkers = [threading.Thread(target=talk, args=(thread,)) for thread in range(threads)]
    for talker in talkers:
        talker.start()
    seen: dict[int, list[int]] = {thread: [] for thread in range(threads)}
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, seen.values())) < threads * each:
        assert time.monotonic() < deadline
        for envelope in client.receive(1)[0]:
            seen[envelope.frames[0][0]].append(envelope.sequence)
    for talker in talkers:
        talker.join()

    assert all(numbers == list(range(each)) for numbers in seen.values())


def test_no_message_is_overlooked_while_other_threads_send(run: Run) -> None:
    """Sending takes in ZeroMQ's news, which must not hide a message that came at the same time."""
    echo, other = run.client(), run.client()
    other_peer = run.peer(other)
    peer = run.peer(echo)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            run.server.send(other_peer, m.StepCommand(), incarnation=0, sequence=0)
            other.receive(1)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for number in range(500):
            run.server.send(peer, m.StepCommand(), incarnation=0, sequence=number)
            assert echo.receive(DEADLINE_S)[0][0].sequence == number
            echo.send(m.Ack(), sequence=number)
            assert run.get().sequence == number
    finally:
        stop.set()
        disturber.join()


def test_send_from_a_message_handler_works(start_run: StartRun) -> None:
    servers: list[Server] = []

    def answer(envelope: Envelope) -> None:
        servers[0].send(envelope.peer, m.StepCommand(), incarnation=0, sequence=envelope.sequence)

    run = start_run(on_message=answer)
    servers.append(run.server)
    client = run.client()
    client.send(m.Ack(), sequence=5)

    assert client.receive(DEADLINE_S)[0][0].sequence == 5


def test_message_handler_that_raises_is_logged_and_serving_goes_on(
    start_run: StartRun, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Envelope] = []

    def fail(envelope: Envelope) -> None:
        taken.append(envelope)
        raise RuntimeError("a bug of the head")

    client = start_run(on_message=fail).client()
    client.send(m.Ack(), sequence=0)
    client.send(m.Ack(), sequence=1)

    wait_until(lambda: len(taken) == 2)
    wait_until(lambda: caplog.text.count("handling Ack of a worker failed") == 2)
    assert "a bug of the head" in caplog.text


def test_message_to_an_unknown_worker_is_counted_and_logged_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        run.server.send(b"x" * 16, m.StepCommand(), incarnation=0, sequence=0)

    assert run.server.unsent_messages == 3
    assert run.server.bytes_sent == 0
    assert caplog.text.count("cannot send to a worker: it is not connected") == 1
    client = run.client()
    run.server.send(run.peer(client), m.StepCommand(), incarnation=0, sequence=1)
    assert client.receive(DEADLINE_S)[0][0].sequence == 1


def test_worker_that_does_not_read_holds_up_nobody(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    deaf, client = run.client(), run.client()
    deaf_peer, peer = run.peer(deaf), run.peer(client)
    started = time.monotonic()
    while not run.server.unsent_messages:
        run.server.send(deaf_peer, m.WeightsReply(version=1), [bytes(50_000)], incarnation=0, sequence=0)
        assert time.monotonic() - started < DEADLINE_S

    run.server.send(peer, m.StepCommand(), incarnation=0, sequence=3)

    assert client.receive(DEADLINE_S)[0][0].sequence == 3
    assert "it does not read, and its queue is full" in caplog.text


def test_message_above_the_limit_is_refused_to_the_sender(run: Run) -> None:
    client = run.client()
    peer = run.peer(client)

    with pytest.raises(ProtocolError, match=f"max_message_bytes is {LIMIT_BYTES}"):
        run.server.send(peer, m.StepCommand(), [bytes(LIMIT_BYTES)], incarnation=0, sequence=0)
    with pytest.raises(ProtocolError, match=f"max_message_bytes is {LIMIT_BYTES}"):
        client.send(m.Ack(), [bytes(LIMIT_BYTES)], sequence=0)


def test_message_of_exactly_the_limit_passes(start_run: StartRun) -> None:
    run = start_run(shared_memory=False)
    client = run.client()
    overhead = client.send(m.Ack(), [b""], sequence=0)

    client.send(m.Ack(), [bytes(LIMIT_BYTES - overhead)], sequence=1)

    run.get()
    assert run.get().nbytes == LIMIT_BYTES


# --- hostile peers --------------------------------------------------------------------------------------


class Bomb:
    """Calls `os.abort` where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return (os.abort, ())


def head_of(kind: int = 3, *, run: int = RUN_ID, version: int = PROTOCOL_VERSION) -> bytes:
    return HEADER.pack(b"CENV", version, kind, run, 0, 0)


BEAT = msgspec.msgpack.encode({"steps": 1, "working_on": 0})
NOISE = np.random.default_rng(1).bytes(1 << 20)

HOSTILE = {
    "nothing": ([b""], "a header of 0 bytes"),
    "a megabyte of noise": ([NOISE], "begins with"),
    "noise in many frames": ([NOISE[i : i + 100] for i in range(1000)], "begins with"),
    "a truncated header": ([head_of()[:20]], "a header of 20 bytes"),
    "a truncated body": ([head_of() + BEAT[:4]], "body of Heartbeat"),
    "a claim of 2^32 elements": (
        [head_of(5) + b"\x81\xa5infos\xdd\xff\xff\xff\xff"],
        "body of ResetReply",
    ),
    "a claim of 2^32 bytes": ([head_of(11) + b"\x81\xa6reason\xdb\xff\xff\xff\xff"], "body of Goodbye"),
    "a pickle for a body": ([head_of(4) + pickle.dumps(Bomb())], "body of Ack"),
    "another version": ([head_of(version=9) + BEAT], "protocol version 9"),
    "another run": ([head_of(run=1) + BEAT], "a message of run 0000000000000001"),
    "a kind of the head": ([head_of(33) + b"\x81\xa6reason\xa1x"], "kind 33 .*may not send"),
    "an unknown kind": ([head_of(30) + BEAT], "kind 30, which does not exist"),
    "too many frames": ([head_of() + BEAT, *[b""] * (MAX_FRAMES + 10)], "too many or exceed"),
    "frames that exceed the limit together": (
        [head_of() + BEAT, *[bytes(LIMIT_BYTES // 2)] * 3],
        "too many or exceed",
    ),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_message_is_refused_counted_and_logged_once(
    run: Run, raw_worker: zmq.Socket[bytes], attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts, told = HOSTILE[attack]

    for _ in range(2):
        raw_worker.send_multipart(parts)
    raw_worker.send(head_of() + BEAT)

    assert run.get().message == m.Heartbeat(steps=1, working_on=0)
    assert run.server.refused_messages == 2
    assert caplog.text.count("refused a message from 127.0.0.1") == 1
    refusal = msgspec.msgpack.decode(raw_worker.recv()[HEADER.size :], type=m.Refused)
    assert refusal.reason.startswith("the head received ")
    assert re.search(told, refusal.reason)


def test_pickle_in_a_data_frame_stays_bytes(run: Run, raw_worker: zmq.Socket[bytes]) -> None:
    bomb = pickle.dumps(Bomb())

    raw_worker.send_multipart([head_of(4) + b"\x80", bomb])

    assert bytes(run.get().frames[0]) == bomb


def test_claimed_sizes_take_no_memory(run: Run, raw_worker: zmq.Socket[bytes]) -> None:
    before = psutil.Process().memory_info().rss

    for _ in range(100):
        raw_worker.send_multipart(HOSTILE["a claim of 2^32 elements"][0])
    raw_worker.send(head_of() + BEAT)
    run.get()

    assert psutil.Process().memory_info().rss - before < 32 << 20


def test_frame_above_the_limit_costs_its_sender_the_connection(run: Run) -> None:
    client = run.client()
    with zmq.Context() as context, raw_dealer(context, run.connection()) as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send_multipart([head_of() + BEAT, bytes(LIMIT_BYTES + 1000)])
        assert monitor.poll(DEADLINE_S * 1000)
        dealer.disable_monitor()
        monitor.close()

    client.send(m.Ack(), sequence=1)
    assert run.get().sequence == 1


def test_routing_id_may_end_with_any_byte(run: Run) -> None:
    with zmq.Context() as context, raw_dealer(context, run.connection(), b"r" * 15 + b"+") as dealer:
        dealer.send(head_of() + BEAT)

        assert run.get().peer == b"r" * 15 + b"+"


@pytest.mark.parametrize("routing_id", [b"short", b"r" * 15, b"r" * 17, b"r" * 16 + b"++", b"r" * 100])
def test_routing_id_of_another_form_is_refused(run: Run, routing_id: bytes) -> None:
    with zmq.Context() as context, raw_dealer(context, run.connection(), routing_id) as dealer:
        dealer.send(head_of() + BEAT)

        assert b"a routing id of %d bytes; expected 16" % len(routing_id) in dealer.recv()
    assert run.received.empty()


def test_peer_that_speaks_no_zeromq_is_cut_off_and_serving_goes_on(run: Run) -> None:
    client = run.client()
    host, port = run.server.endpoints[0].removeprefix("tcp://").split(":")

    for greeting in (b"GET / HTTP/1.1\r\n\r\n" * 10, NOISE, b""):
        with (
            socket.create_connection((host, int(port)), timeout=DEADLINE_S) as plain,
            contextlib.suppress(OSError),  # the server may be quicker to hang up
        ):
            plain.sendall(greeting)
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(1 << 16):
                pass

    client.send(m.Ack(), sequence=1)
    assert run.get().sequence == 1


def test_peer_without_encryption_is_refused_and_logged_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while run.server.refused_connections < 2:  # not counted when the peer hangs up before it is refused
        assert time.monotonic() < deadline
        with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.setsockopt(zmq.LINGER, 0)
            plain.setsockopt(zmq.ROUTING_ID, b"r" * 16)
            hung_up = plain.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            plain.connect(run.server.endpoints[0])
            plain.send(head_of() + BEAT)
            assert hung_up.poll(DEADLINE_S * 1000)
            plain.disable_monitor()
            hung_up.close()

    assert run.received.empty()
    assert caplog.text.count("it lacks this head's key, or is no ClusterEnv worker") == 1


def test_peer_with_a_key_that_is_not_on_the_list_is_refused_and_logged_by_address(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = RunKeys.generate()
    keys = RunKeys(run.keys.server_public_key, "", stranger.client_public_key, stranger.client_secret_key)
    connection = Connection.for_worker(keys, RUN_ID, run.server.endpoints)
    with zmq.Context() as context, raw_dealer(context, connection) as dealer:
        dealer.send(head_of() + BEAT)
        wait_until(lambda: run.server.refused_connections >= 1)

    assert run.received.empty()
    assert "refused a connection from 127.0.0.1: its key is not of this run" in caplog.text


# --- ports ----------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[socket.socket]:
    """Listening sockets on neighbouring ports."""
    for first in range(42000, 60000, 7):
        held: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                held.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            for each in held:
                each.close()
        else:
            return held
    raise AssertionError("no free ports")


def test_port_is_the_first_free_one_of_the_range(start_run: StartRun) -> None:
    held = free_ports(3)
    ports = [each.getsockname()[1] for each in held]
    held[1].close()
    try:
        run = start_run(port_range=(ports[0], ports[2]))
        assert run.server.endpoints == [f"tcp://127.0.0.1:{ports[1]}"]
    finally:
        for each in held:
            each.close()


def test_range_of_ports_in_use_is_named_and_nothing_leaks(start_run: StartRun) -> None:
    held = free_ports(2)
    ports = [each.getsockname()[1] for each in held]
    before = open_files()

    with pytest.raises(LaunchError, match=rf"all ports of port_range \({ports[0]}, {ports[1]}\) are in use"):
        start_run(port_range=(ports[0], ports[1]))

    assert open_files() == before
    for each in held:
        each.close()


def test_two_servers_get_two_ports(start_run: StartRun) -> None:
    assert start_run().server.endpoints != start_run().server.endpoints


def test_server_that_is_not_for_this_host_only_offers_no_loopback(start_run: StartRun) -> None:
    try:
        run = start_run(loopback_only=False)
    except LaunchError as error:
        pytest.skip(f"no network here: {error}")
    assert not [endpoint for endpoint in run.server.endpoints if "127." in endpoint or "::1" in endpoint]

    client = run.client()

    assert client.endpoint in run.server.endpoints


def test_server_for_this_host_only_is_out_of_reach_by_other_addresses(start_run: StartRun) -> None:
    port = int(start_run().server.endpoints[0].rpartition(":")[2])
    others = [
        item.address
        for items in psutil.net_if_addrs().values()
        for item in items
        if item.family == socket.AF_INET and not item.address.startswith("127.")
    ]
    for address in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=DEADLINE_S)


# --- closing --------------------------------------------------------------------------------------------


def open_files() -> int:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_close_hands_over_what_was_sent_before(run: Run) -> None:
    client = run.client()
    peer = run.peer(client)
    for number in range(20):
        run.server.send(peer, m.WeightsReply(version=1), [bytes(1 << 20)], incarnation=0, sequence=number)

    closing = threading.Thread(target=run.server.close, args=(DEADLINE_S,))
    closing.start()
    numbers: list[int] = []
    while len(numbers) < 20:
        numbers += [envelope.sequence for envelope in client.receive(DEADLINE_S)[0]]
    closing.join()

    assert numbers == list(range(20))


def test_close_ends_in_time_when_a_worker_does_not_read(run: Run) -> None:
    with zmq.Context() as context:
        context.setsockopt(zmq.RCVHWM, 1)
        deaf = raw_dealer(context, run.connection())
        deaf.send(head_of() + BEAT)
        peer = run.get().peer
        for _ in range(20):
            run.server.send(peer, m.WeightsReply(version=1), [bytes(4 << 20)], incarnation=0, sequence=0)

        started = time.monotonic()
        run.server.close(0.5)

        assert time.monotonic() - started < 2.0
        deaf.close()


def test_close_twice_is_fine_and_send_after_it_is_an_error(run: Run) -> None:
    run.server.close(1)
    run.server.close(1)

    with pytest.raises(StateError, match="the server is closed"):
        run.server.send(b"x" * 16, m.StepCommand(), incarnation=0, sequence=0)


def test_close_does_not_wait_for_a_handler_that_hangs(
    start_run: StartRun, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    run = start_run(on_message=lambda _: release.wait(DEADLINE_S))
    run.client().send(m.Ack(), sequence=0)
    started = time.monotonic()
    wait_until(lambda: run.server.bytes_received > 0)

    run.server.close(0.2)

    assert time.monotonic() - started < 5
    assert "a message handler hangs" in caplog.text
    release.set()


def test_close_from_a_message_handler_ends_the_thread(start_run: StartRun) -> None:
    servers: list[Server] = []
    run = start_run(on_message=lambda _: servers[0].close(1))
    servers.append(run.server)
    run.client().send(m.Ack(), sequence=0)

    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "clusterenv-head-io"])


def test_close_in_a_forked_child_leaves_the_parent_alone(run: Run) -> None:
    child = os.fork()
    if child == 0:
        run.server.close(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    client = run.client()
    client.send(m.Ack(), sequence=4)
    assert run.get().sequence == 4


def test_servers_and_clients_leave_no_files_and_threads_behind(start_run: StartRun) -> None:
    def cycle() -> None:
        run = start_run()
        client = run.client()
        run.server.send(run.peer(client), m.StepCommand(), [bytes(1 << 17)], incarnation=0, sequence=0)
        client.receive(DEADLINE_S)
        client.close(0)
        run.server.close(1)

    cycle()  # the first one also starts what pyzmq keeps for large frames
    files, threads = open_files(), threading.active_count()
    for _ in range(20):
        cycle()

    assert open_files() == files
    assert threading.active_count() == threads
