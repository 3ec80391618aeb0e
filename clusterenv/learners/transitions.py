"""Turn rollouts into transitions over n steps, for learners that replay them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from clusterenv.learners.networks import feature_size, flatten
from clusterenv.learners.replay import Rows
from clusterenv.learners.returns import Array
from clusterenv.rollout import Batch, Rollout


def transition_dtype(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> np.dtype[Any]:
    """A transition: observation, action, n-step return, discount of what follows, and the observation there.

    Observations are flat and float32; `discount` is 0 after a true end.
    """
    size = feature_size(observation_space)
    action = np.dtype(np.float32) if isinstance(action_space, gym.spaces.Box) else np.dtype(np.int64)
    return np.dtype(
        [
            ("obs", np.float32, (size,)),
            ("action", action, action_space.shape or ()),
            ("reward", np.float32),
            ("discount", np.float32),
            ("next_obs", np.float32, (size,)),
        ]
    )


def tensors(rows: Rows, device: torch.device) -> dict[str, torch.Tensor]:
    """The columns of transitions [n] by name, on `device`."""
    return {name: torch.from_numpy(rows[name]).to(device) for name in rows.dtype.names or ()}


class NStepTransitions:
    """Follows environments over rollouts, and gives the transitions whose n steps are complete.

    A transition ends early at the end of its episode, at a time limit with the value of what it led to,
    and where its environment was replaced, with that of the last observation before.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, n_steps: int, gamma: float
    ) -> None:
        """Nothing has been seen."""
        self._space = observation_space
        self._dtype = transition_dtype(observation_space, action_space)
        self._n = n_steps
        self._gamma = gamma
        self._open: Steps | None = None

    def start_over(self) -> None:
        """All environments begin new episodes: what is not complete is given up."""
        self._open = None

    def __call__(self, rollout: Rollout) -> Rows:
        """The transitions that are complete with this rollout, of the same environments as the one before."""
        steps = Steps.of(rollout.torch(), self._space)
        if self._open is not None:
            steps = self._open.followed_by(steps)
        rows, complete = self._over_n(steps)
        new = complete & ~steps.given
        steps.given |= new
        kept = self._n - 1
        self._open = steps.last(kept) if kept else None
        given: Rows = rows[new]
        return given

    def _over_n(self, steps: Steps) -> tuple[Rows, NDArray[np.bool_]]:
        """A row [L, N] from each step on, and whether it has all of its steps."""
        length, envs = steps.rewards.shape
        at = np.broadcast_to(np.arange(length)[:, None], (length, envs)).copy()  # the last step of each
        column = np.arange(envs)
        rewards, discounts = np.zeros((length, envs)), np.ones((length, envs))
        going = steps.valid.copy()
        steps_missing = np.zeros((length, envs), np.bool_)
        for j in range(self._n):
            index = np.minimum(np.arange(length) + j, length - 1)
            steps_missing |= going & (np.arange(length) + j >= length)[:, None]
            going &= ~steps_missing
            at[going] = np.broadcast_to(index[:, None], (length, envs))[going]
            rewards += np.where(going, discounts * steps.rewards[index], 0.0)
            discounts *= np.where(going, self._gamma, 1.0)
            going &= ~steps.cut[index]
        rows = np.empty((length, envs), self._dtype)
        rows["obs"], rows["action"] = steps.obs, steps.actions
        rows["reward"] = rewards
        rows["discount"] = discounts * ~steps.terminations[at, column]
        rows["next_obs"] = steps.next_obs[at, column]
        return rows, steps.valid & ~steps_missing


@dataclass
class Steps:
    """Steps of N environments in a row; every array is [L, N, ...]."""

    obs: Array
    actions: Array
    rewards: Array
    terminations: Array
    valid: Array
    next_obs: Array
    cut: Array
    """Whether the step after this one is no continuation of it."""
    given: Array
    """Whether the transition from here on was given out."""

    @classmethod
    def of(cls, batch: Batch[torch.Tensor], space: gym.Space[Any]) -> Steps:
        """The steps of a rollout."""
        obs = flatten(space, batch.obs)
        next_obs = torch.cat([obs[1:], flatten(space, batch.last_obs)[None]])
        next_obs[batch.final_index[:, 0], batch.final_index[:, 1]] = flatten(space, batch.final_obs)
        valid = batch.valid.numpy()
        cut = (batch.terminations | batch.truncations).numpy()
        cut[:-1] |= ~valid[1:]
        return cls(
            obs=obs.numpy(),
            actions=batch.actions.numpy(),
            rewards=batch.rewards.numpy(),
            terminations=batch.terminations.numpy(),
            valid=valid,
            next_obs=next_obs.numpy(),
            cut=cut,
            given=np.zeros_like(valid),
        )

    def followed_by(self, later: Steps) -> Steps:
        """These steps and then `later`, cut where an environment does not go on from where it was."""
        goes_on = later.valid[0] & (self.next_obs[-1] == later.obs[0]).all(-1)
        self.cut[-1] |= ~goes_on
        return Steps(
            **{name: np.concatenate([array, getattr(later, name)]) for name, array in vars(self).items()}
        )

    def last(self, count: int) -> Steps:
        """The last `count` steps, in memory of their own."""
        return Steps(**{name: array[-count:].copy() for name, array in vars(self).items()})
