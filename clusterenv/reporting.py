"""The head's reports: what `clusterenv status` shows of a run, written by a thread of its own now and then.

Nothing that happens here reaches the run: a full disk or a folder that has vanished only makes reports old.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from clusterenv.head import Head
from clusterenv.identity import ProcessIdentity
from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
from clusterenv.launchers.base import Launcher
from clusterenv.launchers.base import WorkerStatus as Launched
from clusterenv.peers import Peer, worker_stats
from clusterenv.run_records import RunStatus, WorkerStatus, enter, strike, write_status

REPORT_EVERY_S: Final = 2.0
STOP_WITHIN_S: Final = 1.0
"""How long a report on its way to a slow disk is waited for when the run ends."""
LONGEST_NOTE: Final = 500

_log = logging.getLogger(__name__)


class Reporter:
    """Writes what `describe` returns, at once when the run begins and then every few seconds."""

    def __init__(self, folder: Path, describe: Callable[[], RunStatus]) -> None:
        """Write nothing yet; reports go into `folder`."""
        self._folder = folder
        self._describe = describe
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clusterenv-reporter", daemon=True)
        self._last: RunStatus | None = None

    def begin(self) -> None:
        """The run is listed, and reported from now on."""
        self.report()
        self._try(lambda: enter(self._described()))
        self._thread.start()

    def report(self) -> None:
        """Write a report now."""
        self._try(lambda: write_status(self._folder, self._described()))

    def _described(self) -> RunStatus:
        self._last = self._describe()
        return self._last

    def end(self, *, keep: bool) -> None:
        """No report follows; the last one says that the run has ended, if its folder is kept."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WITHIN_S)
        if self._last is not None and keep:
            self.report()
            last = msgspec.structs.replace(self._last, ended=True)
            self._try(lambda: enter(last))
            self._try(lambda: write_status(self._folder, last))
        elif self._last is not None:
            strike(self._last)

    def _run(self) -> None:
        while not self._ending.wait(REPORT_EVERY_S):
            self.report()

    @staticmethod
    def _try(write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001  # whatever it is, the run goes on
            _log.debug("no report could be written: %s", error)


class Description:
    """What a run is, and on demand how it is."""

    def __init__(
        self,
        run_id: int,
        folder: Path,
        env: str,
        launcher: LocalConfig | ManualConfig | SlurmConfig,
        head: Head,
        launched: Launcher,
    ) -> None:
        """The run begins now, in this process."""
        directives = launcher.directives if isinstance(launcher, SlurmConfig) else {}
        clusters = directives.get("clusters")
        self._head = head
        self._launched = launched
        self._now = RunStatus(
            run_id=f"{run_id:016x}",
            head=ProcessIdentity.own(),
            folder=str(folder),
            script=script_name(sys.argv),
            notebook="ipykernel" in sys.modules,
            env=env,
            launcher=type(launcher).__name__.removesuffix("Config").lower(),
            clusters=clusters if isinstance(clusters, str) else None,
            since=time.time(),
            updated=time.time(),
            workers=[],
        )

    def __call__(self) -> RunStatus:
        """The run as it is now."""
        launched = self._launched.poll()
        waiting = self._head.waiting
        workers = [
            describe_worker(peer, self._head.published_version, waiting.get(peer.rank, ""), launched)
            for peer in self._head.peers
        ]
        return msgspec.structs.replace(self._now, updated=time.time(), workers=workers)


def describe_worker(peer: Peer, published: int, waits: str, launched: Sequence[Launched]) -> WorkerStatus:
    """One worker, as the head knows it and its launcher does."""
    stats = worker_stats(peer, published)
    known = launched[peer.rank]
    kl = stats["kl"]
    return WorkerStatus(
        rank=peer.rank,
        state=stats["state"],
        present=peer.is_present,
        host=peer.host or known.host,
        job_id=known.job_id,
        policy_lag=stats["policy_lag"],
        steps=stats["steps"],
        steps_per_s=stats["steps_per_s"],
        kl=kl if peer.policy is not None and math.isfinite(kl) else None,
        sync_count=stats["sync_count"],
        restarts=stats["restarts"],
        note=_first_line(waits or stats["last_error"] or ""),
        log_path=str(known.log_path),
    )


def script_name(argv: Sequence[str]) -> str:
    """What runs, in a word or three: no further arguments, which may hold what is nobody's business."""
    path = Path(argv[0] if argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name == "clusterenv":
        return " ".join([name, *argv[1:3]])
    return name if name not in ("", "-c") else "python"


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:LONGEST_NOTE]
