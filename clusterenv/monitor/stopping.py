"""End a run in good order: tell its head, wait, and clear away what a dead head has left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from clusterenv.errors import LaunchError
from clusterenv.identity import Life, ProcessIdentity
from clusterenv.launchers.slurm_commands import Slurm, clean_environment
from clusterenv.launchers.slurm_states import JobId
from clusterenv.lifetime import kill_tree
from clusterenv.monitor.finding import FoundRun, RunState, again
from clusterenv.private_files import remove_folder
from clusterenv.run_records import read_folder, strike

LOOK_EVERY_S: Final = 0.05
WORKERS_LEAVE_S: Final = 8.0
"""How long workers without a head may take to leave before they are killed."""
KILLED_WITHIN_S: Final = 5.0
VANISHES_WITHIN_S: Final = 1.0

Say = Callable[[str], object]


class Stopping:
    """Ends runs, and says what it does."""

    def __init__(self, timeout_s: float, say: Say, *, force: bool) -> None:
        """Wait `timeout_s` for each head; with `force` kill those that have not ended the run by then."""
        self._timeout_s = timeout_s
        self._say = say
        self._force = force
        self._told: dict[ProcessIdentity, bool] = {}

    def stop(self, runs: Sequence[FoundRun]) -> bool:
        """Whether all of them have ended and nothing of them is left."""
        for run in runs:  # all are told before the first is waited for
            if run.status.head not in self._told and _is_here(run):
                self._told[run.status.head] = self._tell(run)
        return all([self._end(run) for run in runs])

    def _end(self, run: FoundRun) -> bool:
        told = self._told.get(run.status.head)
        if told is not None and run.state is RunState.RUNNING:
            return ((told and self._wait(run)) or self._kill(run)) and self._clear(run)
        over = run.state in (RunState.DEAD, RunState.ENDED) or run.status.head.life is Life.DEAD
        if over or (self._force and run.state is not RunState.RUNNING):
            return self._clear(run)
        self._refuse(run)
        return False

    # --- a head that lives here -------------------------------------------------------------------------

    def _tell(self, run: FoundRun) -> bool:
        """Whether the head was told to end; by a signal that it has a handler for, if there is one."""
        head = run.status.head
        # A run handles SIGTERM itself and ends the process then, which is a kernel's end.
        numbers = [signal.SIGINT] if run.status.notebook else [signal.SIGINT, signal.SIGTERM]
        number = head.first_handled(*numbers)
        if number is None and run.status.notebook:
            self._say(
                f"run {run.short_id}: its head is a notebook ({run.where}) that runs no cell; "
                "call env.close() in it, or end its kernel by --force\n"
            )
            return False
        number = number or signal.SIGTERM
        if not head.send(number) and head.life is Life.ALIVE:
            self._say(f"run {run.short_id}: {run.where} is not a process of this user\n")
            return False
        self._say(f"run {run.short_id}: told its head ({run.where}) to end, by {number.name}\n")
        return True

    def _wait(self, run: FoundRun) -> bool:
        """Whether the run has ended within the time given."""
        deadline = time.monotonic() + self._timeout_s
        while not _is_over(run):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_S)
        return True

    def _kill(self, run: FoundRun) -> bool:
        """Whether the head was killed, which is only done by force."""
        head = run.status.head
        if not self._force:
            if self._told[head]:
                self._say(
                    f"run {run.short_id}: has not ended within {self._timeout_s:g} s; --timeout-s waits "
                    "longer, --force kills its head\n"
                )
            return False
        if head.send(signal.SIGKILL):
            self._say(f"run {run.short_id}: killed its head ({run.where})\n")
        deadline = time.monotonic() + KILLED_WITHIN_S
        while head.life is Life.ALIVE and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        return head.life is not Life.ALIVE

    def _refuse(self, run: FoundRun) -> None:
        head = run.status.head
        self._say(
            f"run {run.short_id}: its head ({run.where}) cannot be reached from here; on {head.host} use: "
            f"clusterenv stop {run.short_id}\n"
        )
        if run.state is not RunState.RUNNING:
            self._say(
                f"run {run.short_id}: if {head.host} is gone, --force clears away what can be reached\n"
            )

    # --- what is left -----------------------------------------------------------------------------------

    def _clear(self, run: FoundRun) -> bool:
        """Whether nothing is left: jobs cancelled, workers ended, the folder removed."""
        if not run.has_folder and run.status.head.life is not Life.ELSEWHERE:
            self._say(f"run {run.short_id}: has ended\n")
            strike(run.status)
            return True
        cleared = self._cancel_jobs(run) and self._end_workers(run)
        if cleared and read_folder(run.folder) is not None:  # which is this user's alone
            cleared = remove_folder(run.folder)
            self._say(f"run {run.short_id}: {'removed' if cleared else 'could not remove'} {run.folder}\n")
        elif cleared and not _vanishes(run):
            self._say(
                f"run {run.short_id}: {run.folder} stays, since it is not a folder of this run that only "
                "this user can enter\n"
            )
        if cleared:
            strike(run.status)
        return cleared

    def _cancel_jobs(self, run: FoundRun) -> bool:
        """Whether no job of the run is left, as far as Slurm says."""
        if run.status.launcher != "slurm":
            return True
        slurm = Slurm(clean_environment(os.environ))
        try:
            jobs = slurm.jobs_of(run.folder, run.status.clusters)
            if jobs:
                slurm.cancel([JobId(job, run.status.clusters) for job in jobs])
                self._say(f"run {run.short_id}: cancelled Slurm job {', '.join(jobs)}\n")
        except LaunchError as error:
            known = sorted({worker.job_id for worker in run.status.workers if worker.job_id})
            self._say(
                f"run {run.short_id}: its folder stays, since Slurm cannot be asked for its jobs "
                f"({', '.join(known) or 'none known'}): {error}\n"
            )
            return False
        return True

    def _end_workers(self, run: FoundRun) -> bool:
        """Whether no worker of the run is left on this host; those on others leave without their head."""
        workers = _workers_here(run)
        for worker in workers:
            _quietly(worker.terminate)
        _, stay = psutil.wait_procs(workers, timeout=WORKERS_LEAVE_S)
        for worker in stay:
            kill_tree(worker.pid)
        _, left = psutil.wait_procs(stay, timeout=KILLED_WITHIN_S)
        if workers:
            self._say(f"run {run.short_id}: ended {len(workers) - len(left)} worker(s)\n")
        return not left


def _is_here(run: FoundRun) -> bool:
    """Whether the head lives, on this host, and has not ended the run."""
    return run.state is RunState.RUNNING and run.status.head.life is Life.ALIVE


def _is_over(run: FoundRun) -> bool:
    if run.status.head.life is not Life.ALIVE:
        return True
    now = again(run)
    if now is None:
        return run.reported
    return now.state is RunState.ENDED


def _vanishes(run: FoundRun) -> bool:
    """Whether the folder is gone, or will be in a moment: another `stop`, or the head, may be removing it."""
    deadline = time.monotonic() + VANISHES_WITHIN_S
    while run.has_folder:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _workers_here(run: FoundRun) -> list[psutil.Process]:
    """Processes of this user that were started with the connection file of the run."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.uids().effective == os.geteuid()
            if own and str(run.status.connection_path) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except psutil.Error:
        return
