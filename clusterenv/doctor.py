"""`clusterenv doctor`: is this site ready? Checks this host, Slurm, and by a small job what a node can do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterenv.checks import positive
from clusterenv.diagnosis import Diagnosis
from clusterenv.errors import ClusterEnvError, LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import Launcher, WorkerCommand, WorkerState, make_launcher
from clusterenv.launchers.command import run
from clusterenv.private_files import remove_folder
from clusterenv.service import hello
from clusterenv.session import make_run_dir
from clusterenv.transport import Client, Connection, Envelope, RunKeys, Server
from clusterenv.transport import messages as m

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")
ENOUGH_FILES = 1024
ENOUGH_SHM_BYTES = 1 << 28
COMMAND_S = 30.0
LONGEST_ANSWER = 200
CONNECT_S = 30.0
LEAVE_S = 20.0
"""How long the test job may take to end when the doctor has seen enough."""


def main(argv: Sequence[str]) -> int:
    """Check the site as the options in `argv` say: 0 if all is well, else 1."""
    options = _parser().parse_args(argv)
    if options.node:
        return report_from_node(options.connection)
    positive("wait_s", options.wait_s)
    diagnosis = Diagnosis(sys.stdout.write)
    config = SlurmConfig(
        mode=options.mode,
        job_name="clusterenv-doctor",
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        time_limit=options.time_limit if options.mode != "srun" else None,
        cpus_per_node=options.cpus_per_node,
        gpus_per_node=options.gpus_per_node,
        setup=options.setup,
        interface=options.interface,
        worker_interface=options.worker_interface,
        shared_folder=options.shared_folder,
    )
    check_this_host(diagnosis, config)
    if check_slurm(diagnosis) and not options.no_job:
        with _signals_as_exits():
            check_a_node(diagnosis, config, options.wait_s)
    _conclude(diagnosis, config)
    return 0 if diagnosis.well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clusterenv doctor",
        description="Check this host, Slurm and, by a job of a minute, a node; print the settings to use.",
    )
    for name, what in (
        ("partition", "to submit to"),
        ("account", "to charge"),
        ("qos", "quality of service"),
        ("constraint", "features of the node"),
        ("interface", "where the head listens: an interface, an address or a subnet"),
        ("worker-interface", "from where the node connects, likewise"),
    ):
        parser.add_argument(f"--{name}", help=what)
    parser.add_argument(
        "--mode", choices=("sbatch", "srun"), default="sbatch", help="a job, or a step of this one"
    )
    parser.add_argument("--time-limit", default="2", help="of the test job (minutes)")
    parser.add_argument("--cpus-per-node", type=int, help="cores to ask for")
    parser.add_argument("--gpus-per-node", help='GPUs to ask for, such as 1 or "a100:1"')
    parser.add_argument("--setup", default="", help="shell lines of the job, such as 'module load cuda'")
    parser.add_argument(
        "--shared-folder", default=SlurmConfig.shared_folder, help="that head and nodes share"
    )
    parser.add_argument(
        "--wait-s", type=float, default=300.0, help="seconds to wait for the test job to start"
    )
    parser.add_argument("--no-job", action="store_true", help="do not start the test job")
    parser.add_argument("--node", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--connection", type=Path, help=argparse.SUPPRESS)
    return parser


# --- this host ------------------------------------------------------------------------------------------


def check_this_host(diagnosis: Diagnosis, config: SlurmConfig) -> None:
    """What the head needs where it runs."""
    from clusterenv.transport.addresses import candidate_addresses

    diagnosis.title(f"This host, {socket.gethostname()}")
    me = hello(0)
    diagnosis.add("Python", None, f"{me.python}, {me.executable}")
    _add_packages(diagnosis, me.versions)
    _add_limits(diagnosis, facts_of_this_host())
    try:
        addresses = candidate_addresses(config.interface)
        diagnosis.add("addresses for workers", True, ", ".join(addresses))
    except LaunchError as error:
        diagnosis.add("addresses for workers", False, str(error), "see --interface")


def _add_packages(diagnosis: Diagnosis, versions: dict[str, str]) -> None:
    missing = [name for name, version in versions.items() if version == "missing"]
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    diagnosis.add("packages", not missing, seen, "install clusterenv-rl with its dependencies in this Python")


def _add_limits(diagnosis: Diagnosis, facts: dict[str, Any]) -> None:
    files, shm = int(facts["open_files"]), int(facts["shm_free_bytes"])
    diagnosis.add("open files (ulimit -n)", files >= ENOUGH_FILES, str(files), "raise it: ulimit -n 4096")
    diagnosis.add(
        "/dev/shm",
        shm >= ENOUGH_SHM_BYTES,
        f"{shm / 2**20:,.0f} MiB free",
        "free some, or ask for more memory: shared memory counts as the job's",
    )


def facts_of_this_host() -> dict[str, Any]:
    """What a process may use here."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    return {
        "open_files": soft if soft != resource.RLIM_INFINITY else 1 << 30,
        "shm_free_bytes": 0 if shm is None else shm.f_bavail * shm.f_frsize,
        "affinity": sorted(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "gpus": _gpus(),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "system": platform.platform(),
    }


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout_s=COMMAND_S).stdout
    except LaunchError:
        return []
    return listed.splitlines()


