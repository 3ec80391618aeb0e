"""A worker's side of the wire: two connections to the head, one for heartbeats, and what comes over them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict

import zmq

from clusterenv.errors import ConnectError, ProtocolError
from clusterenv.lending import Lender
from clusterenv.transport.addresses import is_own_endpoint
from clusterenv.transport.codec import Buffer, Envelope, Side, decode, encode, size_of
from clusterenv.transport.curve import Connection, require_curve
from clusterenv.transport.dialing import Line, dial
from clusterenv.transport.messages import Lend, Lent, Message
from clusterenv.transport.sockets import (
    EXPRESS_SUFFIX,
    Socket,
    has_message,
    is_express,
    receive_parts,
    send_parts,
)

ANSWER_WITHIN_S = 0.2
"""How long a message waits for the head to map memory for its large frames, once for each such memory."""


class Client:
    """Sends to the head and receives from it, on one thread at a time.

    A lost connection is not made again: what was on its way would be gone, and both sides would wait for it.
    """

    def __init__(self, connection: Connection, *, incarnation: int) -> None:
        """Be ready to connect; `incarnation` counts the processes that had this worker's rank."""
        require_curve()
        self._connection = connection
        self._incarnation = incarnation
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._lines: list[Line] = []
        self._lender = Lender(is_near=False)
        self._poller = zmq.Poller()
        self._fds: tuple[int, ...] = ()
        self._early: list[Envelope] = []
        """What came while a message waited."""

    @property
    def endpoint(self) -> str | None:
        """Where the head answered."""
        return self._lines[0].endpoint if self._lines else None

    def connect(self, timeout_s: float) -> None:
        """Reach the head at one of its endpoints; each side has then proven its key to the other.

        Raises:
            ConnectError: lists each endpoint and what failed; within 5 s if the key was refused.
        """
        deadline = time.monotonic() + timeout_s
        line = dial(self._context, self._connection, self._connection.endpoints, timeout_s)
        self._lines = [line]
        left_s = max(0.0, deadline - time.monotonic())
        express_id = line.routing_id + EXPRESS_SUFFIX
        self._lines.append(dial(self._context, self._connection, [line.endpoint], left_s, express_id))
        for each in self._lines:
            self._poller.register(each.socket, zmq.POLLIN)
            self._poller.register(each.monitor, zmq.POLLIN)
        self._lender = Lender(is_near=is_own_endpoint(line.endpoint))

    def send(self, message: Message, frames: Sequence[Buffer] = (), *, sequence: int) -> int:
        """Queue a message and return its size in bytes, without what a head on this machine finds in memory.

        Large frames are not copied: they must not change until the head has answered. For memory in which
        they need not travel, this waits up to ANSWER_WITHIN_S.

        Raises:
            ConnectError: if the connection was lost, or the head does not read.
            ProtocolError: if the message is larger than the head accepts, or something not allowed came.
        """
        return self._offer_memory(frames) + self._send(message, frames, sequence)

    def _offer_memory(self, frames: Sequence[Buffer]) -> int:
        """Wait a little for the head to map memory for `frames`, if that is new; bytes that were sent."""
        sizes = [size_of(frame) for frame in frames]
        offer = self._lender.ask(sizes) if sum(sizes) <= self._connection.max_message_bytes else None
        if offer is None:
            return 0
        nbytes = self._send(Lend(**asdict(offer)), (), 0)
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while self._lender.is_waiting_for(offer) and (left_s := deadline - time.monotonic()) > 0:
            self._lines[0].socket.poll(math.ceil(left_s * 1000))
            self._early += self._read(self._lines[0])
        return nbytes

    def _send(self, message: Message, frames: Sequence[Buffer], sequence: int) -> int:
        if not self._lines:
            raise ConnectError("not connected to a head")
        parts, nbytes = encode(
            message,
            frames,
            run_id=self._connection.run_id,
            incarnation=self._incarnation,
            sequence=sequence,
            max_message_bytes=self._connection.max_message_bytes,
            lend=self._lender.lend,
        )
        line = self._lines[1 if is_express(message) else 0]
        try:
            send_parts(line.socket, parts)
        except zmq.Again:
            raise ConnectError(f"the head at {line.endpoint} does not read what this worker sends") from None
        return nbytes

    def receive(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Envelope], list[int]]:
        """Messages from the head, and those of `fds` that are readable; both empty when the time is up.

        Raises:
            ConnectError: if the connection is lost, once every message that came over it was given out.
            ProtocolError: if the head sent something that it may not.
        """
        if not self._lines:
            raise ConnectError("not connected to a head")
        if self._early:
            early, self._early = self._early, []
            return early, []
        self._watch(tuple(fds))
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = 0.0 if self._lines[0].ended else max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(math.ceil(left_s * 1000)))
            envelopes = [each for line in self._lines if line.socket in ready for each in self._read(line)]
            readable = [fd for fd in self._fds if fd in ready]
            if envelopes or readable:
                return envelopes, readable
            self._check(self._lines[0])
            if time.monotonic() >= deadline:
                return [], []

    def close(self, linger_s: float) -> None:
        """Hand what was sent to the system within `linger_s`, then free everything; may be called again."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.close(linger_s)
        self._context.destroy()

    def _watch(self, fds: tuple[int, ...]) -> None:
        if fds == self._fds:
            return
        for fd in self._fds:
            self._poller.unregister(fd)
        for fd in fds:
            self._poller.register(fd, zmq.POLLIN)
        self._fds = fds

    def _read(self, line: Line) -> list[Envelope]:
        envelopes = []
        while has_message(line.socket):
            parts, seen = receive_parts(line.socket, self._connection.max_message_bytes)
            if seen > len(parts):
                raise ProtocolError(
                    f"a message of {seen} parts, which are too many or exceed "
                    f"max_message_bytes = {self._connection.max_message_bytes}"
                )
            envelope = decode(
                [part.buffer for part in parts],
                sender=Side.HEAD,
                run_id=self._connection.run_id,
                max_message_bytes=self._connection.max_message_bytes,
            )
            if isinstance(envelope.message, Lent):
                self._lender.on_answer(envelope.message.nonce, mapped=envelope.message.mapped)
            else:
                envelopes.append(envelope)
        return envelopes

    def _check(self, line: Line) -> None:
        for each in self._lines:
            each.update()
        if line.ended and not has_message(line.socket):
            raise ConnectError(f"the connection to the head at {line.endpoint} was lost")
