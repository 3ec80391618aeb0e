"""Workers as threads of the test's process over real sockets, each of which may be told to lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterenv import ClusterEnv, LocalConfig, peers, session
from clusterenv import env as env_module
from clusterenv.errors import ClusterEnvError
from clusterenv.facts import EnvFacts
from clusterenv.launchers import WorkerCommand, WorkerState, WorkerStatus
from clusterenv.pool import InlinePool
from clusterenv.service import Service
from clusterenv.transport import Client, Connection
from clusterenv.transport import messages as m
from clusterenv.worker import Worker

Sent = tuple[m.Message, Sequence[Any], int]
Lie = Callable[[m.Message, Sequence[Any], int], list[Sent]]
"""What a worker sends in place of a message with its frames and sequence number."""


def honest(message: m.Message, frames: Sequence[Any], sequence: int) -> list[Sent]:
    return [(message, frames, sequence)]


@dataclass
class ThreadWorkers:
    """A launcher whose workers are threads; the first of each rank sends what `lies` says."""

    lies: dict[int, Lie] = field(default_factory=dict)
    commands: list[WorkerCommand] = field(default_factory=list)
    respawned: list[int] = field(default_factory=list)
    connection: Connection | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def request(self) -> Any:
        raise NotImplementedError

    def submit(self) -> None:
        words = self.commands[0].argv
        self.connection = Connection.read(Path(words[words.index("--connection") + 1]))
        for rank in range(len(self.commands)):
            self._start(rank, 0, self.lies.get(rank, honest))

    def respawn(self, rank: int, incarnation: int) -> None:
        self.respawned.append(rank)
        self._start(rank, incarnation, honest)

    def poll(self) -> list[WorkerStatus]:
        return [
            WorkerStatus(
                rank=rank,
                state=WorkerState.RUNNING,
                pid=None,
                host=None,
                job_id=None,
                exit_code=None,
                signal=None,
                log_path=Path("none"),
            )
            for rank in range(len(self.commands))
        ]

    def log_tail(self, rank: int, lines: int = 20) -> str:
        return ""

    def cancel(self, timeout_s: float) -> None:
        for thread in self._threads:
            thread.join(timeout_s + 10)
            assert not thread.is_alive()

    def _start(self, rank: int, incarnation: int, lie: Lie) -> None:
        thread = threading.Thread(target=self._serve, args=(rank, incarnation, lie), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, rank: int, incarnation: int, lie: Lie) -> None:
        assert self.connection is not None
        client = Client(self.connection, incarnation=incarnation)
        try:
            client.connect(30.0)
            service = Service(client, rank)

            def send(message: m.Message, frames: Sequence[Any], sequence: int) -> None:
                for lied, with_frames, number in lie(message, frames, sequence):
                    service.send(lied, with_frames, number)

            service.serve(Worker(send, lambda setup, _: InlinePool(setup), service.beating))
        except ClusterEnvError:
            pass  # cut off by the head
        finally:
            client.close(0)


@contextmanager
def thread_env(
    env_fns: Sequence[Callable[[], Any]], nodes: int, lies: dict[int, Lie] | None = None, **options: Any
) -> Iterator[tuple[ClusterEnv, ThreadWorkers]]:
    """Environments over worker threads; their spaces are found out here, and restarts come quickly."""
    workers = ThreadWorkers(lies=lies or {})

    def make(_: object, command: Callable[[int], WorkerCommand], *, run_dir: Path) -> ThreadWorkers:
        workers.commands = [command(rank) for rank in range(nodes)]
        return workers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "make_launcher", make)
        patch.setattr(env_module, "EnvFacts", lambda *arguments, inline: EnvFacts(*arguments, inline=True))
        patch.setattr(peers, "FIRST_DELAY_S", 0.05)
        with ClusterEnv(env_fns, LocalConfig(nodes=nodes), **options) as env:
            yield env, workers
