"""What somebody between a worker and the head could do: a relay that reads ZMTP frames and alters them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

GREETING_BYTES = 64
Frame = bytes
OnFrame = Callable[[int, Frame], list[Frame]]
"""Gets the number of a frame of the worker, from 0, and the frame; gives what to pass on in its place."""


def unchanged(_: int, frame: Frame) -> list[Frame]:
    return [frame]


@dataclass
class Relay:
    """Where a worker may connect instead of the head, and all that workers sent, by connection."""

    endpoint: str
    sent: list[bytearray] = field(default_factory=list)


@contextmanager
def relay(head: str, on_frame: OnFrame = unchanged) -> Iterator[Relay]:
    """A relay to the endpoint `head`; `on_frame` decides about the frames of the first connection."""
    host, port = head.removeprefix("tcp://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    made = Relay(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    sockets = [listener]

    def accept() -> None:
        with suppress(OSError):
            while True:
                worker, _ = listener.accept()
                to_head = socket.create_connection((host, int(port)))
                sockets.extend((worker, to_head))
                kept = bytearray()
                decide = on_frame if not made.sent else unchanged
                made.sent.append(kept)
                _thread(_pass_frames, worker, to_head, kept, decide)
                _thread(_pass_bytes, to_head, worker)

    _thread(accept)
    try:
        yield made
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _pass_bytes(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _pass_frames(source: socket.socket, target: socket.socket, kept: bytearray, decide: OnFrame) -> None:
    def read(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = source.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        kept.extend(data)
        return data

    number = 0
    with suppress(OSError, EOFError):
        for _ in range(GREETING_BYTES):  # as it comes: each side waits for the first bytes of the other
            target.sendall(read(1))
        while True:
            flags = read(1)
            size = read(8 if flags[0] & 2 else 1)
            for part in decide(number, flags + size + read(int.from_bytes(size, "big"))):
                target.sendall(part)
            number += 1
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
