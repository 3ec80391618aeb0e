"""Start the learners of a data-parallel run on this machine, and end all if one ends; or be one of them.

Under Slurm, `srun` starts them: each task of a step is a learner, and finds its place in Slurm's variables.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import torch

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ClusterEnvError, ConfigError
from clusterenv.learners.devices import learner_device, learners_backend
from clusterenv.learners.interrupts import Interrupts
from clusterenv.learners.options import Options
from clusterenv.learners.parallel import LOOK_EVERY_S, LearnerLost, Seat, size
from clusterenv.lifetime import describe_exit, end_with_parent, kill_tree
from clusterenv.transport.addresses import candidate_addresses, read_interfaces
from clusterenv.worker import granted_cores
from clusterenv_registry import RegistryError

ALGORITHMS = ("ppo", "a2c", "impala")
"""Those that several learners can train."""
SEAT = "CLUSTERENV_LEARNER"
"""Variable that tells a learner its rank, how many there are, and the folder that they share."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable of gloo: the network interface that learners reach each other by."""
REFUSED = 2
LOST = 3
"""Exit status of a learner that ends because another has gone."""
OTHERS_S = 5.0
"""Seconds in which the others notice by themselves that one has ended, before they are told to end."""
LEAVE_S = 30.0
"""Seconds in which a learner that is told to end has to; it closes its environments and saves."""
SHOWN_LINES = 15


def own_seat(learners: int, environ: Mapping[str, str] = os.environ) -> Seat | None:
    """The place of this process among that many learners; None if it is to start them.

    Raises:
        ConfigError: if this process is one of another number of tasks of a Slurm step.
    """
    if SEAT in environ:
        number, size, folder = environ[SEAT].split(":", 2)
        return Seat(int(number), int(size), Path(folder))
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1:
        return None
    if tasks != learners:
        raise ConfigError("learners", learners, f"{tasks}, as many as this Slurm step has tasks")
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}.{environ.get('SLURM_JOB_START_TIME', '')}"
    shared = Path(str(SlurmConfig().shared_folder)).expanduser()
    return Seat(int(environ["SLURM_PROCID"]), tasks, shared / f"learners-{step}")


def learners_here() -> int:
    """How many learners of the run share this machine's cores; those of a Slurm step have their own."""
    return size() if SEAT in os.environ else 1


def share_of(launcher: LocalConfig | SlurmConfig, seat: Seat) -> LocalConfig | SlurmConfig:
    """The launcher of one learner: on one machine, its workers have their share of the cores."""
    if SEAT not in os.environ or not isinstance(launcher, LocalConfig) or launcher.serial:
        return launcher
    cores = granted_cores(os.environ) // (seat.size * launcher.nodes)
    return replace(launcher, cpus_per_node=max(1, cores))


