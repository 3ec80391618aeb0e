"""The results of a sweep over rules of AAPS: a file with a JSON line for each run, and what a line holds."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clusterenv.errors import ConfigError

LONGEST_CURVE = 400
"""Points of a curve that are kept: PPO has an update for each, a stream may have thousands."""
KL_EDGES = (0.0, *(10.0**power for power in np.arange(-6, 2.01, 0.25)), math.inf)
"""Bounds of the bins of a histogram of divergences, in nats."""
DONE = "done"
FAILED = "failed"

Line = dict[str, Any]


def load(path: Path) -> list[Line]:
    """The lines of a results file, none if there is no file; one that a killed sweep has begun is left out.

    Raises:
        ConfigError: if the file cannot be read, or another line than the last is not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("results", str(path), f"a file that can be read ({error})") from error
    lines: list[Line] = []
    *whole, _begun = text.split("\n")
    for number, line in enumerate(whole, start=1):
        if not line:
            continue
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ConfigError("results", str(path), f"JSON in line {number}") from error
    return lines


def append(path: Path, line: Line) -> None:
    """The file ends with `line`, whole and on the disk; what a killed sweep has begun there is taken away.

    Raises:
        ConfigError: if the file cannot be written.
    """
    data = (json.dumps(line, allow_nan=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        with path.open("ab") as file:
            file.truncate(whole)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError("results", str(path), f"a file that can be written ({error.strerror})") from error


def has(line: Line, settings: Mapping[str, Any], defaults: Mapping[str, Any], version: str) -> bool:
    """Whether `line` is of a run with `settings` that has ended well.

    Settings that came into being after it count as having had their default.
    """
    known = line["settings"]
    return (
        line["status"] == DONE
        and line["version"] == version
        and set(known) <= set(settings)
        and all(known.get(name, defaults.get(name)) == value for name, value in settings.items())
    )


def measured(rows: Sequence[Mapping[str, Any]]) -> Line:
    """What a line holds of a run's metrics, one row for each update."""
    last = rows[-1]
    lags: Counter[str] = Counter()
    for row in rows:
        lags.update(row["rows_by_lag"])
    shown = _thinned(rows)
    return {
        "steps": last["steps"],
        "updates": last["updates"],
        "seconds": last["seconds"],
        "episode_return": last["episode_return"],
        "syncs_by_worker": [worker["syncs_by_reason"] for worker in last["workers"]],
        "checks_by_worker": [worker["checks"] for worker in last["workers"]],
        "bytes": {name: last[f"{name}_bytes_sent"] for name in ("weight", "check")}
        | {"broadcast": last["broadcast_bytes"]},
        "curves": {
            "steps": [row["steps"] for row in shown],
            "episode_return": [row["episode_return"] for row in shown],
            "syncs_by_worker": [[_count(worker) for worker in row["workers"]] for row in shown],
            "weight_bytes": [row["weight_bytes_sent"] for row in shown],
            "kl_threshold": [[worker.get("kl_threshold") for worker in row["workers"]] for row in shown],
        },
        "rows_by_lag": dict(sorted(lags.items(), key=lambda item: int(item[0]))),
        "kl_at_checks": kl_at_checks(rows),
        "update_kl": _spread([row.get("kl_k3") for row in rows]),
    }


def _count(worker: Mapping[str, Any]) -> int:
    return sum(worker["syncs_by_reason"].values())


def _thinned(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most `LONGEST_CURVE` of the rows, evenly, the last among them."""
    count = min(len(rows), LONGEST_CURVE)
    return [rows[index] for index in np.linspace(0, len(rows) - 1, count).round().astype(int)]


def kl_at_checks(rows: Sequence[Mapping[str, Any]]) -> Line:
    """A histogram of the divergences that workers found, of each comparison that is seen in `rows`."""
    found: list[float] = []
    seen: dict[int, int] = {}
    for row in rows:
        for rank, worker in enumerate(row["workers"]):
            if worker["checks"] > seen.get(rank, 0):
                found.append(math.inf if worker["kl"] is None else worker["kl"])
            seen[rank] = worker["checks"]
    counts = np.histogram(np.clip(found, 0.0, 1e300), bins=np.array(KL_EDGES))[0]
    return {"log10_edges_from": -6.0, "log10_width": 0.25, "counts": counts.tolist()}


def _spread(values: Sequence[float | None]) -> Line:
    """Quartiles and mean of the numbers that are there."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return {"count": 0}
    low, median, high = np.quantile(numbers, (0.25, 0.5, 0.75))
    return {
        "count": len(numbers),
        "mean": float(np.mean(numbers)),
        "quartiles": [float(low), float(median), float(high)],
    }
