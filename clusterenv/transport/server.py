"""The head's socket: one I/O thread that hears all workers while the learner computes, whatever they send."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import zmq

from clusterenv.errors import ProtocolError, StateError
from clusterenv.lending import Borrower
from clusterenv.segments import Segment
from clusterenv.transport.codec import Buffer, Envelope, Side, decode, encode
from clusterenv.transport.curve import RunKeys, require_curve
from clusterenv.transport.listening import listen, make_router
from clusterenv.transport.messages import Lend, Lent, Message, Refused
from clusterenv.transport.sockets import (
    EXPRESS_SUFFIX,
    ROUTING_ID_BYTES,
    Socket,
    has_message,
    is_express,
    receive_parts,
    send_parts,
)
from clusterenv.transport.strangers import Strangers
from clusterenv.transport.zap import Gatekeeper

logger = logging.getLogger(__name__)

_PEERS_LOGGED = 1024
"""Peers that are remembered, so that what each does wrong is logged once."""

_MESSAGES_A_TURN = 64
"""Messages taken before those who want to connect have their turn."""

_MANY_WORKERS = 256
_REST_PER_WORKER_S = 5e-6
_LONGEST_REST_S = 0.05
"""With many workers the I/O thread rests after a turn, for so long for each, and what comes meanwhile is one
turn. To wake it costs as much as some messages."""


class Server:
    """Hears all workers of a run, and sends to any of them from any thread.

    `on_message` gets, on the I/O thread, each message that passed every check; what it raises is logged.
    """

    def __init__(
        self,
        *,
        keys: RunKeys,
        run_id: int,
        on_message: Callable[[Envelope], None],
        port_range: tuple[int, int] | None = None,
        loopback_only: bool,
        interface: str | None = None,
        max_message_bytes: int,
        heartbeat_s: float,
        shared_memory: bool = True,
        num_workers: int = 1,
    ) -> None:
        """Listen and serve.

        Args:
            keys: of this run.
            run_id: messages of any other run are refused.
            on_message: takes messages, on the I/O thread.
            port_range: first and last port allowed; none: the system chooses.
            loopback_only: be out of reach of other hosts.
            interface: name, address or subnet to listen on; none: everywhere.
            max_message_bytes: size of the largest message, in both directions.
            heartbeat_s: seconds between two signs of life on an idle connection.
            shared_memory: whether large frames of workers on this machine may come through memory.
            num_workers: how many are to come.

        Raises:
            LaunchError: if no port is free, no address is fit, or ZeroMQ cannot encrypt.
        """
        require_curve()
        self.bytes_sent = 0
        self.bytes_received = 0
        self.refused_messages = 0
        self.unsent_messages = 0
        self._run_id = run_id
        self._on_message = on_message
        self._max_message_bytes = max_message_bytes
        self._logged: set[tuple[str, bytes]] = set()
        self._borrower = Borrower(borrows=shared_memory)
        self._close_by: float | None = None
        rest_s = min(_LONGEST_REST_S, num_workers * _REST_PER_WORKER_S)
        self._rest_s = rest_s if num_workers >= _MANY_WORKERS else 0.0
        self._pid = os.getpid()
        self._lock = (
            threading.Lock()
        )  # of the router, which any thread may use, and of what follows from its use
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=_crypto_threads())
        try:
            self._gatekeeper = Gatekeeper(self._context, keys.client_public_key)
            self._router = make_router(
                self._context, keys, max_message_bytes=max_message_bytes, heartbeat_s=heartbeat_s
            )
            self._strangers = Strangers(self._context, self._router)
            self.endpoints = listen(self._router, port_range, loopback_only, interface)
            """Where workers may try, most likely first."""
        except BaseException:
            self._context.destroy(linger=0)
            os.close(self._wake)
            raise
        self._thread = threading.Thread(target=self._serve, name="clusterenv-head-io", daemon=True)
        self._thread.start()

    @property
    def refused_connections(self) -> int:
        """Connections whose key or protocol was not that of this run."""
        return self._strangers.refused

    @property
    def unproven_connections(self) -> int:
        """Connections, at least, that ended before their peer had proved the run's key."""
        return self._strangers.unproven

    def send(
        self,
        peer: bytes,
        message: Message,
        frames: Sequence[Buffer] = (),
        *,
        incarnation: int,
        sequence: int,
    ) -> int:
        """Hand a message to ZeroMQ and return its size in bytes; callable from any thread, and never waits.

        Large frames are not copied: they must not change until the worker has answered. A message to a worker
        that is not connected, or that left a thousand unread, is dropped, counted and logged.

        Raises:
            ProtocolError: if the message is larger than `max_message_bytes`.
            StateError: after `close`.
        """
        parts, nbytes = encode(
            message,
            frames,
            run_id=self._run_id,
            incarnation=incarnation,
            sequence=sequence,
            max_message_bytes=self._max_message_bytes,
        )
        self._send_parts(peer + EXPRESS_SUFFIX if is_express(message) else peer, parts, nbytes)
        return nbytes

    def close(self, timeout_s: float) -> None:
        """Hand what was sent to the system, then free ports and threads; takes at most about `timeout_s`.

        May be called again, and from a forked child, where it does nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._close_by is None:
                self._close_by = time.monotonic() + timeout_s
                os.eventfd_write(self._wake, 1)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout_s + 1.0)
        if self._thread.is_alive():
            logger.error("the I/O thread did not end within %g s: a message handler hangs", timeout_s + 1.0)

    # --- any thread ---------------------------------------------------------------------------------------

    def _send_parts(self, identity: bytes, parts: Sequence[memoryview | bytes], nbytes: int) -> None:
        with self._lock:
            if self._closed:
                raise StateError("the server is closed")
            try:
                send_parts(self._router, [identity, *parts])
            except zmq.ZMQError as error:
                self.unsent_messages += 1
                if self._first_time("unsent", identity):
                    logger.warning("cannot send to a worker: %s", _why_unsent(error))
            else:
                self.bytes_sent += nbytes
            # Sending takes in ZeroMQ's own news, after which the router's descriptor no longer tells of
            # messages that came with them: the I/O thread has to be told instead.
            if has_message(self._router):
                os.eventfd_write(self._wake, 1)

    def _first_time(self, what: str, peer: bytes) -> bool:
        if (what, peer) in self._logged or len(self._logged) >= _PEERS_LOGGED:
            return False
        self._logged.add((what, peer))
        return True

    # --- the I/O thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        # zmq.Poller would use the router while another thread sends, so the descriptors are polled instead.
        # They tell of changes only: what is ready must be read until nothing is left.
        router, monitor = self._router.fileno(), self._strangers.socket.fileno()
        door = self._gatekeeper.socket.fileno()
        poller = select.poll()
        for source in (router, door, monitor, self._wake):
            poller.register(source, select.POLLIN)
        ready = {router, door, monitor}
        while self._close_by is None:
            try:
                told = bool(ready & {router, self._wake})
                more = told and self._receive()
                if door in ready:
                    self._gatekeeper.answer()
                if monitor in ready:
                    self._strangers.take_in()
                if self._rest_s and told and not more:
                    time.sleep(self._rest_s)
                ready = {source for source, _ in poller.poll(0 if more else None)}
                if more:
                    ready.add(router)
                if self._wake in ready:
                    os.eventfd_read(self._wake)
            except Exception:
                logger.exception("the I/O thread met an error and goes on")
                time.sleep(0.1)  # should the error last, neither the log nor this core fill up
        self._end()

    def _receive(self) -> bool:
        """Take the messages that are there; true if there may be more."""
        for _ in range(_MESSAGES_A_TURN):
            with self._lock:
                if not has_message(self._router):
                    return False
                parts, seen = receive_parts(self._router, self._max_message_bytes)
            self.bytes_received += sum(map(len, parts[1:]))
            identity = parts[0].bytes
            try:
                envelope = self._open(identity, parts, seen)
            except ProtocolError as error:
                self._refuse(identity, parts[-1], error)
            else:
                if isinstance(envelope.message, Lend):
                    self._answer_offer(envelope, envelope.message)
                else:
                    self._hand_over(envelope)
        return True

    def _answer_offer(self, envelope: Envelope, offer: Lend) -> None:
        segment = Segment(pid=offer.pid, descriptor=offer.descriptor, nbytes=offer.nbytes, nonce=offer.nonce)
        lent = Lent(nonce=offer.nonce, mapped=self._borrower.accepts(envelope.peer, segment))
        self.send(envelope.peer, lent, incarnation=envelope.incarnation, sequence=0)

    def _open(self, identity: bytes, parts: list[zmq.Frame], seen: int) -> Envelope:
        if identity[ROUTING_ID_BYTES:] not in (b"", EXPRESS_SUFFIX) or len(identity) < ROUTING_ID_BYTES:
            raise ProtocolError(f"a routing id of {len(identity)} bytes; expected {ROUTING_ID_BYTES}")
        if seen > len(parts):
            raise ProtocolError(
                f"a message of {seen} parts, which are too many or exceed "
                f"max_message_bytes = {self._max_message_bytes}"
            )
        peer = identity[:ROUTING_ID_BYTES]
        return decode(
            [part.buffer for part in parts[1:]],
            sender=Side.WORKER,
            run_id=self._run_id,
            max_message_bytes=self._max_message_bytes,
            peer=peer,
            borrow=partial(self._borrower.fetch, peer),
        )

    def _hand_over(self, envelope: Envelope) -> None:
        try:
            self._on_message(envelope)
        except Exception:
            logger.exception("handling %s of a worker failed", type(envelope.message).__name__)

    def _refuse(self, identity: bytes, part: zmq.Frame, error: ProtocolError) -> None:
        """Count a message; say why once to the log and to the peer, which then ends."""
        self.refused_messages += 1
        if not self._first_time("refused", identity):
            return
        logger.warning("refused a message from %s: %s", part.get("Peer-Address"), error)
        parts, nbytes = encode(
            Refused(reason=f"the head received {error}"),
            (),
            run_id=self._run_id,
            incarnation=0,
            sequence=0,
            max_message_bytes=self._max_message_bytes,
        )
        self._send_parts(identity, parts, nbytes)

    def _end(self) -> None:
        try:
            self._gatekeeper.socket.close(linger=0)
            with self._lock:
                self._closed = True
                assert self._close_by is not None
                self._strangers.close()
                self._router.close(linger=max(0, int((self._close_by - time.monotonic()) * 1000)))
            self._context.term()  # waits for what lingers
        finally:
            os.close(self._wake)


def _crypto_threads() -> int:
    """Threads that encrypt and decrypt: large rollouts of many workers keep more than one busy."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def _why_unsent(error: zmq.ZMQError) -> str:
    if error.errno == errno.EHOSTUNREACH:
        return "it is not connected"
    if error.errno == errno.EAGAIN:
        return "it does not read, and its queue is full"
    return str(error.strerror)
