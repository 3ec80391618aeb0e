"""The counts of weight syncs that a run keeps, over those from before it was resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any


def added(earlier: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of `ClusterEnv.stats()`, with what was there before the run was resumed."""
    names = ("weight_bytes_sent", "check_bytes_sent")
    workers = []
    nothing: dict[str, Any] = {}
    for worker, before in zip_longest(stats["workers"], earlier["workers"], fillvalue=nothing):
        reasons = Counter(before.get("syncs_by_reason", {}))
        reasons.update(worker.get("syncs_by_reason", {}))
        checks = before.get("checks", 0) + worker.get("checks", 0)
        counts = {"sync_count": reasons.total(), "syncs_by_reason": dict(reasons), "checks": checks}
        newest = {name: float((worker or before).get(name, 0.0)) for name in ("kl", "kl_threshold")}
        workers.append(counts | newest)
    return {"workers": workers} | {name: earlier.get(name, 0) + stats.get(name, 0) for name in names}
