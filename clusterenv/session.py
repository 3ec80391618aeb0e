"""One run from launch to close: workers started and connected, and all that was opened closed again."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.config import EnvConfig
from clusterenv.cycles import MANY_WORKERS, set_aside
from clusterenv.errors import LaunchError, SetupTimeout, WorkerLost
from clusterenv.farewell import close_on_sigterm
from clusterenv.head import POLL_S, Head
from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
from clusterenv.launchers import make_launcher
from clusterenv.launchers.base import AsksAround, Launcher, WorkerCommand, WorkerState
from clusterenv.layout import SpaceLayout
from clusterenv.lifetime import raise_descriptor_limit
from clusterenv.peers import Ended, Peer
from clusterenv.private_files import remove_folder
from clusterenv.reporting import Description, Reporter
from clusterenv.run_records import CONNECTION_FILE, FOLDER_PREFIX
from clusterenv.sources import EnvSource
from clusterenv.transport import Buffer, Connection, Envelope, RunKeys, Server
from clusterenv.transport import messages as m
from clusterenv.worker import Worker
from clusterenv.worker_start import CONNECTION_VARIABLE

if TYPE_CHECKING:
    from clusterenv.commands import RunnerSetup
    from clusterenv.pool import Pool

LauncherConfig = LocalConfig | ManualConfig | SlurmConfig

logger = logging.getLogger(__name__)

GOODBYE_S = 3.0
"""Seconds that workers have to leave on their own when a run closes."""


@dataclass(slots=True)
class Traffic:
    """Bytes and refusals of a run, for `stats`."""

    bytes_sent: int = 0
    bytes_received: int = 0
    refused_messages: int = 0
    unproven_connections: int = 0


def open_session(
    config: EnvConfig,
    launcher: LauncherConfig,
    source: EnvSource,
    counts: Sequence[int],
    layouts: tuple[SpaceLayout, SpaceLayout],
    name: str,
) -> LocalSession | SerialSession:
    """Start the workers and return once all have built their environments; nothing is left after an error.

    The environments' `name` is for people.
    """
    noise_seed = secrets.randbits(62) if config.seed is None else int(config.seed) % (1 << 62)
    welcomes = _welcomes(config, source, counts, noise_seed, launcher)
    head = Head(welcomes, config, (layouts[0].digest, layouts[1].digest))
    head.layouts = layouts
    if isinstance(launcher, LocalConfig) and launcher.serial:
        return SerialSession(head)
    return LocalSession(head, config, launcher, name)


def _runners(launcher: LauncherConfig, counts: Sequence[int]) -> int:
    """Runners of one worker: one for each of its cores; 0 where only the worker can know them."""
    if launcher.cpus_per_node is not None:
        return launcher.cpus_per_node
    if not isinstance(launcher, LocalConfig):
        return 0
    return max(1, len(os.sched_getaffinity(0)) // len(counts))


def _welcomes(
    config: EnvConfig, source: EnvSource, counts: Sequence[int], noise_seed: int, launcher: LauncherConfig
) -> list[tuple[m.Welcome, list[bytes]]]:
    assert config.autoreset_mode is not None, "the mode is known before a launch"
    welcomes = []
    first, sync = 0, config.sync_config
    runners, shares = _runners(launcher, counts), config.shared_memory and isinstance(launcher, LocalConfig)
    for rank, count in enumerate(counts):
        blobs, blob_of = source.part(first, count)
        welcome = m.Welcome(
            rank=rank,
            num_workers=len(counts),
            first_env=first,
            num_envs=count,
            env_blob_of=blob_of,
            noise_seed=noise_seed,
            autoreset_mode=config.autoreset_mode.value,
            same_bounds=config.observation_mode == "same",
            sys_path=search_path(),
            runners=min(runners, count),
            kl_threshold=sync.kl_threshold,
            auto_threshold=sync.auto_threshold,
            max_lag=sync.max_lag,
            max_age_s=sync.max_age_s,
            min_interval=sync.min_interval,
            sync=sync.sync,
            n_ref=sync.n_ref,
            lease_s=float(config.lease_s),
            head_grace_s=float(config.worker_grace_s),
            setup_timeout_s=float(config.setup_timeout_s),
            step_timeout_s=float(config.step_timeout_s),
            backend=source.backend,
            env_rebuilds=config.env_rebuilds,
            head_host=socket.gethostname() if shares else "",
        )
        welcomes.append((welcome, blobs))
        first += count
    return welcomes


def search_path() -> list[str]:
    """The folders in which this process finds modules, the script's first, as absolute paths."""
    return list(dict.fromkeys(str(Path(entry or ".").absolute()) for entry in sys.path))