# --- Slurm ----------------------------------------------------------------------------------------------


def check_slurm(diagnosis: Diagnosis) -> bool:
    """Slurm's commands, controller and partitions; whether a job can be tried."""
    diagnosis.title("Slurm")
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        diagnosis.add("commands", False, f"not found: {', '.join(missing)}", "run this on a login node")
        return False
    well, seen = _answer(["sbatch", "--version"], "slurm")
    diagnosis.add("commands", well, seen)
    up, seen = _answer(["scontrol", "ping"], "UP")
    diagnosis.add("controller", up, seen, "Slurm is away, or this host is not part of the cluster")
    job = os.environ.get("SLURM_JOB_ID")
    diagnosis.add("this process", None, f"inside job {job}" if job else "outside of any job")
    if up:
        _add_partitions(diagnosis)
    return up


def _add_partitions(diagnosis: Diagnosis) -> None:
    try:
        listed = run(["sinfo", "--noheader", "--format=%R|%a|%l|%D|%c|%m|%G"], timeout_s=COMMAND_S).stdout
    except LaunchError as error:
        diagnosis.add("partitions", False, _line(str(error), -1))
        return
    rows = [line.split("|") for line in listed.splitlines()]
    if not rows or any(len(row) != 7 for row in rows):
        diagnosis.add("partitions", False, f"`sinfo` lists none: {_line(listed, 0)}")
        return
    for name, state, limit, nodes, cpus, memory, gres in rows:
        seen = f"{state}, time limit {limit}, {nodes} nodes of {cpus} cores and {memory} MB, gres {gres}"
        diagnosis.add(f"partition {name}", None, seen)


def _answer(argv: Sequence[str], word: str) -> tuple[bool, str]:
    """Whether a command has succeeded and its answer has the `word`; its first line, or an error's last."""
    try:
        answer = run(argv, timeout_s=COMMAND_S).stdout
    except LaunchError as error:
        return False, _line(str(error), -1)
    return word in answer, _line(answer, 0)


def _line(text: str, number: int) -> str:
    """One line of a text as a terminal can show it."""
    lines = text.strip().splitlines() or ["nothing was printed"]
    return "".join(letter if letter.isprintable() else "?" for letter in lines[number][:LONGEST_ANSWER])


@contextmanager
def _signals_as_exits() -> Iterator[None]:
    """A closed terminal and SIGTERM end the doctor in good order too, and with it the test job."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


# --- a node ---------------------------------------------------------------------------------------------


def check_a_node(diagnosis: Diagnosis, config: SlurmConfig, wait_s: float) -> None:
    """Start a small job that connects back and tells what it finds; without shared files if need be."""
    diagnosis.title("A node, by a test job")
    try:
        shared = config.shared_folder is not None and _try_job(diagnosis, config, wait_s)
        if not shared:
            _try_job(diagnosis, replace(config, shared_folder=None), wait_s)
    except ClusterEnvError as error:
        diagnosis.add("test job", False, str(error), "the options of this command choose the job")


def _try_job(diagnosis: Diagnosis, config: SlurmConfig, wait_s: float) -> bool:
    """Whether it is settled what a node can do; not if all that failed is that no folder is shared."""
    inbox = _Inbox()
    with _test_job(config, inbox) as (launcher, endpoints):
        begin = time.monotonic()
        while not inbox.complete.wait(0.2):
            (status,) = launcher.poll()
            if "JobLaunchFailure" in status.detail:
                folder = config.shared_folder
                diagnosis.add("shared folder", None, f"{folder} is not there on the node: shared_folder=None")
                return False
            ended = status.state in (WorkerState.EXITED, WorkerState.FAILED)
            if ended and not inbox.complete.wait(2.0):
                hint = "its output ends so:\n" + launcher.log_tail(0)
                diagnosis.add("test job", False, f"{status.detail}: {status.ending}", hint)
                return True
            if time.monotonic() - begin > wait_s:
                why = "it has not reached this host" if status.state is WorkerState.RUNNING else "it waits"
                diagnosis.add("test job", False, f"{status.detail} after {wait_s:g} s: {why}", "see --wait-s")
                return True
        assert inbox.hello is not None
        diagnosis.settings["shared_folder"] = config.shared_folder
        _add_node(diagnosis, config, inbox.hello, json.loads(inbox.facts), endpoints)
    return True


def _add_node(
    diagnosis: Diagnosis, config: SlurmConfig, node: m.Hello, facts: dict[str, Any], endpoints: Sequence[str]
) -> None:
    diagnosis.add("test job", True, f"job {facts['job']} ran on {node.host}, {facts['system']}")
    used = str(facts["endpoint"])
    diagnosis.add("way to this host", True, f"{used}, {facts['connect_s']:.1f} s to connect")
    if used != endpoints[0]:
        address = used.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        diagnosis.settings["interface"] = address
    minor = [version.rpartition(".")[0] for version in (node.python, platform.python_version())]
    hint = "head and nodes need the same minor version"
    diagnosis.add("Python", minor[0] == minor[1], f"{node.python}, {node.executable}", hint)
    _add_packages(diagnosis, node.versions)
    here = hello(0).versions
    other = [name for name, version in node.versions.items() if version != here.get(name)]
    diagnosis.add(
        "same versions as here", not other, ", ".join(other) or "yes", "use one environment for both"
    )
    granted = f"{node.cpus} (affinity {len(facts['affinity'])}), OMP_NUM_THREADS={facts['threads']}"
    diagnosis.add("cores granted", None, granted)
    gpus = facts["gpus"]
    wanted = config.gpus_per_node not in (None, 0, "0")
    diagnosis.add("GPUs", bool(gpus) if wanted else None, ", ".join(gpus) or "none", "see --gpus-per-node")
    _add_limits(diagnosis, facts)


class _Inbox:
    """What the test job has said; filled on the server's thread."""

    def __init__(self) -> None:
        self.hello: m.Hello | None = None
        self.facts = ""
        self.complete = threading.Event()

    def on_message(self, envelope: Envelope) -> None:
        if isinstance(envelope.message, m.Hello):
            self.hello = envelope.message
        elif isinstance(envelope.message, m.Goodbye):
            self.facts = envelope.message.reason
            self.complete.set()


