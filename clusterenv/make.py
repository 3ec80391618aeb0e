"""`make_vec`, with the arguments of Gymnasium's function of this name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from clusterenv.checks import is_int
from clusterenv.env import ClusterEnv
from clusterenv.errors import ConfigError
from clusterenv.session import LauncherConfig
from clusterenv.sources import EnvFn
from clusterenv.vector_spec import factory_of
from clusterenv_registry import resolve

Wrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


def make_vec(
    id: str | EnvSpec,
    num_envs: int | None = None,
    launcher: LauncherConfig | None = None,
    *,
    wrappers: Sequence[Wrapper] | None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    **env_kwargs: Any,
) -> ClusterEnv:
    """`num_envs` environments of one id on workers; nothing is started yet.

    Args:
        id: name of the environment, "module:Id-v0", or a spec; the `spec` of a vector brings its number of
            environments, wrappers and options along.
        num_envs: environments of all workers together; none: what the spec says, else 1.
        launcher: where workers run; none: `LocalConfig()`, processes of this machine.
        wrappers: applied to each environment on the workers, innermost first.
        vector_kwargs: options of `EnvConfig`.
        env_kwargs: for the environment's constructor.

    Raises:
        ConfigError: if an option does not exist or cannot work.
        UnknownEnvironment: if there is no such environment.
    """
    known = dict(id.kwargs) if isinstance(id, EnvSpec) else {}
    if num_envs is None:
        num_envs = known.get("num_envs", 1)
    if not is_int(num_envs) or num_envs < 1:
        raise ConfigError("num_envs", num_envs, "a whole number from 1")
    if "vectorization_mode" in env_kwargs:
        mode = env_kwargs["vectorization_mode"]
        raise ConfigError("vectorization_mode", mode, "no such argument: environments run on workers")
    wrappers = known.get("wrappers", ()) if wrappers is None else wrappers
    if not isinstance(wrappers, list | tuple) or not all(map(callable, wrappers)):
        raise ConfigError("wrappers", wrappers, "a list of callables that wrap an environment")
    factory: EnvFn
    if isinstance(id, EnvSpec):
        factory = factory_of(id, wrappers, env_kwargs)
    elif isinstance(id, str):
        factory = resolve("gymnasium", id, env_kwargs, wrappers)
    else:
        raise ConfigError("id", id, "the name of an environment or an EnvSpec")
    options = known.get("vector_kwargs", {}) if vector_kwargs is None else vector_kwargs
    return ClusterEnv([factory] * int(num_envs), launcher, **options)
