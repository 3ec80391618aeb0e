"""What ClusterEnv is told to run: options or callables, and the callables pickled for the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from clusterenv.config import EnvConfig
from clusterenv.errors import ConfigError, EnvError, shortened
from clusterenv.pickling import sendable
from clusterenv_registry.backends import BackendFactory

EnvFn = Callable[[], gym.Env[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class EnvSource:
    """The environments of all workers: pickled callables, and which one builds each global environment."""

    blobs: list[bytes]
    blob_of: list[int]
    backend: str | None = None
    """Name of the backend of which the one callable makes whole vectors."""

    def part(self, first: int, count: int) -> tuple[list[bytes], list[int]]:
        """The blobs that a slice of environments needs, and which one each uses."""
        used = self.blob_of[first : first + count]
        numbers = {blob: number for number, blob in enumerate(dict.fromkeys(used))}
        return [self.blobs[blob] for blob in numbers], [numbers[blob] for blob in used]


def require_env(env: object, maker: str) -> gym.Env[Any, Any]:
    """`env`, if it is an environment with spaces.

    Raises:
        EnvError: if not: says what `maker` returned.
    """
    if isinstance(env, gym.Env):
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, gym.Space):
                raise EnvError(
                    f"{maker} returned {env!r}, whose {name} is {space!r}; expected a gymnasium.Space"
                )
        return env
    name = type(env).__qualname__
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        raise EnvError(
            f"{maker} returned {name}, an environment of several agents as PettingZoo has them; ClusterEnv "
            "runs environments of one agent: wrap it in a gymnasium.Env whose action and observation spaces "
            "hold those of all agents"
        )
    raise EnvError(f"{maker} returned {shortened(env)}; expected a gymnasium.Env")


def deal(num_envs: int, workers: int) -> list[int]:
    """How many environments each worker gets: equal numbers, the first ones one more."""
    each, more = divmod(num_envs, workers)
    return [each + (rank < more) for rank in range(workers)]


def configured(
    env_config: EnvConfig | Mapping[str, Any] | Sequence[EnvFn] | str | None, options: Mapping[str, Any]
) -> tuple[EnvConfig, list[EnvFn] | None]:
    """The options, and the callables if environments were given as such.

    Raises:
        ConfigError: if an option does not exist, or `env_config` is nothing that makes environments.
    """
    if isinstance(env_config, EnvConfig):
        EnvConfig.from_mapping(options)  # names an unknown key
        return replace(env_config, **options), None
    if isinstance(env_config, str):
        return EnvConfig.from_mapping({"env_name": env_config, **options}), None
    if env_config is None or isinstance(env_config, Mapping):
        return EnvConfig.from_mapping({**(env_config or {}), **options}), None
    if not isinstance(env_config, list | tuple) or not env_config or not all(map(callable, env_config)):
        raise ConfigError(
            "env_config", env_config, "options, an id, or a list of callables that make environments"
        )
    for key in ("type", "env_name", "envs_per_node"):
        if key in options:
            raise ConfigError(key, options[key], "nothing when env_config is a list of callables")
    return EnvConfig.from_mapping(options), list(env_config)


def pickled(env_fns: Sequence[EnvFn]) -> EnvSource:
    """Each distinct callable pickled once.

    Raises:
        ConfigError: if one cannot be pickled; names the part that is to blame. Or if some are of a backend.
    """
    backend = backend_of(env_fns)
    blobs: list[bytes] = []
    number_of: dict[int, int] = {}
    blob_of = []
    for index, fn in enumerate(env_fns):
        if id(fn) not in number_of:
            blobs.append(sendable(fn, f"callable {index}"))
            number_of[id(fn)] = len(blobs) - 1
        blob_of.append(number_of[id(fn)])
    return EnvSource(blobs=blobs, blob_of=blob_of, backend=backend)


def backend_of(env_fns: Sequence[EnvFn]) -> str | None:
    """The backend that makes all environments; None if each is made apart.

    Raises:
        ConfigError: if a backend makes only some of them.
    """
    first = env_fns[0] if env_fns else None
    if not any(isinstance(fn, BackendFactory) for fn in {id(fn): fn for fn in env_fns}.values()):
        return None
    if not isinstance(first, BackendFactory) or any(fn is not first for fn in env_fns):
        raise ConfigError("callables", "several", "one and the same, where a backend makes the environments")
    return first.backend


def autoreset_modes(metadata: Mapping[str, Any]) -> tuple[AutoresetMode, ...]:
    """The modes that a backend's vector with this metadata can be stepped in, its own first."""
    own: AutoresetMode = metadata["autoreset_mode"]
    others = (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    return (own, *others) if own is AutoresetMode.NEXT_STEP and metadata.get("reset_mask") else (own,)
