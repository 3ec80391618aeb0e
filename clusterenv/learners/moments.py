"""Running mean and variance, and the reward scale built on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterenv.learners import parallel

if TYPE_CHECKING:
    from clusterenv.rollout import Rollout

ALL = slice(None)
Moment = TypeVar("Moment", bound=Any)  # NumPy arrays, torch tensors and numbers alike


def merge_moments(
    mean: Moment, var: Moment, count: float, batch_mean: Moment, batch_var: Moment, batch_count: float
) -> tuple[Moment, Moment, float]:
    """Mean, variance and count of two sets of samples taken together."""
    total = count + batch_count
    delta = batch_mean - mean
    merged_var = (var * count + batch_var * batch_count + delta**2 * (count * batch_count / total)) / total
    return mean + delta * (batch_count / total), merged_var, total


class RewardScale:
    """Divides rewards by the running deviation of the discounted return, so that values stay near 1."""

    def __init__(self, num_envs: int, gamma: float, *, clip: float = 10.0) -> None:
        """Start with no samples and returns of 0."""
        self._gamma = gamma
        self._clip = clip
        self._returns = np.zeros(num_envs)
        self._mean, self._var, self._count = 0.0, 1.0, 0.0

    def of(self, rollout: Rollout) -> NDArray[np.float64]:
        """The rewards [T, n] of a rollout of all environments or of some."""
        ended = rollout.terminations | rollout.truncations
        return self(rollout.rewards, ended, rollout.valid, rollout.env_ids)

    def start_over(self) -> None:
        """All environments begin new episodes; the statistics stay."""
        self._returns = np.zeros_like(self._returns)

    def state_dict(self) -> dict[str, float]:
        """The statistics."""
        return {"mean": self._mean, "var": self._var, "count": self._count}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from what `state_dict` gave."""
        self._mean, self._var, self._count = state["mean"], state["var"], state["count"]

    def __call__(
        self,
        rewards: NDArray[Any],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        env_ids: NDArray[np.int64] | slice = ALL,
    ) -> NDArray[np.float64]:
        """The rewards [T, n] scaled and clipped, after the statistics have taken in these rows."""
        returns = np.empty(rewards.shape)
        running = self._returns[env_ids]
        for t in range(len(rewards)):
            running = running * self._gamma + rewards[t]
            returns[t] = running
            running = np.where(ended[t] | ~valid[t], 0.0, running)
        self._returns[env_ids] = running
        seen = returns[valid]
        own = (float(seen.mean()), float(seen.var())) if seen.size else (0.0, 0.0)
        mean, var, count = parallel.pooled(*own, seen.size)
        if count:
            self._mean, self._var, self._count = merge_moments(
                self._mean, self._var, self._count, mean, var, count
            )
        scaled = rewards.astype(np.float64) / np.sqrt(self._var + 1e-8)
        clipped: NDArray[np.float64] = np.clip(scaled, -self._clip, self._clip)
        return clipped
