"""Backends: what makes a whole vector of environments, in whatever process that is asked of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv_registry.entry import CallableSource, ImportSource
from clusterenv_registry.errors import MissingExtra, SourceError
from clusterenv_registry.loading import here, load

Vector = VectorEnv[Any, Any, Any]

OWN: Final = {"envpool": "clusterenv-envpool", "procgen": "clusterenv-procgen"}
"""Backends that plugins of this project offer -> the distribution that has to be installed."""


@dataclass(frozen=True, slots=True)
class BackendFactory:
    """Makes vectors of one environment of a backend. It pickles, and needs only the plugin where it is used.

    Called without arguments it gives what can be told of one environment, which cannot be stepped.
    """

    backend: str
    source: CallableSource | ImportSource
    env_name: str
    env_kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As `env_name` takes it."""
        return f"{self.backend}:{self.env_name}"

    def vector(self, num_envs: int, num_threads: int) -> Vector:
        """A new vector of `num_envs` environments.

        Raises:
            SourceError: if the factory cannot be loaded here, or makes something else than such a vector.
            Exception: whatever the factory raises.
        """
        vector = load(self.source)(self.env_name, num_envs, num_threads=num_threads, **self.env_kwargs)
        problem = _problem(vector, num_envs)
        if problem:
            raise SourceError(f"backend {self.backend!r} ({self.source}) made {problem}")
        assert isinstance(vector, VectorEnv)
        return vector

    def __call__(self) -> gym.Env[Any, Any]:
        """One environment, to be described."""
        return _Described(self.vector(1, 1))


class _Described(gym.Env[Any, Any]):
    """What one environment of a vector looks like; it cannot be stepped."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.metadata = vector.metadata
        self.render_mode = vector.render_mode
        self.spec = vector.spec

    def close(self) -> None:
        """Close the vector."""
        self._vector.close()


def require_plugin(name: str) -> None:
    """Return unless `name` is a backend of this project's own plugins, none of which offers it here.

    Raises:
        MissingExtra: if it is, with the command that installs the plugin.
    """
    if name in OWN:
        raise MissingExtra(
            f"{name!r} is a backend of {OWN[name]}, which is not installed for {here()}: {install(name)}"
        )


def install(name: str) -> str:
    """The command that installs the plugin with one of this project's own backends."""
    return f"pip install {OWN[name]} (from a checkout: pip install ./plugins/{OWN[name]})"


def env_names(source: CallableSource | ImportSource) -> list[str] | None:
    """The names that the factory behind `source` says it takes; None where it does not say.

    Raises:
        SourceError: if it cannot be loaded here, or fails to tell them.
    """
    tell: Callable[[], Sequence[str]] | None = getattr(load(source), "env_names", None)
    try:
        return None if tell is None else list(tell())
    except Exception as error:
        raise SourceError(f"{source} fails in env_names: {type(error).__name__}: {error}") from error


def _problem(vector: object, num_envs: int) -> str:
    """What is wrong with what a factory returned; empty if nothing is."""
    if not isinstance(vector, VectorEnv):
        return f"{vector!r}; expected a gymnasium.vector.VectorEnv"
    if vector.num_envs != num_envs:
        return f"a vector of {vector.num_envs} environments; expected {num_envs}"
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        space = getattr(vector, name, None)
        if not isinstance(space, gym.Space):
            return f"a vector whose {name} is {space!r}; expected a gymnasium.Space"
    mode = (vector.metadata or {}).get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        return f'a vector whose metadata["autoreset_mode"] is {mode!r}; expected a member of AutoresetMode'
    return ""
