"""What decides when a worker pulls weights, as `policy_sync` takes it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from clusterenv.checks import is_number
from clusterenv.errors import ConfigError

AUTO_START = 0.05
"""Nats: where the thresholds of kl_threshold="auto" begin."""
LOCKSTEP_MAX_LAG = 8
STREAM_MAX_LAG = 256
"""Bounds on the lag in `step` and `rollout`, and in `stream`, where the user has set none."""
PROTOTYPE = "prototype:"
"""Begin of the `sync` of an older rule, there for comparison only: see `policy_sync.prototype_rows`."""
_RULES = re.compile(rf"adaptive|every|interval:[1-9]\d*|broadcast|never|{PROTOTYPE}\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """When a worker pulls weights (AAPS)."""

    kl_threshold: float = 0.05
    auto_threshold: bool = False
    max_lag: int = LOCKSTEP_MAX_LAG
    max_age_s: float = math.inf
    min_interval: int = 1
    sync: str = "adaptive"
    n_ref: int = 64


def check_sync(sync: object) -> None:
    """Raise a ConfigError unless `sync` is a rule."""
    if not isinstance(sync, str) or not _RULES.fullmatch(sync):
        raise ConfigError("sync", sync, '"adaptive", "every", "interval:k", "broadcast" or "never"')


def check_threshold(threshold: object) -> None:
    """Raise a ConfigError unless `threshold` is one that can be compared with; NaN is none."""
    if isinstance(threshold, str) and threshold == "auto":
        return
    if not (is_number(threshold) and threshold >= 0):  # refuses NaN too
        expected = 'a number of nats from 0 (inf never pulls), or "auto"'
        raise ConfigError("kl_threshold", threshold, expected)