@contextmanager
def _test_job(config: SlurmConfig, inbox: _Inbox) -> Iterator[tuple[Launcher, list[str]]]:
    """A job whose node reports to `inbox`, and the endpoints that it tries; all is gone afterwards."""
    keys, run_id = RunKeys.generate(), secrets.randbits(64)
    run_dir = make_run_dir(config)
    try:
        server = Server(
            keys=keys,
            run_id=run_id,
            on_message=inbox.on_message,
            loopback_only=False,
            interface=config.interface,
            max_message_bytes=1 << 24,
            heartbeat_s=5.0,
        )
        try:
            connection = Connection.for_worker(
                keys, run_id, server.endpoints, interface=config.worker_interface
            )
            argv: tuple[str, ...] = (sys.executable, "-m", "clusterenv.doctor", "--node")
            if config.shared_folder is None:
                command = WorkerCommand(argv, secret_env=connection.to_env())
            else:
                connection.write(run_dir / "connection.json")
                command = WorkerCommand((*argv, "--connection", str(run_dir / "connection.json")))
            launcher = make_launcher(config, lambda _: command, run_dir=run_dir)
            try:
                launcher.submit()
                yield launcher, server.endpoints
            finally:
                launcher.cancel(LEAVE_S)
        finally:
            server.close(1.0)
    finally:
        remove_folder(run_dir)


def report_from_node(connection: Path | None) -> int:
    """On the node: reach the head, and tell it what is here."""
    client = Client(
        Connection.from_env() if connection is None else Connection.read(connection), incarnation=0
    )
    begin = time.monotonic()
    try:
        client.connect(CONNECT_S)
        facts = facts_of_this_host() | {"endpoint": client.endpoint, "connect_s": time.monotonic() - begin}
        client.send(hello(0), sequence=0)
        client.send(m.Goodbye(reason=json.dumps(facts)), sequence=0)
    except ClusterEnvError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        client.close(linger_s=5.0)
    return 0


# --- the end --------------------------------------------------------------------------------------------


def _conclude(diagnosis: Diagnosis, config: SlurmConfig) -> None:
    """What to do next: the settings to use, or what has failed."""
    failed = [finding.what for finding in diagnosis.findings if finding.well is False]
    if failed:
        diagnosis.title(f"{len(failed)} of these checks failed: {', '.join(failed)}")
        return
    names = ["partition", "account", "qos", "constraint", "cpus_per_node", "gpus_per_node", "interface"]
    names.append("worker_interface")
    settings = {name: getattr(config, name) for name in names} | diagnosis.settings
    default = SlurmConfig()
    shown = [f"{name}={value!r}" for name, value in settings.items() if value != getattr(default, name)]
    diagnosis.title("All is well. Use:")
    diagnosis.say(f"\n    SlurmConfig({', '.join(['nodes=...', *shown])})\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
