"""A head's server and its workers' clients over real sockets."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq

from clusterenv.transport import Client, Connection, Envelope, RunKeys, Server
from clusterenv.transport import messages as m

DEADLINE_S = 20.0
RUN_ID = 77
LIMIT_BYTES = 1 << 24


@dataclass
class Run:
    """A server with its keys, and what it has received."""

    keys: RunKeys
    server: Server
    received: queue.Queue[Envelope]
    clients: list[Client] = field(default_factory=list)

    def connection(self, **changes: Any) -> Connection:
        """What a worker of this run is given."""
        values: dict[str, Any] = {
            "keys": self.keys,
            "run_id": RUN_ID,
            "endpoints": self.server.endpoints,
            "max_message_bytes": LIMIT_BYTES,
            "heartbeat_s": 1.0,
            **changes,
        }
        return Connection.for_worker(
            values.pop("keys"), values.pop("run_id"), values.pop("endpoints"), **values
        )

    def client(self, **changes: Any) -> Client:
        """A worker's connected client."""
        client = Client(self.connection(**changes), incarnation=0)
        self.clients.append(client)
        client.connect(DEADLINE_S)
        return client

    def get(self) -> Envelope:
        """The next message that the server handed over."""
        return self.received.get(timeout=DEADLINE_S)

    def peer(self, client: Client) -> bytes:
        """The routing id of a client, taken from a message that it sends."""
        client.send(m.Ack(), sequence=0)
        return self.get().peer


StartRun = Callable[..., Run]


@pytest.fixture
def start_run() -> Iterator[StartRun]:
    """Starts servers, and closes whatever was opened."""
    runs: list[Run] = []

    def start(**changes: Any) -> Run:
        received: queue.Queue[Envelope] = queue.Queue()
        keys = RunKeys.generate()
        options: dict[str, Any] = {
            "keys": keys,
            "run_id": RUN_ID,
            "on_message": received.put,
            "loopback_only": True,
            "max_message_bytes": LIMIT_BYTES,
            "heartbeat_s": 1.0,
            **changes,
        }
        run = Run(keys, Server(**options), received)
        runs.append(run)
        return run

    yield start
    for run in runs:
        for client in run.clients:
            client.close(0)
        run.server.close(1)


@pytest.fixture
def run(start_run: StartRun) -> Run:
    """One server."""
    return start_run()


@pytest.fixture
def raw_worker(run: Run) -> Iterator[zmq.Socket[bytes]]:
    """A peer that holds the right key and may send anything."""
    with zmq.Context() as context, raw_dealer(context, run.connection()) as dealer:
        yield dealer


def raw_dealer(
    context: zmq.Context[zmq.Socket[bytes]], connection: Connection, routing_id: bytes = b"r" * 16
) -> zmq.Socket[bytes]:
    """A connected socket with a worker's keys."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.ROUTING_ID, routing_id)
    dealer.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
    dealer.curve_serverkey = connection.server_public_key.encode()
    dealer.curve_publickey = connection.client_public_key.encode()
    dealer.curve_secretkey = connection.client_secret_key.encode()
    dealer.connect(connection.endpoints[0])
    return dealer
