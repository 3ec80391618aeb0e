"""Runs and workers as tables for a terminal: plain text, a line each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from clusterenv.monitor.finding import FoundRun, RunState
from clusterenv.run_records import WorkerStatus

FRESH_S: Final = 15.0
"""Age up to which a report of a living head tells how things are now."""
RUN_TITLES = ("RUN", "STATE", "HEAD", "SCRIPT", "SINCE", "ENV", "LAUNCHER", "WORKERS", "STEPS/S")
WORKER_TITLES = (
    "RANK",
    "STATE",
    "HOST",
    "JOB",
    "LAG",
    "STEPS",
    "STEPS/S",
    "KL",
    "SYNCS",
    "RESTARTS",
    "LAST ERROR",
)


def run_table(runs: Sequence[FoundRun]) -> str:
    """One line for each run."""
    return _table(RUN_TITLES, [_run_row(run) for run in runs])


def _run_row(run: FoundRun) -> list[str]:
    status, workers = run.status, run.status.workers
    lives = run.state not in (RunState.DEAD, RunState.ENDED)
    present = sum(worker.present for worker in workers) if lives else 0
    rate = sum(worker.steps_per_s for worker in workers)
    return [
        run.short_id,
        run.state,
        f"{status.head.host}:{status.head.pid}",
        status.script,
        f"{datetime.fromtimestamp(status.since).astimezone():%Y-%m-%d %H:%M}",
        status.env,
        status.launcher,
        f"{present if run.reported else '?'}/{len(workers)}",
        f"{rate:,.0f}" if lives and run.reported else "-",
    ]


def worker_table(run: FoundRun) -> str:
    """One line for each worker of a run, below one that tells how old this is where that matters."""
    table = _table(WORKER_TITLES, [_worker_row(worker) for worker in run.status.workers])
    age_s = max(0.0, time.time() - run.status.updated)
    if run.state is RunState.RUNNING and run.reported and age_s < FRESH_S:
        return table
    seen = "as last reported" if run.reported else "as it began, since its folder cannot be read here"
    return f"{seen}, {_duration(age_s)} ago:\n{table}"


def _worker_row(worker: WorkerStatus) -> list[str]:
    return [
        str(worker.rank),
        worker.state,
        worker.host or "-",
        worker.job_id or "-",
        str(worker.policy_lag),
        f"{worker.steps:,}",
        f"{worker.steps_per_s:,.0f}",
        "-" if worker.kl is None else f"{worker.kl:.4f}",
        str(worker.sync_count),
        str(worker.restarts),
        worker.note or "-",
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; what a terminal would not print as it is shows as "?"."""
    cells = [titles, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
