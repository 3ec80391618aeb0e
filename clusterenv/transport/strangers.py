"""Connections whose peer has not proved that it holds the run's key: counted, and told of once."""

from __future__ import annotations

import logging
import struct

import zmq

from clusterenv.transport.sockets import Socket, has_message

logger = logging.getLogger(__name__)

_ENDPOINT = "inproc://clusterenv.strangers"
_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


class Strangers:
    """Follows the connections of the one listening socket of a context, on the thread that polls `socket`.

    ZeroMQ says which connection has come and which has ended, but not which has proved its key. So those are
    counted that have ended while no connection has proved one: at least so many were strangers. Workers that
    have found a better address are among them.
    """

    def __init__(self, context: zmq.Context[Socket], listening: Socket) -> None:
        """Follow `listening`, before it is bound."""
        self.refused = 0
        """Connections whose key or protocol is not that of this run."""
        self.unproven = 0
        """Connections that ended before their peer had proved its key: silent ones, and refused ones too."""
        self._proofs = 0
        self._proofs_at_start: dict[int, int] = {}  # by descriptor
        self._told: set[int] = set()
        self._listening = listening
        listening.monitor(_ENDPOINT, _EVENTS)
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)  # a full queue would hold up ZeroMQ's own thread
        self.socket.connect(_ENDPOINT)

    def take_in(self) -> None:
        """All that has happened is counted."""
        while has_message(self.socket):
            what, _ = self.socket.recv_multipart(zmq.NOBLOCK)
            event, value = struct.unpack("=Hi", what)
            if event == zmq.EVENT_ACCEPTED:
                self._proofs_at_start[value] = self._proofs
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._proofs += 1
            elif event == zmq.EVENT_DISCONNECTED:
                if self._proofs_at_start.pop(value, None) == self._proofs:
                    self.unproven += 1
                    self._tell(event, "a connection ended before its peer had proved the key of this run")
            else:
                self.refused += 1
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:  # who had another key is told by its address
                    reason = "it lacks this head's key, or is no ClusterEnv worker"
                    self._tell(event, f"refused a connection: {reason}", logging.WARNING)

    def close(self) -> None:
        """Nothing is followed any more; the caller must be the one that uses the listening socket."""
        self._listening.disable_monitor()  # first: with nobody to hear it, ZeroMQ would wait for ever
        self.socket.close(linger=0)

    def _tell(self, event: int, what: str, level: int = logging.INFO) -> None:
        if event not in self._told:
            self._told.add(event)
            logger.log(level, "%s", what)
