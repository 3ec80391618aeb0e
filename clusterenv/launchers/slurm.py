"""Workers as Slurm jobs: submitted, watched without waiting for Slurm, replaced, and always cancelled."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field

from clusterenv.errors import LaunchError
from clusterenv.launchers.base import WorkerState, WorkerStatus, end_of_log
from clusterenv.launchers.slurm_commands import Slurm
from clusterenv.launchers.slurm_records import ExitRecords
from clusterenv.launchers.slurm_request import SlurmRequest, SlurmScript
from clusterenv.launchers.slurm_states import JobId, JobInfo, explain_pending, shell_status
from clusterenv.launchers.slurm_watch import JobWatch

AT_EXIT_S = 2.0
"""How long jobs may take to end when the interpreter exits without a `cancel`."""
ENDING_S = 2.0
"""How much longer the end of cancelled jobs is waited for. Slurm sees to it, but is slow with dead nodes."""
AT_LEAST_S = 2.0
"""How long a command may take that must be tried, however late it is."""
SETTLE_S = 40.0
"""How long a job may take from its workers' end to its own; Slurm kills what is left of it after 30 s."""
SETTLE_EVERY_S = 0.5
LEAVING_S, LEAVING_EVERY_S = 1.0, 0.1
"""How long workers that have said goodbye may take to end before their job is cancelled."""
PATIENCE_S = 5.0
"""Seconds in the queue before that is told."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    """A job, or job array, that Slurm has accepted."""

    id: JobId
    script: SlurmScript
    submitted_at: float = field(default_factory=time.monotonic)
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Its hosts as they were when it started; Slurm strikes lost ones from a job that goes on without."""

    def key(self, rank: int) -> str:
        """How Slurm names what holds this rank."""
        return f"{self.id}_{rank}" if self.script.array else str(self.id)

    @property
    def keys(self) -> list[str]:
        """How Slurm names its elements, or itself."""
        return [self.key(rank) for rank in self.script.ranks] if self.script.array else [str(self.id)]

    @property
    def holds_one_worker(self) -> bool:
        """Whether ending it ends no other worker."""
        return len(self.script.ranks) == 1 and not self.script.array