class SerialSession:
    """Worker and environments inside this process, driven message by message, for a debugger."""

    def __init__(self, head: Head) -> None:
        """Build the environments here."""
        from clusterenv.pool import InlinePool

        def pool(setup: RunnerSetup, _: int) -> Pool:
            return InlinePool(setup)

        self.head = head
        self.traffic = Traffic()
        self._worker = Worker(self._to_head, pool)
        head.attach(self, None)
        try:
            self._to_head(_serial_hello(), (), 0)
            head.wait_ready()
        except BaseException:
            self.close(keep_logs=False)
            raise

    def send(
        self, peer: bytes, message: m.Message, frames: Sequence[Any], *, incarnation: int, sequence: int
    ) -> int:
        """Give the message to the worker, which carries it out before this returns."""
        size = sum(memoryview(frame).nbytes for frame in frames)
        self.traffic.bytes_sent += size
        self._worker.on_message(sequence, message, [_copy(frame) for frame in frames])
        return size

    def _to_head(self, message: m.Message, frames: Sequence[Any], sequence: int) -> None:
        copies = [_copy(frame) for frame in frames]
        size = sum(frame.nbytes for frame in copies)
        self.traffic.bytes_received += size
        self.head.on_message(
            Envelope(
                peer=b"serial",
                incarnation=0,
                sequence=sequence,
                message=message,
                frames=copies,
                nbytes=size,
            )
        )

    def close(self, *, keep_logs: bool) -> None:
        """Close the environments."""
        self._worker.close(timeout_s=GOODBYE_S)


def _copy(frame: Buffer) -> memoryview:
    """The bytes of a frame, apart from the array that the sender may write again."""
    return memoryview(frame.tobytes() if isinstance(frame, np.ndarray) else bytes(frame))


def _serial_hello() -> m.Hello:
    from clusterenv.service import hello

    return hello(0)


def _worker_command(rank: int, connection: Path | None, secret_env: Mapping[str, str]) -> WorkerCommand:
    """What starts a worker, which finds the keys in the file `connection` or else in its environment."""
    argv = (sys.executable, "-m", "clusterenv", "worker", "--rank", str(rank))
    where = () if connection is None else ("--connection", str(connection))
    return WorkerCommand((*argv, *where), secret_env=secret_env)


def launch_script(launcher: LauncherConfig) -> str:
    """What a run with `launcher` would start, as text; the name of its folder is made up."""
    run_dir = _parent_of_runs(launcher) / "clusterenv-run"
    if isinstance(launcher, SlurmConfig) and launcher.shared_folder is None:
        path, secret_env = None, {CONNECTION_VARIABLE: ""}
    else:
        path, secret_env = run_dir / CONNECTION_FILE, {}
    made = make_launcher(launcher, lambda rank: _worker_command(rank, path, secret_env), run_dir=run_dir)
    return made.request().script()