def main(algorithm: str, argv: Sequence[str], config: Options, launcher: LocalConfig | SlurmConfig) -> int:
    """Start the learners that `config` asks for, and give the exit status; or be one of them, and end.

    Raises:
        ConfigError: if there cannot be that many.
    """
    _check_algorithm(algorithm, config.learners)
    seat = own_seat(config.learners)
    if seat is None:
        return run_learners(algorithm, argv, config.learners)
    if SEAT in os.environ:
        end_with_parent()
    else:
        os.environ.setdefault(INTERFACE, _routed_interface())
    train = import_module(f"clusterenv.learners.{algorithm}").train
    try:
        device = learner_device(config.device, large=True, rank=seat.rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        joined = seat.joined(timeout_s=config.learner_timeout, backend=learners_backend(device))
        with Interrupts() as interrupts, joined:
            train(config, share_of(launcher, seat))
        status = interrupts.status
    except (ClusterEnvError, RegistryError) as error:
        sys.stderr.write(f"clusterenv: {error}\n")
        status = LOST if isinstance(error, LearnerLost) else REFUSED
    except Exception:  # noqa: BLE001 - shown as Python does, but for its finalisation
        traceback.print_exc()
        status = 1
    if SEAT not in os.environ and seat.rank == 0:
        seat.clear_away()
    return _leave(status)


def _leave(status: int) -> NoReturn:
    """End the process at once: threads of gloo that let go of tensors abort while Python is finalised."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _routed_interface() -> str:
    """Where learners on other hosts reach this one; gloo would take what its own name resolves to."""
    address = candidate_addresses()[0]
    return next(item.name for item in read_interfaces() if item.address == address)


def check_learners(algorithm: str, learners: int) -> None:
    """Several learners are asked for where they are: in processes that the command has started.

    Raises:
        ConfigError: if not.
    """
    _check_algorithm(algorithm, learners)
    if learners != size():
        expected = f"{size()} in `train`; `clusterenv train {algorithm} --learners {learners}` starts several"
        raise ConfigError("learners", learners, expected)


def _check_algorithm(algorithm: str, learners: int) -> None:
    if learners > 1 and algorithm == "a3c":
        expected = "1 of a3c, each of whose updates is of one fragment, so that there is nothing to average"
        raise ConfigError("learners", learners, f"{expected}; give it more workers, or take impala")
    if learners > 1 and algorithm not in ALGORITHMS:
        names = f"{', '.join(ALGORITHMS[:-1])} and {ALGORITHMS[-1]}"
        raise ConfigError("learners", learners, f"1, since only {names} take several")


def run_learners(algorithm: str, argv: Sequence[str], learners: int) -> int:
    """Run that many learners of a command line to their end; the exit status, above 128 after a signal.

    The first one's output is this process's. Once one has ended badly, all have within half a minute.
    """
    with TemporaryDirectory(prefix="clusterenv-learners-") as name, Interrupts() as interrupts:
        folder = Path(name)
        command = [sys.executable, "-m", "clusterenv", "train", algorithm, *argv]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(learners):
                processes.append(_started(command, number, learners, folder))
            failed = _watched(processes)
            hangs = failed is not None and processes[failed].returncode is None
        finally:
            _end_all(processes, interrupts)
        if failed is None:
            return 0
        return _told(processes, failed, hangs, folder)
    return interrupts.status


def _started(command: Sequence[str], number: int, learners: int, folder: Path) -> subprocess.Popen[bytes]:
    environ = {INTERFACE: "lo", **os.environ, SEAT: f"{number}:{learners}:{folder / 'shared'}"}
    if number == 0:
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
    with _log(folder, number).open("wb") as log:
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _log(folder: Path, number: int) -> Path:
    return folder / f"learner-{number}.log"


def _watched(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for the end of all learners, or of one that fails; which one has failed, None: all are well."""
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            return _first_to_fail(processes)
        if all(code == 0 for code in codes):
            return None
        time.sleep(LOOK_EVERY_S)


def _first_to_fail(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """The learner that no other's end has ended: by a signal, by an error of its own, or one that hangs."""
    deadline = time.monotonic() + OTHERS_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    codes = {number: process.returncode for number, process in enumerate(processes) if process.returncode}
    living = [number for number, process in enumerate(processes) if process.returncode is None]
    if living and set(codes.values()) == {LOST}:
        return living[0]

    def likely(number: int) -> tuple[bool, bool, int]:
        return codes[number] == LOST, codes[number] > 0, number

    return min(codes, key=likely)


def _end_all(processes: Sequence[subprocess.Popen[bytes]], interrupts: Interrupts) -> None:
    """No learner runs any more; the first ones are told first, since they save."""
    number = interrupts.status - 128 if interrupts.status else 15
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
    deadline = time.monotonic() + LEAVE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()


def _told(processes: Sequence[subprocess.Popen[bytes]], failed: int, hangs: bool, folder: Path) -> int:
    """Say which learner has failed, with the end of its output if that was not seen; the exit status."""
    code = processes[failed].returncode
    what = f"has ended with {describe_exit(code)}, and with it the others"
    if hangs:
        what = "did not do what the others waited for, and all were ended"
    sys.stderr.write(f"clusterenv: learner {failed} of {len(processes)} {what}\n")
    if failed:
        lines = _log(folder, failed).read_text(encoding="utf-8", errors="replace").splitlines()
        sys.stderr.write("".join(f"  | {line}\n" for line in lines[-SHOWN_LINES:]))
    return code if 0 < code < 128 else 1
