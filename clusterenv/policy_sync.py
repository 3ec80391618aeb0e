"""Decide when a worker's behaviour policy is too old (AAPS). Nothing else: KL comes from `distributions`."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import distributions
from clusterenv.distributions import Family
from clusterenv.sync_config import PROTOTYPE, SyncConfig

KEPT_SAMPLES = 20
"""Fragments whose sample a worker remembers: a reference comes as late as fragments may wait in a stream."""
LEAST_STATES = 8
"""States of a worker's sample, however many workers there are."""
STATES_OF_ALL = 4096
"""States that the head evaluates for all workers together, about."""


class SyncReason(enum.StrEnum):
    """Why a worker pulled weights."""

    FIRST = "first"
    FORCED = "forced"
    MAX_LAG = "max_lag"
    MAX_AGE = "max_age"
    DIVERGENCE = "divergence"
    NO_DIVERGENCE = "no_divergence"
    EVERY = "every"
    INTERVAL = "interval"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to pull the newest weights, and why."""

    pull: bool
    reason: SyncReason | None = None


STAY = Decision(pull=False)


def decide(
    config: SyncConfig,
    *,
    acting_version: int | None,
    published_version: int,
    divergence: float | None,
    age_s: float,
    forced: bool = False,
    awaited: bool = False,
) -> Decision:
    """Whether a worker that acts with `acting_version` pulls `published_version` before it acts again.

    A worker that has the newest weights never pulls. The bounds `max_lag` and `max_age_s` belong to the
    adaptive rule; the other rules are there for comparison and do just what their name says.

    Args:
        config: the rule and its numbers.
        acting_version: of the weights that the worker has; None before the first.
        published_version: the newest.
        divergence: mean KL(behaviour || newest) in nats; None if it could not be computed.
        age_s: seconds since the worker last pulled.
        forced: the head wants this worker to have the newest weights.
        awaited: a divergence that is None will be known once the head has seen what the policy does.
    """
    if acting_version is None:
        return _pull(SyncReason.FIRST)
    lag = published_version - acting_version
    if lag <= 0:
        return STAY
    if forced:
        return _pull(SyncReason.FORCED)
    if config.sync == "adaptive":
        return _adaptive(config, lag, divergence, age_s, awaited)
    if config.sync == "every":
        return _pull(SyncReason.EVERY)
    if config.sync == "broadcast":
        return _pull(SyncReason.BROADCAST)
    if config.sync.startswith(PROTOTYPE):
        return _within(float(config.sync.removeprefix(PROTOTYPE)), divergence, awaited)
    if config.sync.startswith("interval:"):
        interval = int(config.sync.removeprefix("interval:"))
        return _pull(SyncReason.INTERVAL) if lag >= interval else STAY
    return STAY


def _adaptive(
    config: SyncConfig, lag: int, divergence: float | None, age_s: float, awaited: bool
) -> Decision:
    if lag > config.max_lag:
        return _pull(SyncReason.MAX_LAG)
    if age_s > config.max_age_s:
        return _pull(SyncReason.MAX_AGE)
    if lag < config.min_interval or config.kl_threshold == math.inf:
        return STAY
    return _within(config.kl_threshold, divergence, awaited)


def _within(threshold: float, divergence: float | None, awaited: bool) -> Decision:
    if divergence is None and not awaited:
        return _pull(SyncReason.NO_DIVERGENCE)
    # At 0 every version is pulled, also one that changed only the value; NaN is never within bounds.
    if threshold > 0 and (divergence is None or divergence <= threshold):
        return STAY
    return _pull(SyncReason.DIVERGENCE)


def _pull(reason: SyncReason) -> Decision:
    return Decision(pull=True, reason=reason)


def sample_size(n_ref: int, num_workers: int) -> int:
    """States of each worker's sample: `n_ref`, fewer with many workers to bound the head's work."""
    return min(n_ref, max(LEAST_STATES, STATES_OF_ALL // num_workers))


def compares(sync: str) -> bool:
    """Whether the rule looks at how far the policies are apart."""
    return sync == "adaptive" or sync.startswith(PROTOTYPE)


def prototype_rows(num_steps: int, num_envs: int, *, back: int) -> NDArray[np.int64]:
    """The rows of a fragment that the older rule compares: all environments, `back` steps before the last.

    The head takes its newest states (`back` 0), a worker those of one step earlier, as the older rule did.
    """
    step = max(num_steps - 1 - back, 0)
    return np.arange(step * num_envs, (step + 1) * num_envs)


def divergence_of(sync: str, family: Family | None, said_u: NDArray[Any], said_v: NDArray[Any]) -> float:
    """What `sync` compares with its threshold: the mean over states, under the older rule the sum."""
    mean = mean_divergence(family, said_u, said_v)
    return mean * len(said_u) if sync.startswith(PROTOTYPE) else mean


def mean_divergence(family: Family | None, said_u: NDArray[Any], said_v: NDArray[Any]) -> float:
    """Mean over states of KL(u || v) in nats; exactly 0 for equal arguments, NaN without states.

    Args:
        family: of the policies' distributions; None if it is not known.
        said_u: parameters [m, P] of the behaviour policy; without a family its log-probabilities [m] of the
            actions that it took, from which the KL is estimated (k3, http://joschu.net/blog/kl-approx.html).
        said_v: the same by the newest policy, of the same states and actions.
    """
    if not len(said_u):
        return math.nan
    if family is None:
        return float(distributions.k3(said_u, said_v).mean())
    return float(distributions.kl(family, said_u, said_v).mean())


@dataclass(frozen=True, slots=True)
class _Sample:
    version: int
    family: Family | None
    said: NDArray[np.float32]


class ReferenceSamples:
    """What the behaviour policy said on sampled states of the last fragments, by the fragment's number."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._samples: OrderedDict[int, _Sample] = OrderedDict()

    def put(self, fragment: int, version: int, family: Family | None, said: NDArray[np.float32]) -> None:
        """Keep what `mean_divergence` needs of a fragment acted with `version`; the oldest are forgotten."""
        self._samples[fragment] = _Sample(version, family, said)
        while len(self._samples) > KEPT_SAMPLES:
            self._samples.popitem(last=False)

    def get(
        self, fragment: int, acting_version: int | None, family: Family | None
    ) -> NDArray[np.float32] | None:
        """What was kept of that fragment; None if forgotten, or if another policy acts now."""
        sample = self._samples.get(fragment)
        if sample is None or sample.version != acting_version or sample.family != family:
            return None
        return sample.said

    def clear(self) -> None:
        """Forget all, as for a new agent, whose versions and distributions are not comparable."""
        self._samples.clear()
