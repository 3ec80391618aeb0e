"""A thread that asks Slurm now and then what became of some jobs, so that nobody has to wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from clusterenv.errors import LaunchError
from clusterenv.launchers.base import WorkerState
from clusterenv.launchers.slurm_states import GONE, JobId, JobInfo

QUICK_S: Final = (0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0)
"""Seconds between the first looks at something new: a job that dies at birth is noticed at once."""
STEADY_S: Final = 30.0
"""Seconds between two looks at jobs that wait."""
COMMAND_S: Final = 60.0
"""Limit of one question: with its controller away Slurm gives up by itself after 9 to 30 s."""
SLOWEST_S: Final = 240.0
"""Seconds to which looks slow down while all jobs run; below the 300 s for which Slurm remembers a job."""

Query = Callable[[list[JobId], float], Mapping[str, JobInfo]]
"""Asks Slurm about jobs and takes no longer than the number of seconds given."""

_log = logging.getLogger(__name__)


class Pace:
    """How long to wait until the next look: ever longer, and short again after every change."""

    def __init__(self) -> None:
        """Begin quickly."""
        self._looks = 0

    def restart(self) -> None:
        """Something has changed."""
        self._looks = 0

    def next_s(self, *, waiting: bool) -> float:
        """Seconds until the next look; `waiting`: some job has not started, or Slurm did not answer."""
        looks, self._looks = self._looks, self._looks + 1
        if looks < len(QUICK_S):
            return QUICK_S[looks]
        doubled = STEADY_S * 2.0 ** min(looks - len(QUICK_S), 10)
        return STEADY_S if waiting else min(doubled, SLOWEST_S)


class JobWatch:
    """The newest that is known of each job. Reading it takes no time; `refresh` asks Slurm and waits."""

    def __init__(self, query: Query, on_change: Callable[[str, JobInfo], None]) -> None:
        """Watch nothing yet; `query` asks Slurm, `on_change` is told of each new state or reason."""
        self._query = query
        self._on_change = on_change
        self._pace = Pace()
        self._jobs: dict[JobId, int] = {}
        self._known: dict[str, JobInfo] = {}
        self._wake = threading.Condition()
        self._asking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._soon = False
        self._silent_since: float | None = None

    def add(self, job: JobId, elements: int) -> None:
        """Watch `job`, or the `elements` of a job array (0: it is none), from now on."""
        with self._wake:
            for key in _keys(job, elements):
                self._known.pop(key, None)  # a controller that lost its state gives numbers out again
            self._jobs[job] = elements
            self._soon = True
            self._pace.restart()
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="clusterenv-slurm", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def look_soon(self) -> None:
        """Ask Slurm within moments: something has happened that its answer may explain."""
        with self._wake:
            self._soon = True
            self._pace.restart()
            self._wake.notify_all()

    def stop(self) -> None:
        """Ask no more; a question on its way is not waited for."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()

    def info(self, key: str) -> JobInfo | None:
        """What is known of a job ("12") or an element ("12_3"); None: nothing yet."""
        return self._known.get(key)

    def running(self) -> list[JobId]:
        """Jobs that have not ended, as far as is known; arrays as a whole."""
        with self._wake:
            return [job for job, elements in self._jobs.items() if not self._has_ended(job, elements)]

    @property
    def silent_s(self) -> float:
        """Seconds for which Slurm has not answered; 0 when it does."""
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    def refresh(self, timeout_s: float = COMMAND_S) -> bool:
        """Ask Slurm now; whether it answered in time."""
        deadline = time.monotonic() + timeout_s
        if not self._asking.acquire(timeout=timeout_s):
            return False
        try:
            return self._ask(max(0.1, deadline - time.monotonic()))
        finally:
            self._asking.release()

    def _run(self) -> None:
        while True:
            with self._wake:
                end = time.monotonic() + self._pace.next_s(waiting=self._waits())
                while not self._stopped and time.monotonic() < end:
                    if self._soon:
                        self._soon, end = False, min(end, time.monotonic() + QUICK_S[0])
                    self._wake.wait(end - time.monotonic())
                if self._stopped:
                    return
            with self._asking:
                self._ask(COMMAND_S)

    def _waits(self) -> bool:
        infos = [self._known.get(key) for job, elements in self._jobs.items() for key in _keys(job, elements)]
        return self.silent_s > 0 or any(info is None or info.state is WorkerState.PENDING for info in infos)

    def _ask(self, timeout_s: float) -> bool:
        jobs = self.running()
        if not jobs:
            return True
        try:
            answer = self._query(jobs, timeout_s)
        except LaunchError as error:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                _log.warning("Slurm does not answer; the workers run on, and it is asked again: %s", error)
            return False
        if self._silent_since is not None:
            _log.warning("Slurm answers again after %.0f s", self.silent_s)
            self._silent_since = None
        for job in jobs:
            for key in _keys(job, self._jobs[job]):
                self._learn(key, answer.get(key, GONE))
        return True

    def _learn(self, key: str, info: JobInfo) -> None:
        before = self._known.get(key)
        if info == before:
            return
        self._known[key] = info
        if before is None or (before.word, before.restarts) != (info.word, info.restarts):
            with self._wake:
                self._pace.restart()
        self._on_change(key, info)

    def _has_ended(self, job: JobId, elements: int) -> bool:
        infos = [self._known.get(key) for key in _keys(job, elements)]
        return all(info is not None and info.ended for info in infos)


def _keys(job: JobId, elements: int) -> list[str]:
    """How Slurm names the job, or each element of it."""
    return [f"{job}_{element}" for element in range(elements)] if elements else [str(job)]
