"""What CURVE costs: round trips and bytes a second over loopback, encrypted and plain, in the same run.

`python -m clusterenv.benchmark.encryption [--seconds 1]`; of several measurements the quickest counts. The
plain pair exists in this script alone: ClusterEnv itself has no way to talk without encryption.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence

import zmq

SIZES = (64, 4096, 65_536, 1 << 20, 1 << 24)
"""Bytes of the messages that travel."""

PAIRS = 5
"""Times that plain and encrypted are measured, one after the other."""


def rate(encrypted: bool, size: int, seconds: float) -> float:
    """Round trips a second of a message of `size` bytes, answered with 8."""
    with zmq.Context(io_threads=2) as context:
        server, client = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        for each in (server, client):
            each.linger = 0
        if encrypted:
            public, secret = zmq.curve_keypair()
            client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
            server.curve_server, server.curve_secretkey = True, secret
            client.curve_serverkey = public
        port = server.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        answering = threading.Thread(target=_answer, args=(server,))
        answering.start()
        payload, trips = bytes(size), 0
        client.send(payload)
        client.recv()
        end = (began := time.perf_counter()) + seconds
        while time.perf_counter() < end:
            client.send(payload, copy=False)
            client.recv()
            trips += 1
        took = time.perf_counter() - began
        client.send(b"")
        answering.join()
        client.close()
        server.close()
    return trips / took


def _answer(server: zmq.Socket[bytes]) -> None:
    while server.recv(copy=False).bytes:
        server.send(bytes(8))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m clusterenv.benchmark.encryption", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    seconds = parser.parse_args(argv).seconds
    sys.stdout.write(
        "| bytes | plain, µs | encrypted, µs | encrypted, MB/s | CURVE costs, µs |\n|---|---|---|---|---|\n"
    )
    for size in SIZES:
        pairs = [(rate(False, size, seconds), rate(True, size, seconds)) for _ in range(PAIRS)]
        plain, curve = (1e6 / max(pair[side] for pair in pairs) for side in (0, 1))
        sys.stdout.write(
            f"| {size:,} | {plain:.0f} | {curve:.0f} | {size / curve:.0f} | {curve - plain:.0f} |\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
