"""The process around a Worker: its socket, its heartbeats, and what it does when the head falls silent."""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from clusterenv.errors import ConnectError
from clusterenv.launchers.base import INCARNATION_VARIABLE
from clusterenv.pool import ProcessPool
from clusterenv.transport import Client, Connection
from clusterenv.transport import messages as m
from clusterenv.usage import UsageWatch
from clusterenv.worker import Worker, granted_cores
from clusterenv.worker_start import CONNECTION_VARIABLE

PACKAGES = ("clusterenv-rl", "gymnasium", "numpy", "torch", "pyzmq")
"""Distributions whose versions the head is told."""

BEATS_PER_S = 500
"""Heartbeats that a head should get from all workers."""

LEAVE_WITHIN_S = 5.0
"""Seconds that a command in work has, once this process was told to end."""

_log = logging.getLogger("clusterenv.worker")


def hello(rank: int) -> m.Hello:
    """Who this process is."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "missing"
    return m.Hello(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        executable=sys.executable,
        versions=versions,
        cpus=granted_cores(os.environ),
    )


LEAVE_ON = {
    signal.SIGTERM: "terminated",
    signal.SIGUSR1: "walltime",
    signal.SIGUSR2: "preempted",
}
"""Signals after which a worker says goodbye, and the reason that it gives."""


def main(
    connection: Path | None, rank: int, incarnation: int | None = None, connect_timeout_s: float = 60.0
) -> int:
    """Serve the head named by the connection file until it says close or falls silent; the exit code.

    Without a file the connection is taken from this process's environment.
    """
    incarnation = own_incarnation(os.environ) if incarnation is None else incarnation
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s worker {rank}.{incarnation} %(levelname)s: %(message)s"
    )
    opened = Connection.from_env() if connection is None else Connection.read(connection)
    os.environ.pop(CONNECTION_VARIABLE, None)  # environments need no key
    client = Client(opened, incarnation=incarnation)
    try:
        client.connect(connect_timeout_s)
        _log.info("connected to %s from %s, pid %d", client.endpoint, socket.gethostname(), os.getpid())
        service = Service(client, rank)
        for number in LEAVE_ON:
            signal.signal(number, service.on_signal)
        worker = Worker(service.send, ProcessPool, service.beating)
        code = service.serve(worker)
        _log.info("ends: %s", worker.closing)
        if service.head_is_gone and connection is not None:
            connection.unlink(missing_ok=True)  # it holds a key, and nobody else is left to remove it
        return code
    finally:
        client.close(linger_s=1.0)


def own_incarnation(environ: Mapping[str, str]) -> int:
    """Which of the workers of its rank this process is: what its launcher said, and Slurm's requeues."""
    return int(environ.get(INCARNATION_VARIABLE, "0")) + int(environ.get("SLURM_RESTART_COUNT", "0"))


def beat_interval_s(lease_s: float, num_workers: int) -> float:
    """Seconds between two heartbeats of a worker.

    A fifth of the lease, or a second. In large runs it is longer, so that all workers together send
    BEATS_PER_S, but no more than a quarter of the lease: a worker that lives has two tries in it.
    """
    return min(lease_s / 4, max(min(1.0, lease_s / 5), num_workers / BEATS_PER_S))


class Service:
    """The loop around a Worker: socket, heartbeats, and the head's silence."""

    def __init__(self, client: Client, rank: int) -> None:
        """Serve over `client`, which is connected."""
        self._client = client
        self._rank = rank
        self._lease_s = 10.0
        self._beat_interval_s = beat_interval_s(self._lease_s, 1)
        self._grace_s = 60.0  # until the Welcome says otherwise
        self._heard_at = time.monotonic()
        self._beat_at = 0.0
        self._worker: Worker | None = None
        self._usage = UsageWatch(descendants=True)
        self._queued: list[Any] = []
        self.head_is_gone = False
        self._leaving = ""
        self._leave_by: float | None = None

    def on_signal(self, number: int, _: object) -> None:
        """Leave between two commands; at once if none is in work, or when one takes too long."""
        if self._leave_by is None:
            self._leaving = LEAVE_ON[signal.Signals(number)]
            self._leave_by = time.monotonic() + LEAVE_WITHIN_S
            if self._worker is not None:
                self._worker.leave()

    def _leave_if_due(self, worker: Worker) -> None:
        if self._leave_by is None or worker.closing is not None:
            return
        if not worker.busy or time.monotonic() > self._leave_by:
            self.send(m.Goodbye(reason=self._leaving), (), 0)
            worker.closing = self._leaving

    def send(self, message: m.Message, frames: Sequence[Any], sequence: int) -> None:
        """Queue a message to the head."""
        self._client.send(message, frames, sequence=sequence)

    def serve(self, worker: Worker) -> int:
        """Drive `worker` until it closes; its environments are gone then. Returns its exit code."""
        self._worker = worker
        self.send(hello(self._rank), (), 0)
        try:
            while worker.closing is None:
                fds = worker.pool.fds() if worker.pool is not None else []
                self._turn(fds)
                worker.on_pool()
                worker.check(time.monotonic())
                self._leave_if_due(worker)
                if self._silent():
                    self.head_is_gone = True
                    worker.closing = "the head is silent"
        except ConnectError as error:
            self.head_is_gone = True
            worker.closing = f"the head is gone: {error}"
        finally:
            worker.close(timeout_s=5.0)
        return worker.exit_code

    def _turn(self, fds: list[int]) -> None:
        """Wait a little for news from the head or the pool; then give the worker what came."""
        assert self._worker is not None
        envelopes, _ = self._client.receive(0.0 if self._queued else self._interval_s(), fds)
        envelopes = [*self._queued, *envelopes]
        self._queued = []
        for envelope in envelopes:
            self._heard_at = time.monotonic()
            if isinstance(envelope.message, m.Welcome):
                self._lease_s = envelope.message.lease_s
                self._beat_interval_s = beat_interval_s(self._lease_s, envelope.message.num_workers)
                self._grace_s = envelope.message.head_grace_s
            self._worker.on_message(envelope.sequence, envelope.message, envelope.frames)
        self._beat()
        self._tell_use()

    def _interval_s(self) -> float:
        return min(1.0, self._lease_s / 5)

    def _beat(self) -> None:
        assert self._worker is not None
        now = time.monotonic()
        if now - self._beat_at >= self._beat_interval_s:
            self._beat_at = now
            self.send(self._worker.heartbeat(), (), 0)

    def _tell_use(self) -> None:
        """Tell what the worker and its runners use, if they are there and the last look is a while ago."""
        assert self._worker is not None
        usage = self._usage.look_if_due() if self._worker.pool is not None else None
        if usage is not None:
            self.send(m.Used(cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes), (), 0)

    def _silent(self) -> bool:
        return time.monotonic() - self._heard_at > self._grace_s

    @contextmanager
    def beating(self) -> Iterator[None]:
        """A thread owns the socket while the main thread, whose end would end the runners, builds them."""
        stop = threading.Event()

        def beat() -> None:
            try:
                while not stop.is_set() and not self._silent():
                    envelopes, _ = self._client.receive(0.2, [])
                    if envelopes:
                        self._heard_at = time.monotonic()
                        self._queued += envelopes
                    self._beat()
            except ConnectError:
                os._exit(0)  # nobody waits for the environments; forkserver and runners end with this process
            if self._silent():
                os._exit(0)

        thread = threading.Thread(target=beat, name="clusterenv-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
