"""Made-up runs for the tests of what looks after them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from clusterenv.identity import ProcessIdentity
from clusterenv.run_records import RunStatus, WorkerStatus, enter, write_status

OWN = ProcessIdentity.own()
DEAD = msgspec.structs.replace(OWN, started=OWN.started - 1)
ELSEWHERE = msgspec.structs.replace(OWN, host="far", boot_id="far", pid=77)


def worker(rank: int = 0, **changes: Any) -> WorkerStatus:
    """A worker that is well."""
    facts: dict[str, Any] = {
        "rank": rank,
        "state": "ready",
        "present": True,
        "host": "n1",
        "job_id": None,
        "policy_lag": 2,
        "steps": 1000,
        "steps_per_s": 50.0,
        "kl": 0.01,
        "sync_count": 3,
        "restarts": 0,
        "note": "",
        "log_path": f"/nowhere/worker-{rank}.log",
    }
    return WorkerStatus(**{**facts, **changes})


def made_run(
    folder: Path, run_id: str = "00000000000000aa", *, listed: bool = True, **changes: Any
) -> RunStatus:
    """A run of two workers that has made its folder, reported, and is listed in the index."""
    facts: dict[str, Any] = {
        "run_id": run_id,
        "head": OWN,
        "folder": str(folder),
        "script": "train.py",
        "notebook": False,
        "env": "CartPole-v1",
        "launcher": "local",
        "since": 1e9,
        "updated": time.time(),
        "workers": [worker(0), worker(1)],
    }
    status = RunStatus(**{**facts, **changes})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_status(folder, status)
    if listed:
        enter(status)
    return status
