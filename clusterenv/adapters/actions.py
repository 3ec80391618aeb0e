"""Between the actions of a distribution (indices, means) and those that environments take."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from clusterenv import distributions
from clusterenv.adapters.base import Agent, Array, Floats, Ints
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError


class ActionTerms:
    """One action space, with the family of distributions that fits it: none for a Box of whole numbers."""

    def __init__(self, space: gym.Space[Any]) -> None:
        """Read the space.

        Raises:
            AgentError: for spaces that no agent can act in yet.
        """
        self.family = _family(space)
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        self._start: Array | None = None
        self._limits = _limits(space)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
            self._start = np.asarray(space.start, dtype=np.int64)

    @property
    def start(self) -> int:
        """The least action of a Discrete space; else 0."""
        return 0 if self._start is None or self._start.ndim else int(self._start)

    def noise_std(self, agent: Agent) -> Floats | None:
        """Standard deviations [D] of the noise that the agent's `noise_std` asks for; None without noise.

        Raises:
            AgentError: if they are not positive numbers, or the actions are not real.
        """
        asked = getattr(agent, "noise_std", None)
        if asked is None:
            return None
        if hasattr(asked, "detach"):
            asked = asked.detach().cpu()
        std = np.asarray(asked, dtype=np.float32)
        if not std.any():
            return None
        if self.family is None or self.family.kind is not Kind.DIAG_GAUSSIAN:
            raise AgentError("the agent has a noise_std, but its actions are not a Box of reals")
        (size,) = self.family.sizes
        if not (std > 0).all() or not np.isfinite(std).all() or std.size not in (1, size):
            raise AgentError(
                f"the agent's noise_std is {std.tolist()}; expected a positive number, one for each of the "
                f"{size} numbers of an action, or 0 for no noise"
            )
        return np.broadcast_to(std.reshape(-1), (size,))

    def to_env(self, actions: Array, rows: int) -> Array:
        """Actions in the family's terms, [n, ...], as the environments take them: [n, *shape].

        Raises:
            AgentError: if their number or kind cannot be the space's.
        """
        if self._start is not None:
            actions = self._shaped(actions, rows) + self._start
        return self.exact(actions, rows)

    def exact(self, actions: Array, rows: int) -> Array:
        """The environments' own actions [n, ...] in the shape [n, *shape] and the dtype of the space.

        Raises:
            AgentError: if their number or kind cannot be the space's.
        """
        actions = self._shaped(actions, rows)
        if actions.dtype != self.dtype:
            if self.discrete and actions.dtype.kind not in "iu":
                raise AgentError(f"the agent's actions are {actions.dtype}; expected whole numbers")
            actions = actions.astype(self.dtype)
        return actions

    def checked(self, actions: Array) -> Array:
        """`actions` [n, *shape], once it is sure that the environments have each of them.

        Raises:
            AgentError: if one is not in a discrete space.
        """
        if self._limits is not None:
            low, high = self._limits
            wrong = (actions < low) | (actions > high)
            if wrong.any():
                raise AgentError(
                    f"the agent's actions hold {actions[wrong][0]}; expected from {low} to {high}"
                )
        return actions

    def _shaped(self, actions: Array, rows: int) -> Array:
        expected = (rows, *self.shape)
        if actions.shape != expected:
            if actions.shape[:1] != (rows,) or actions.size != math.prod(expected):
                raise AgentError(f"the agent's actions have shape {actions.shape}; expected {expected}")
            actions = actions.reshape(expected)
        return actions

    def to_family(self, actions: Array) -> Array:
        """Actions [n, *shape] of the environments in the terms of a distribution: the inverse of `to_env`."""
        if self._start is not None:
            actions = actions - self._start
        if self.family is None:
            return actions
        shape = (len(actions), *self.family.action_shape)
        return np.ascontiguousarray(actions, dtype=self.family.action_dtype).reshape(shape)


def draw(family: Family, params: Floats, *, seed: int, env_ids: Ints, steps: Ints) -> tuple[Array, Floats]:
    """Actions of any family [n, ...] and their log-probabilities [n]."""
    actions = np.empty((len(params), *family.action_shape), family.action_dtype)
    log_probs = np.empty(len(params), np.float32)
    distributions.sample(
        family, params, seed=seed, env_ids=env_ids, steps=steps, actions_out=actions, log_probs_out=log_probs
    )
    return actions, log_probs


def _limits(space: gym.Space[Any]) -> tuple[Array, Array] | None:
    """Least and greatest action of a discrete space."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return np.asarray(0), np.asarray(1)
    return None


def _family(space: gym.Space[Any]) -> Family | None:
    if isinstance(space, spaces.Discrete):
        return Family(Kind.CATEGORICAL, (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return Family(Kind.MULTI_CATEGORICAL, tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, spaces.MultiBinary | spaces.Box):
        size = math.prod(space.shape)
        if size == 0 or (isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating)):
            return None
        kind = Kind.DIAG_GAUSSIAN if isinstance(space, spaces.Box) else Kind.BERNOULLI
        return Family(kind, (size,))
    raise AgentError(
        f"agents cannot act in {space!r} yet, only in Discrete, MultiDiscrete, MultiBinary and Box; "
        "pass actions to step instead"
    )
