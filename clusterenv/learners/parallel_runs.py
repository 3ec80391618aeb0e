"""Runs of several learners: what the first one logs of all, and what the others keep, who write no files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from clusterenv.batches import EpisodeRecord
from clusterenv.learners import parallel
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.runs import Summary
from clusterenv.learners.tally import Tally
from clusterenv.rollout import Rollout

SUMS = ("weight_bytes_sent", "check_bytes_sent", "steps")


@dataclasses.dataclass(frozen=True, slots=True)
class Logged:
    """What a run logs of an update."""

    rollout: Rollout
    stats: Mapping[str, Any]
    losses: Mapping[str, float]


def of_all_learners(
    rollout: Rollout, stats: Mapping[str, Any], losses: Mapping[str, float], usage: Mapping[str, float]
) -> Logged:
    """What all learners together log: rows, episodes and workers of all, and the mean of the losses by rows.

    Of the rollout the flags, lags, divergences and episodes are those of all; the rest is this learner's.
    What each learner's process has used, `usage` of this one, is `learners` of the statistics.
    """
    if parallel.size() == 1:
        return Logged(rollout, stats, losses)
    valid = rollout.valid
    each = parallel.gathered(
        {
            "rows": int(valid.sum()),
            "lags": np.where(valid, rollout.policy_lag, -1).ravel().tolist(),
            "kl": rollout.kl.tolist(),
            "episodes": [msgspec.structs.asdict(episode) for episode in rollout.episodes],
            "workers": list(stats["workers"]),
            **{name: stats.get(name, 0) for name in SUMS},
            "losses": dict(losses),
            "usage": dict(usage),
        }
    )
    lags = np.array([lag for one in each for lag in one["lags"]]).reshape(len(valid), -1)
    merged = dataclasses.replace(
        rollout,
        valid=lags >= 0,
        policy_lag=np.maximum(lags, 0),
        kl=np.array([kl for one in each for kl in one["kl"]]),
        episodes=[EpisodeRecord(**episode) for one in each for episode in one["episodes"]],
    )
    workers = [worker for one in each for worker in one["workers"]]
    workers = [worker | {"rank": number} for number, worker in enumerate(workers)]
    sums = {name: sum(one[name] for one in each) for name in SUMS}
    learners = [one["usage"] for one in each]
    return Logged(merged, {**stats, **sums, "workers": workers, "learners": learners}, _mean_losses(each))


def _mean_losses(each: list[dict[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in each for name in one["losses"])
    means = {}
    for name in names:
        told = [(one["losses"][name], one["rows"]) for one in each if name in one["losses"] and one["rows"]]
        means[name] = sum(value * rows for value, rows in told) / max(sum(rows for _, rows in told), 1)
    return means


class Follower(Tally):
    """The counters of a learner that is not the first: what `Run` has but for its files and its output."""

    def __init__(self, checkpoint_every: int) -> None:
        """Nothing has been done yet."""
        super().__init__()
        self._checkpoint_every = checkpoint_every
        self._milestones = 0

    def __enter__(self) -> Follower:
        """The counters themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def log(self, rollout: Rollout, _: Mapping[str, Any], __: Mapping[str, float]) -> None:
        """Count one update made with `rollout`."""
        self.count(rollout)

    def milestone_is_due(self) -> bool:
        """As `Run.milestone_is_due`."""
        return self.steps // self._checkpoint_every > self._milestones

    def save_milestone(self, _: Checkpoint) -> None:
        """The first learner saves it."""
        self._milestones = self.steps // self._checkpoint_every

    def checkpoint_is_due(self) -> bool:
        """Never: the first learner saves."""
        return False

    def save(self, _: Checkpoint) -> None:
        """The first learner saves."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing that anybody reads: the first learner's is kept."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what the first learner's run has kept."""
        self.steps, self.updates, self.episodes = (state[name] for name in ("steps", "updates", "episodes"))
        self._returns.load_state_dict(state["returns"])
        self._milestones = self.steps // self._checkpoint_every
        self._started = time.monotonic() - state["seconds"]

    def summary(self) -> Summary:
        """Steps, updates and episodes of all learners; what was sent is in the first one's."""
        return Summary(
            seconds=self.seconds,
            steps=self.steps,
            steps_per_s=self.steps / max(self.seconds, 1e-9),
            updates=self.updates,
            episodes=self.episodes,
            episode_return=self._returns.mean,
            syncs_by_worker=[],
            weight_bytes_sent=0,
            check_bytes_sent=0,
            broadcast_bytes=0,
        )
