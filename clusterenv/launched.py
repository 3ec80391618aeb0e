"""The life of a vector of environments: launched once, one call at a time, closed for good."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

from clusterenv.awaiting import Awaiting, Result
from clusterenv.config import EnvConfig
from clusterenv.described import Described, Space
from clusterenv.errors import CallPending, StateError, UseAfterClose, WorkerLost
from clusterenv.run import Run
from clusterenv.session import LauncherConfig, launch_script, open_session
from clusterenv.sources import deal

R = TypeVar("R")


class Launched(Described):
    """Launches on the first call that needs workers, and closes when one of them is lost for good."""

    config: EnvConfig
    launcher: LauncherConfig
    _name: str

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._run: Run | None = None
        self._launched_by: Literal["launch", "reset"] | None = None
        self._awaiting = Awaiting()
        self._closed = False
        self._keep_logs = False

    def launch(self) -> tuple[Space, Space]:
        """Start the workers and return (single_observation_space, single_action_space) once all are ready.

        Implied by the first `reset`, `rollout` or `call`; after such a one it only returns the spaces.

        Raises:
            StateError: on a second explicit launch.
            EnvError, LaunchError, SetupTimeout, WorkerLost: if workers or environments do not come up;
                nothing is left running.
        """
        self._require_open()
        if self._launched_by == "launch":
            raise StateError("launch was called before; make a new ClusterEnv for another run")
        if self._run is None:
            self._open("launch")
        self._launched_by = "launch"
        return self.single_observation_space, self.single_action_space

    def script(self) -> str:
        """What would be started, such as the job script, as text without secrets; no cluster is asked."""
        return launch_script(self.launcher)

    def _open(self, by: Literal["launch", "reset"]) -> Run:
        facts = self._facts
        counts = deal(self.num_envs, self.launcher.nodes)
        config = replace(self.config, autoreset_mode=facts.autoreset_mode)
        session = open_session(config, self.launcher, facts.source, counts, facts.layouts, self._name)
        self._run = Run.over(session, config, facts, self.num_envs)
        self._launched_by = by
        weakref.finalize(self, _close_run, self._run, os.getpid())  # when dropped, and at exit
        return self._run

    def __enter__(self) -> Self:
        """The environments themselves; they are closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self, **_: Any) -> None:
        """End the workers and remove what the run made; takes a few seconds at most, twice is fine."""
        run, self._run = self._run, None
        self._closed = True
        if run is not None:
            run.streaming.is_open = False
            run.close(keep_logs=self._keep_logs)

    def _require_open(self) -> None:
        if self._closed:
            raise UseAfterClose("these environments are closed; make a new ClusterEnv")

    def _require_free(self, doing: str) -> None:
        """Return if no call is pending and no stream is open."""
        self._require_open()
        self._awaiting.refuse(doing)
        streaming = None if self._run is None else self._run.streaming
        if streaming is None or not streaming.is_open:
            return
        if not streaming.is_dropped:
            raise StateError(f"{doing} while a stream is open; close it first")
        self._call(streaming.close)

    def _require_idle(self, doing: str) -> None:
        """Return if a call may be made."""
        self._require_free(doing)
        if self._run is not None and self._run.send_recv.is_busy:
            raise CallPending(
                f"{doing} while environments are on their way; recv all of them first, or reset", "recv"
            )

    def _running(self) -> Run:
        return self._run or self._open("reset")

    def _call(self, run: Callable[[], R]) -> R:
        """Run a call to all workers; when one is lost, close before its error goes on."""
        try:
            return run()
        except (WorkerLost, KeyboardInterrupt) as error:
            self._keep_logs = isinstance(error, WorkerLost)
            self.close()
            raise

    def _streamed(self, run: Callable[[], R]) -> R:
        """What a stream does: as `_call`, while the environments are open."""
        self._require_open()
        return self._call(run)

    def _finished(self, what: str, timeout: float | None) -> Result:
        self._require_open()
        head = None if self._run is None else self._run.session.head
        return self._call(lambda: self._awaiting.finish(what, timeout, head))


def _close_run(run: Run, pid: int) -> None:
    if os.getpid() == pid:  # not in a process forked from ours
        run.close(keep_logs=False)
