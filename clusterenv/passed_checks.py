"""Wrappers that Gymnasium adds only to check an environment, left out of its steps once it has passed them.

They stay where they are, for whoever asks for them; what they wrap is called in their place. So does a
`TimeLimit` around them during a rollout: its steps are counted for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

Env = gym.Env[Any, Any]
Wrapper = gym.Wrapper[Any, Any, Any, Any]


class Checks:
    """Those of the environments of a shard, whose `steps` are kept up with them."""

    def __init__(self, envs: Sequence[Env], steps: list[Callable[..., Any]]) -> None:
        """Nothing is left out yet."""
        self._envs = envs
        self._steps = steps
        self._left_out: list[list[Wrapper] | None] = [None] * len(envs)
        self.limits = np.zeros((len(envs), 2), np.int64)
        """[n, 2]: steps of the episode and the most there may be, while they are counted here; else 0."""

    def leave_out(self, row: int) -> None:
        """Steps of the environment pass its checks by, if it has passed them."""
        self.limits[row, 0] = 0
        if self._left_out[row] is None:
            self._left_out[row] = leave_out(self._envs[row])
            self._steps[row] = self._envs[row].step

    def put_back(self, row: int) -> None:
        """Until its next reset the environment steps through all of its wrappers, whatever is done to it."""
        put_back(self._left_out[row] or ())
        self._left_out[row] = None
        self._steps[row] = self._envs[row].step

    @contextlib.contextmanager
    def counting_steps(self) -> Iterator[None]:
        """Inside, time limits are counted in `limits`, where environments have passed their checks."""
        counted = [row for row in range(len(self._envs)) if self._may_count(row)]
        for row in counted:
            limit: Any = self._envs[row]
            self.limits[row] = limit._elapsed_steps, limit._max_episode_steps
            self._steps[row] = limit.env.step
        try:
            yield
        finally:
            for row in counted:
                limit = self._envs[row]
                limit._elapsed_steps = int(self.limits[row, 0])
                self._steps[row] = limit.step
            self.limits[:] = 0

    def _may_count(self, row: int) -> bool:
        env: Any = self._envs[row]
        outermost = self._left_out[row] is not None and type(env) is TimeLimit and "step" not in vars(env)
        return outermost and type(env._elapsed_steps) is type(env._max_episode_steps) is int


def leave_out(env: Env) -> list[Wrapper] | None:
    """The wrappers that steps of `env` pass by from now on; None while some have something left to check."""
    checks = []
    layer = env
    while isinstance(layer, gym.Wrapper):
        passed = _PASSED.get(type(layer))
        if passed is not None:
            if not passed(layer):
                return None
            checks.append(layer)
        layer = layer.env
    # Innermost first, so that each finds below it what is really called; a `step` set by others stays.
    free = [check for check in reversed(checks) if "step" not in vars(check)]
    for check in free:
        check.step = check.env.step  # type: ignore[method-assign]
    return free


def put_back(checks: Sequence[Wrapper]) -> None:
    """Steps go through these wrappers again."""
    for check in checks:
        vars(check).pop("step", None)


def _has_checked(wrapper: Any) -> bool:  # noqa: ANN401 - attributes that versions of Gymnasium add
    reuse = getattr(wrapper, "checked_data_reuse", True)
    return bool(wrapper.checked_reset and wrapper.checked_step and reuse)


def _has_reset(wrapper: Any) -> bool:  # noqa: ANN401 - as above
    return bool(wrapper.has_reset)


_PASSED: Final[dict[type, Callable[[Any], bool]]] = {
    PassiveEnvChecker: _has_checked,
    OrderEnforcing: _has_reset,
}
"""Only these very classes: a subclass may do more."""