class SlurmLauncher:
    """Submits one job for all workers, or an array, and a job of one node for each that must be replaced.

    Slurm is only ever asked on threads of this object's own, but by `submit` and `cancel`.
    """

    def __init__(self, request: SlurmRequest, slurm: Slurm) -> None:
        """Be ready to submit `request` by `slurm`; nothing runs yet."""
        self._request = request
        self._slurm = slurm
        self._watch = JobWatch(slurm.query, self._on_change)
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clusterenv-sbatch")
        self._pending: list[Future[None]] = []
        self._lock = threading.RLock()  # a signal handler may cancel while this thread is inside
        self._jobs: list[_Job] = []
        self._job_of: dict[int, _Job] = {}
        self._troubles: dict[int, str] = {}
        self._why_it_waits: dict[str, tuple[JobInfo, str]] = {}
        self._records = ExitRecords(request.run_dir)
        self._told_of_waiting = ""
        self._used = False
        self._cancelled = False
        self._left = False
        self._owner_pid = os.getpid()

    def request(self) -> SlurmRequest:
        """What `submit` would start; asking has no effect."""
        return self._request

    def submit(self) -> None:
        """Hand all workers to Slurm.

        Raises:
            LaunchError: if Slurm refuses the job, with all that it says, or if this launcher was used before.
        """
        with self._lock:
            if self._used:
                raise LaunchError("this launcher has started or cancelled its workers before; make a new one")
            self._used = True
        atexit.register(self._cancel_at_exit)
        # On the other thread, so that Ctrl-C cannot lose the number of a job that Slurm has accepted.
        self._later(lambda: self._submit(self._request.first())).result()

    def respawn(self, rank: int, incarnation: int) -> None:
        """Have the worker of `rank` started again as `incarnation`; returns at once, `poll` tells the rest.

        A job that Slurm has put back into its queue brings the worker back by itself; else a job of one node
        is submitted, and what is left of the old one is cancelled if no other worker is in it.

        Raises:
            LaunchError: if the workers were cancelled.
        """
        if self._cancelled:
            raise LaunchError("the workers were cancelled; none is started again")
        self._troubles[rank] = ""
        self._later(lambda: self._replace(rank, incarnation))

    def poll(self) -> list[WorkerStatus]:
        """The status of every worker, by rank, as it was known at the last look."""
        if self._request.shared and self._jobs and self._records.read():
            self._watch.look_soon()  # Slurm may know why they ended
        with self._lock:
            self._tell_of_waiting()
            return [self._status(rank) for rank in range(len(self._request.commands))]

    def log_tail(self, rank: int, lines: int = 20) -> str:
        """The end of the worker's log, or of its job's if the worker has none; nothing if not shared."""
        if self._request.log_folder is None:
            return ""
        tail = end_of_log(self._request.log_path(rank), lines)
        job = self._job_of.get(rank)
        if tail or job is None:
            return tail
        path = self._request.job_log_path(job.key(rank))
        return "" if path is None else end_of_log(path, lines)

    def look_soon(self) -> None:
        """Ask Slurm within moments, since something has happened that its answer may explain."""
        self._watch.look_soon()

    def cancel(self, timeout_s: float) -> None:
        """End every job, pending ones too; processes that ignore SIGTERM Slurm kills after its KillWait.

        That is waited for, but no longer than `timeout_s` and some seconds. May be called at any time, from
        any thread and any number of times.
        """
        if os.getpid() != self._owner_pid:  # a fork of the head: the jobs are not its own
            return
        self._used = self._cancelled = True
        self._queue.shutdown(wait=False, cancel_futures=True)
        wait(self._pending, timeout=max(timeout_s, AT_LEAST_S))  # a job just being accepted gets its number
        with self._lock:
            self._left = True  # what is accepted from here on is cancelled where it is submitted
        if not all(each.done() for each in self._pending):
            _log.warning("sbatch has not answered yet; a job that Slurm still accepts is cancelled then")
        try:
            self._let_leave(min(timeout_s, LEAVING_S))
            if not self._all_ended():
                self._scancel(timeout_s)
        finally:
            self._watch.stop()
            atexit.unregister(self._cancel_at_exit)
        left = [job.id.number for job in self._jobs if any(self._runs_on(key) for key in job.keys)]
        if left:
            _log.warning("Slurm jobs are not known to have ended; end them by: scancel %s", " ".join(left))

    # --- submitting -------------------------------------------------------------------------------------

    def _later(self, action: Callable[[], None]) -> Future[None]:
        future = self._queue.submit(action)
        self._pending = [each for each in self._pending if not each.done()] + [future]
        return future

    def _submit(self, script: SlurmScript) -> None:
        request = self._request
        path = request.run_dir / script.name
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script.text)
        if request.log_folder is not None:
            with suppress(OSError):  # it may exist on the nodes alone
                request.log_folder.mkdir(parents=True, exist_ok=True)
        job = _Job(self._slurm.submit(path, (), script.secret_env), script)
        _log.info("Slurm has accepted job %s for %d workers", job.id, len(script.ranks))
        with self._lock:
            late = self._left
            self._jobs.append(job)
            for rank in script.ranks:
                self._job_of[rank] = job
                self._troubles.pop(rank, None)
        if late:
            self._cancel_late(job)
        else:
            self._watch.add(job.id, len(script.ranks) if script.array else 0)

    def _replace(self, rank: int, incarnation: int) -> None:
        try:
            old = self._job_of.get(rank)
            info = None if old is None else self._settled(old, rank)
            if info is not None and info.state is WorkerState.PENDING:
                _log.info("Slurm itself brings worker %d back: job %s is %s", rank, old and old.id, info)
                self._troubles.pop(rank, None)
                return
            if old is not None and not (info is not None and info.ended):
                self._drop(old, rank)
            if not self._cancelled:
                self._submit(self._request.replacement(rank, incarnation))
        except (LaunchError, OSError) as error:
            _log.warning("worker %d could not be started again: %s", rank, error)
            self._troubles[rank] = f"could not be started again: {error}"

    def _settled(self, job: _Job, rank: int) -> JobInfo | None:
        """The newest about a worker's job; while it is coming to an end, wait for what becomes of it.

        It may be on its way back into the queue, and would be gone for good if it were cancelled now.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            self._watch.refresh()
            info = self._watch.info(job.key(rank))
            alone = job.script.array or job.holds_one_worker
            ending = info is not None and (
                info.word == "COMPLETING" or (alone and self._has_left(job, rank, info))
            )
            if info is None or info.ended or not ending or self._cancelled or time.monotonic() > deadline:
                return info
            time.sleep(SETTLE_EVERY_S)

    def _has_left(self, job: _Job, rank: int, info: JobInfo) -> bool:
        state, _, _ = self._ending(job, rank, info)
        return info.state is WorkerState.RUNNING and state in (WorkerState.EXITED, WorkerState.FAILED)

    def _drop(self, job: _Job, rank: int) -> None:
        """End what is left of a worker, if that ends no other."""
        if job.holds_one_worker or job.script.array:
            self._slurm.cancel([JobId(job.key(rank), job.id.cluster)])

    # --- watching ---------------------------------------------------------------------------------------

    def _on_change(self, key: str, info: JobInfo) -> None:
        """Tell of a change; runs on the thread that watches."""
        job = next((each for each in reversed(self._jobs) if key in each.keys), None)
        if job is not None and info.hosts:
            job.hosts.setdefault(f"{key}.{info.restarts}", info.hosts)
        if job is not None and info.lost_its_script and not self._cancelled:
            _log.warning(
                "Slurm job %s has lost %s, where its script ran, and would hold its other nodes until its "
                "time limit; it is cancelled, and its workers are to be started again",
                key,
                info.batch_host,
            )
            with suppress(LaunchError):
                self._slurm.cancel([job.id])
        why = None
        if info.state is WorkerState.PENDING and info.reason is not None:
            facts = self._slurm.partition(info.partition) if info.partition is not None else {}
            why = explain_pending(info.reason, info.partition, facts)
        if why is None:
            _log.info("Slurm job %s is %s", key, info)
        else:
            self._why_it_waits[key] = (info, why)
            _log.warning("Slurm job %s is %s and may never start: %s", key, info, why)

    def _status(self, rank: int) -> WorkerStatus:
        job = self._job_of.get(rank)
        state, code, signal, host, detail = WorkerState.PENDING, None, None, None, "not submitted"
        key = None if job is None else job.key(rank)
        trouble = self._troubles.get(rank)
        if trouble is not None:
            state = WorkerState.FAILED if trouble else WorkerState.PENDING
            detail = trouble or "is being submitted"
        elif job is not None and key is not None:
            info = self._watch.info(key)
            detail = f"Slurm job {key}"
            if info is not None:
                state, code, signal = self._ending(job, rank, info)
                host = self._host(job, rank, info)
                detail = " ".join([f"{detail} is {info}", *self._hints(key, info)])
        return WorkerStatus(
            rank=rank,
            state=state,
            pid=None,
            host=host,
            job_id=key,
            exit_code=code,
            signal=signal,
            log_path=self._request.log_path(rank),
            detail=detail,
        )

    def _hints(self, key: str, info: JobInfo) -> Iterator[str]:
        of, why = self._why_it_waits.get(key, (None, ""))
        if of == info:
            yield f"and may never start: {why}"
        if info.reason == "JobLaunchFailure" and self._request.log_folder is not None:
            yield (
                f"before its first line, perhaps because {self._request.log_folder} is not there on its "
                "node; set shared_folder to a folder that head and nodes share, or to None"
            )
        if self._watch.silent_s:
            yield f"as far as is known: Slurm has not answered for {self._watch.silent_s:.0f} s"

    def _ending(self, job: _Job, rank: int, info: JobInfo) -> tuple[WorkerState, int | None, int | None]:
        """(state, exit code, signal) of a worker: by its own record if there is one, else by its job."""
        if info.state is WorkerState.PENDING:
            return info.state, None, None
        code = self._records.code(rank, job.script.incarnation, info.restarts)
        if code is not None:
            return WorkerState.FAILED if code else WorkerState.EXITED, *shell_status(code)
        if info.lost_its_script or info.reason == "JobLaunchFailure":  # the latter with a made-up signal
            return WorkerState.FAILED, None, None
        if self._cancelled and info.word == "COMPLETING":  # Slurm sees to its end
            return WorkerState.FAILED, None, None
        return info.state, info.exit_code, info.signal

    @staticmethod
    def _host(job: _Job, rank: int, info: JobInfo) -> str | None:
        hosts = job.hosts.get(f"{job.key(rank)}.{info.restarts}", info.hosts)
        number = 0 if job.script.array else job.script.ranks.index(rank)
        return hosts[number] if number < len(hosts) else None

    def _tell_of_waiting(self) -> None:
        """Log which jobs still wait and why, once it has taken some seconds and whenever that changes."""
        waiting: dict[str, list[str]] = {}
        for job in self._jobs:
            for key in job.keys if time.monotonic() - job.submitted_at > PATIENCE_S else ():
                info = self._watch.info(key)
                if info is not None and info.state is WorkerState.PENDING:
                    waiting.setdefault(str(info), []).append(key)
        told = "; ".join(f"{', '.join(_few(keys))}: {info}" for info, keys in waiting.items())
        if told != self._told_of_waiting:
            self._told_of_waiting = told
            _log.warning(
                "Slurm jobs wait in the queue: %s" if told else "no Slurm job waits any more%s", told
            )

    # --- cancelling -------------------------------------------------------------------------------------

    def _cancel_at_exit(self) -> None:
        self.cancel(AT_EXIT_S)

    def _let_leave(self, timeout_s: float) -> None:
        """Give workers that are on their way out a moment, so that their job ends as completed."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(s.state is WorkerState.RUNNING for s in self.poll()):
            time.sleep(LEAVING_EVERY_S)
            if self._request.shared:
                self._records.read(now=True)
            else:
                self._watch.refresh(AT_LEAST_S)
        self._watch.refresh(AT_LEAST_S)

    def _scancel(self, timeout_s: float) -> None:
        """Tell all jobs to end, again and again if Slurm does not answer, and wait until they have."""
        deadline = time.monotonic() + timeout_s
        told = False
        pause_s = 0.05
        while not self._all_ended() and time.monotonic() < deadline + (ENDING_S if told else 0.0):
            left_s = max(AT_LEAST_S, deadline - time.monotonic())
            try:
                if not told:
                    self._slurm.cancel([job.id for job in self._jobs], timeout_s=left_s)
                    told = True
                self._watch.refresh(left_s)
            except LaunchError as error:
                _log.warning("Slurm jobs could not be cancelled: %s", error)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _cancel_late(self, job: _Job) -> None:
        """End a job that was accepted when `cancel` had stopped waiting for it."""
        try:
            self._slurm.cancel([job.id])
        except LaunchError as error:
            _log.warning("job %s could not be cancelled; end it by: scancel %s: %s", job.id, job.id, error)

    def _runs_on(self, key: str) -> bool:
        """Whether a job may go on: not if Slurm is already ending it."""
        info = self._watch.info(key)
        return info is None or not (info.ended or info.word == "COMPLETING")

    def _all_ended(self) -> bool:
        return not self._watch.running()


def _few(keys: list[str]) -> list[str]:
    return keys if len(keys) <= 4 else [*keys[:3], f"and {len(keys) - 3} more"]
