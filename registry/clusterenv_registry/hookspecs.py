"""Every hook that a plugin can implement; the docstrings are the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

PROJECT = "clusterenv"
"""The name that ties hook specifications, implementations and the entry-point group together."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def clusterenv_register_envs() -> Mapping[str, str | Callable[..., gym.Env[Any, Any]] | EnvSpec]:
    """Offer environments by name.

    Called at most once in a process, when a name is looked up that nobody registered by hand. It should be
    quick and import nothing heavy: that is what the string form is for.

    Returns:
        For each name what makes the environment: "package.module:Class", imported on the workers when the
        environment is built; a class or function, called with the user's `env_kwargs`; or a Gymnasium
        EnvSpec. Two plugins that offer one name are an error for whoever asks for that name.
    """
    raise NotImplementedError  # a specification is never called; plugins implement it