class LocalSession:
    """Worker processes of this machine (or of a launcher), connected over sockets."""

    def __init__(self, head: Head, config: EnvConfig, launcher: LauncherConfig, name: str) -> None:
        """Open the server, start the workers and wait for them."""
        self.head = head
        self._config = config
        self._server: Server | None = None
        self._launcher: Launcher | None = None
        self._closed, self._pid = False, os.getpid()
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="clusterenv-keeper", daemon=True)
        self._run_dir = make_run_dir(launcher)
        self._in_environment = isinstance(launcher, SlurmConfig) and launcher.shared_folder is None
        self._connection: Connection | None = None
        self._reporter: Reporter | None = None
        self._bring_back: Callable[[], None] | None = None
        self._stop_listening = close_on_sigterm(lambda: self.close(keep_logs=False))
        try:
            self._open(launcher, name)
        except BaseException as error:
            self.close(keep_logs=isinstance(error, WorkerLost | SetupTimeout))  # these name the logs
            raise

    def _open(self, launcher: LauncherConfig, name: str) -> None:
        run_id, keys = secrets.randbits(64), RunKeys.generate()
        heartbeat_s = min(5.0, float(self._config.lease_s) / 2)
        raise_descriptor_limit()  # who connects without a key holds one for some seconds
        self._server = Server(
            keys=keys,
            run_id=run_id,
            on_message=self.head.on_message,
            port_range=launcher.port_range,
            loopback_only=isinstance(launcher, LocalConfig),
            interface=None if isinstance(launcher, LocalConfig) else launcher.interface,
            max_message_bytes=self._config.max_message_bytes,
            heartbeat_s=heartbeat_s,
            shared_memory=self._config.shared_memory,
            num_workers=len(self.head.peers),
        )
        self._connection = Connection.for_worker(
            keys,
            run_id,
            self._server.endpoints,
            max_message_bytes=self._config.max_message_bytes,
            heartbeat_s=heartbeat_s,
            interface=None if isinstance(launcher, LocalConfig) else launcher.worker_interface,
        )
        if not self._in_environment:
            self._connection.write(self._connection_path)
        self._launcher = make_launcher(launcher, self._command, run_dir=self._run_dir)
        self.head.attach(self._server, _LauncherProcesses(self._launcher, self._renew_keys))
        run = Description(run_id, self._run_dir, name, launcher, self.head, self._launcher)
        self._reporter = Reporter(self._run_dir, run)
        self._reporter.begin()
        self._launcher.submit()
        self._keeper.start()
        if isinstance(launcher, LocalConfig):
            self.head.wait_ready()
        else:
            least = launcher.min_nodes if isinstance(launcher, SlurmConfig) else None
            self.head.wait_ready(least, launcher.queue_timeout_s)
            _warn_of_few_cores(launcher, self.head.peers)
        if len(self.head.peers) >= MANY_WORKERS:
            self._bring_back = set_aside()
        self._reporter.report()

    def _keep(self) -> None:
        """On a thread of its own, for as long as the run lasts."""
        while not self._ending.wait(POLL_S):
            try:
                self.head.keep()
            except Exception:
                logger.exception("looking after the workers failed; the next look comes soon")

    def _renew_keys(self) -> None:
        """Keys are there for a replacement: a worker that was cut off takes us for gone and removes them."""
        if self._connection is not None and not self._in_environment and not self._connection_path.exists():
            self._connection.write(self._connection_path)

    def _remove_keys(self) -> None:
        if not self._run_dir.is_symlink():  # what lies in a folder that a link leads to is not of this run
            self._connection_path.unlink(missing_ok=True)

    @property
    def _connection_path(self) -> Path:
        return self._run_dir / CONNECTION_FILE

    def _command(self, rank: int) -> WorkerCommand:
        assert self._connection is not None
        if self._in_environment:
            return _worker_command(rank, None, self._connection.to_env())
        return _worker_command(rank, self._connection_path, {})

    @property
    def traffic(self) -> Traffic:
        """Bytes and refusals so far."""
        server = self._server
        assert server is not None
        refused = server.refused_messages + self.head.refused_peers
        return Traffic(server.bytes_sent, server.bytes_received, refused, server.unproven_connections)

    def close(self, *, keep_logs: bool) -> None:
        """Say goodbye, then make sure; the logs stay if asked."""
        if self._closed or os.getpid() != self._pid:  # in a fork of the head the run is not ours to end
            return
        self._closed, deadline = True, time.monotonic() + GOODBYE_S
        self._ending.set()
        self._stop_listening()
        with contextlib.ExitStack() as ends:  # run last one first, each whatever the others do
            if not keep_logs:
                ends.callback(remove_folder, self._run_dir)
            ends.callback(self._remove_keys)
            if self._bring_back is not None:
                ends.callback(self._bring_back)
            if self._reporter is not None:
                ends.callback(self._reporter.end, keep=keep_logs)
            if self._server is not None:
                ends.callback(self._server.close, timeout_s=1.0)
            if self._launcher is not None:
                launcher = self._launcher
                ends.callback(lambda: launcher.cancel(timeout_s=max(1.0, deadline - time.monotonic())))
            if self._keeper.is_alive():
                self._keeper.join(timeout=GOODBYE_S)
            if self._server is not None:
                self.head.say_goodbye("the head closed the run", GOODBYE_S)


def make_run_dir(launcher: LauncherConfig) -> Path:
    """A new folder that only this user can enter, in a place that workers share if the launcher names one."""
    parent = _parent_of_runs(launcher)
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))  # made 0700
    except OSError as error:
        raise LaunchError(
            f"no folder for the run can be made in {parent}: {error.strerror}; shared_folder names another "
            "that head and workers share, or is None if there is none"
        ) from error


def _parent_of_runs(launcher: LauncherConfig) -> Path:
    shared = None if isinstance(launcher, LocalConfig) else launcher.shared_folder
    return Path(tempfile.gettempdir()) if shared is None else Path(shared).expanduser()


def _warn_of_few_cores(launcher: ManualConfig | SlurmConfig, peers: Sequence[Peer]) -> None:
    """Say once that a worker has fewer cores than environments, where nobody has asked for a number."""
    for peer in peers:
        if launcher.cpus_per_node is None and peer.hello is not None and peer.hello.cpus < peer.num_envs:
            logger.warning(
                "worker %d on %s may use %d core(s) for %d environments; cpus_per_node asks for more",
                peer.rank,
                peer.host,
                peer.hello.cpus,
                peer.num_envs,
            )
            return


class _LauncherProcesses:
    """A launcher, as the head wants to see it."""

    def __init__(self, launcher: Launcher, before_respawn: Callable[[], None]) -> None:
        self._launcher = launcher
        self._before_respawn = before_respawn

    def ended(self) -> Mapping[int, Ended]:
        return {
            status.rank: Ended(status.exit_code, status.signal, status.job_id, status.detail)
            for status in self._launcher.poll()
            if status.state in (WorkerState.EXITED, WorkerState.FAILED)
        }

    def pending(self) -> Mapping[int, str]:
        return {s.rank: s.detail for s in self._launcher.poll() if s.state is WorkerState.PENDING}

    def look_soon(self) -> None:
        if isinstance(self._launcher, AsksAround):
            self._launcher.look_soon()

    def respawn(self, rank: int, incarnation: int) -> None:
        self._before_respawn()
        self._launcher.respawn(rank, incarnation)

    def log_path(self, rank: int) -> Path | None:
        return self._launcher.poll()[rank].log_path

    def log_tail(self, rank: int) -> str:
        return self._launcher.log_tail(rank)
