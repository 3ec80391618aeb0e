"""Messages between the head and its workers: typed, numbered, bounded, encrypted. Only it knows ZeroMQ."""

from __future__ import annotations

from clusterenv.transport.client import Client
from clusterenv.transport.codec import Buffer, Envelope
from clusterenv.transport.curve import Connection, RunKeys
from clusterenv.transport.server import Server

__all__ = ["Buffer", "Client", "Connection", "Envelope", "RunKeys", "Server"]
