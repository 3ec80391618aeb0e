"""Which keys may connect: exactly one; ZeroMQ asks through its authentication protocol (RFC 27)."""

from __future__ import annotations

import hmac
import logging

import zmq
from zmq.utils import z85

from clusterenv.transport.sockets import Socket, has_message

logger = logging.getLogger(__name__)

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"clusterenv"

_ADDRESSES_LOGGED = 256
"""Addresses of refused peers that are remembered, so that each is logged once."""


def verdict(request: list[bytes], allowed_key: bytes) -> tuple[list[bytes], str | None]:
    """The answer to an authentication request, and the reason if it is a refusal; `allowed_key` is binary."""
    version, request_id = (request[0], request[1]) if len(request) > 1 else (b"", b"")
    reason = _objection(request, allowed_key)
    if reason is None:
        return [b"1.0", request_id, b"200", b"OK", b"worker", b""], None
    status = b"400" if version == b"1.0" else b"500"
    return [b"1.0", request_id, status, reason.encode(), b"", b""], reason


def _objection(request: list[bytes], allowed_key: bytes) -> str | None:
    if len(request) < 6 or request[0] != b"1.0":
        return "malformed authentication request"
    domain, mechanism, credentials = request[2], request[5], request[6:]
    if domain != DOMAIN or mechanism != b"CURVE" or len(credentials) != 1:
        return "not encrypted with CURVE"
    if not hmac.compare_digest(credentials[0], allowed_key):
        return "its key is not of this run"
    return None


class Gatekeeper:
    """Answers authentication requests of the sockets of one context, on the thread that polls `socket`."""

    def __init__(self, context: zmq.Context[Socket], allowed_key: str) -> None:
        """Be there for requests; must come before any socket of the context is bound."""
        self._allowed_key = z85.decode(allowed_key.encode())
        self._logged: set[bytes] = set()
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer all requests that wait."""
        while has_message(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            answer, reason = verdict(request, self._allowed_key)
            self.socket.send_multipart(answer)
            if reason is not None:
                self._log(request[3] if len(request) > 3 else b"unknown", reason)

    def _log(self, address: bytes, reason: str) -> None:
        if address in self._logged or len(self._logged) >= _ADDRESSES_LOGGED:
            return
        self._logged.add(address)
        logger.warning("refused a connection from %s: %s", address.decode(errors="replace"), reason)
