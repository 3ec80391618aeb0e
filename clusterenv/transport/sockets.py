"""What all sockets of the transport have in common: bounded sizes, queues and waits; reading one message."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from clusterenv.transport.codec import MAX_FRAMES
from clusterenv.transport.messages import Heartbeat, HeartbeatAck, Message

Socket = zmq.Socket[bytes]

QUEUED_MESSAGES = 1000
"""Messages that may wait for one peer in each direction."""

ROUTING_ID_BYTES = 16
HANDSHAKE_S = 15.0
"""Seconds that a peer has to prove its key."""

EXPRESS_SUFFIX = b"+"
"""Ends the routing id of a worker's second connection.

A heartbeat would otherwise wait behind a rollout of hundreds of megabytes, and the worker would seem silent.
"""

_SLOWEST_BYTES_PER_S = 4 << 20
"""A ping waits behind the frame that is being sent: the largest may travel at this rate and keep the peer."""


def is_express(message: Message) -> bool:
    """Whether `message` takes the second connection."""
    return isinstance(message, Heartbeat | HeartbeatAck)


def bounded_socket(
    context: zmq.Context[Socket], kind: int, *, max_message_bytes: int, heartbeat_s: float
) -> Socket:
    """A socket none of whose sizes, queues and waits is without limit."""
    made = context.socket(kind)
    made.setsockopt(zmq.MAXMSGSIZE, max_message_bytes + 64)  # of one frame, with what encryption adds
    made.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
    made.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    made.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(heartbeat_s * 1000)))
    silence_s = max(30.0, 10 * heartbeat_s, max_message_bytes / _SLOWEST_BYTES_PER_S)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(silence_s * 1000))
    # The kernel's keepalive is not delayed by large frames, so it can be quick to notice a host that is gone.
    made.setsockopt(zmq.TCP_KEEPALIVE, 1)
    made.setsockopt(zmq.TCP_KEEPALIVE_IDLE, max(1, int(heartbeat_s)))
    made.setsockopt(zmq.TCP_KEEPALIVE_INTVL, max(1, int(heartbeat_s)))
    made.setsockopt(zmq.TCP_KEEPALIVE_CNT, 4)
    return made


def has_message(source: Socket) -> bool:
    """Whether a message waits; also takes in the news that the socket's descriptor announced."""
    events = source.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)


def send_parts(target: Socket, parts: Sequence[memoryview | bytes]) -> None:
    """Hand one message to ZeroMQ; parts of 64 KiB and more are not copied.

    Raises:
        zmq.ZMQError: if it was not taken: EAGAIN when the queue is full, EHOSTUNREACH for an unknown peer.
    """
    for part in parts[:-1]:
        target.send(part, zmq.NOBLOCK | zmq.SNDMORE, copy=False)
    target.send(parts[-1], zmq.NOBLOCK, copy=False)


def receive_parts(source: Socket, max_message_bytes: int) -> tuple[list[zmq.Frame], int]:
    """The next message without copying large parts, and how many parts it had.

    Of a message that is too large or has too many parts only the first is kept: the list is then shorter than
    the number.

    Raises:
        zmq.Again: if no message is there.
    """
    parts = [source.recv(zmq.NOBLOCK, copy=False)]
    nbytes, seen, more = len(parts[0]), 1, parts[0].more
    while more:
        part = source.recv(copy=False)
        nbytes, seen, more = nbytes + len(part), seen + 1, part.more
        if nbytes <= max_message_bytes + ROUTING_ID_BYTES + 1 and seen <= MAX_FRAMES + 2:
            parts.append(part)
        else:
            del parts[1:]
    return parts, seen
