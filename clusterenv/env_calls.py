"""What an environment of unknown make gives and raises, read with care."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from clusterenv.errors import EnvError, SpaceError, say, shortened
from clusterenv.layout import Nested, SpaceLayout
from clusterenv.sources import require_env

Env = gym.Env[Any, Any]

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32})
ENV_ERRORS = (Exception, SystemExit)
"""What environments raise: those with a window exit when it is closed."""


def build(env_fn: Callable[[], Env], index: int) -> Env:
    """The environment with the global number `index`.

    Raises:
        EnvError: if the callable raises, or gives something else.
    """
    try:
        env = env_fn()
    except ENV_ERRORS as error:
        raise EnvError(
            f"environment {index} could not be made: {say(error)}",
            env_index=index,
            remote_traceback="".join(traceback.format_exception(error)),
        ) from error
    return require_env(env, f"callable of environment {index}")


def snapshot(obs: Nested) -> Nested:
    """A copy that stays as it is whatever the environment does."""
    return obs.copy() if type(obs) is np.ndarray else deepcopy(obs)


def number(reward: Any) -> float:  # noqa: ANN401 - whatever an environment gives
    """A reward as a float.

    Raises:
        TypeError: if it is no number and no array of size 1.
    """
    if type(reward) in _NUMBERS:
        return float(reward)
    if isinstance(reward, SupportsFloat) and not isinstance(reward, np.ndarray | np.generic):
        return float(reward)  # such as a fraction or a tensor
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise TypeError(f"reward is {shortened(reward)}; expected a number or an array of size 1")
    return float(array.item())


def common_spaces(
    envs: Sequence[Env], first_env: int, same_bounds: bool
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The observation and action space of all `envs`, whose global numbers go up from `first_env`.

    Raises:
        SpaceError: if there are none or they differ; without `same_bounds` observations may in their bounds.
    """
    if not envs:
        raise SpaceError("a shard has 0 environments; expected at least 1")
    observation_space, action_space = envs[0].observation_space, envs[0].action_space
    alike = operator.eq if same_bounds else _batched_alike
    for index, env in enumerate(envs, first_env):
        for name, seen, expected, fits in (
            ("observation", env.observation_space, observation_space, alike),
            ("action", env.action_space, action_space, operator.eq),
        ):
            if not fits(seen, expected):
                also = "" if same_bounds or name == "action" else ", but for its bounds"
                raise SpaceError(
                    f"{name} space of environment {index} is {seen}; expected {expected}, "
                    f"as environment {first_env} has{also}"
                )
    return observation_space, action_space


def _batched_alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether batches of both spaces are laid out alike, whatever their bounds."""
    return SpaceLayout.of(one, bounds=False).digest == SpaceLayout.of(other, bounds=False).digest


def id_of(env: Env) -> str:
    """The id of its spec, in brackets, for messages; nothing without one."""
    spec = env.unwrapped.spec
    return f" ({spec.id})" if spec else ""
