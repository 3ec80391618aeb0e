"""Turn the source of an environment into the environment, in whatever process that is asked of."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from clusterenv_registry.code import Code, module_of
from clusterenv_registry.entry import CallableSource, ImportSource, SpecSource
from clusterenv_registry.errors import MissingExtra, SourceError

MAKE_ENV = "make_env"
"""A function of this name makes the environment of its file, from all of `env_kwargs` as one dict."""

_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari"}
"""Module -> our extra that installs it."""

_NEEDS = {"gymnasium.envs.box2d.": "Box2D", "gymnasium.envs.mujoco.": "mujoco", "ale_py.": "ale_py"}
"""Where an environment's constructor lies -> the module it needs."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes one environment at each call. It pickles, and needs only this package where it is called."""

    name: str
    source: CallableSource | ImportSource | SpecSource | Code
    env_kwargs: Mapping[str, Any]
    wrappers: tuple[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]], ...] = ()

    def __call__(self) -> gym.Env[Any, Any]:
        """A new environment inside its wrappers.

        Raises:
            SourceError: if its source cannot be loaded here, or makes something else than an environment.
            MissingExtra: if a package that it needs is not installed here.
        """
        env = load(self.source)(**self.env_kwargs)
        if not isinstance(env, gym.Env):
            raise SourceError(f"{self.name!r} ({self.source}) made {env!r}; expected a gymnasium.Env")
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


def require_extra(spec: EnvSpec) -> None:
    """Return if the package behind `spec` is installed, as far as that can be told without importing it.

    Raises:
        MissingExtra: if not.
    """
    module = _needed(spec)
    if module is not None:
        require_module(module, spec.id)


def require_module(module: str, name: str) -> None:
    """Return if `module`, which the environment `name` needs, is installed.

    Raises:
        MissingExtra: if not, with the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"{name!r} needs {module}, which is not installed for {here()}: {_install(module)}"
        )


def install_command(spec: EnvSpec) -> str | None:
    """The command that installs what `spec` needs and is not installed here; None: nothing."""
    module = _needed(spec)
    return _install(module) if module is not None and importlib.util.find_spec(module) is None else None


def _needed(spec: EnvSpec) -> str | None:
    entry_point = str(spec.entry_point)
    return next((module for prefix, module in _NEEDS.items() if entry_point.startswith(prefix)), None)


def _install(module: str) -> str:
    return f'pip install "clusterenv-rl[{_EXTRAS[module]}]"'


def import_registering(module: str, name: str) -> None:
    """`module` is imported, so that what it registers with Gymnasium is known.

    Raises:
        SourceError: if it cannot be imported here.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        raise SourceError(
            f"{name!r} asks for the module {module!r}, which {here()} cannot import: "
            f"{type(error).__name__}: {error}"
        ) from error


def load(source: CallableSource | ImportSource | SpecSource | Code) -> Callable[..., object]:
    """What makes the environment of `source`, given its keyword arguments; its code has run.

    Raises:
        SourceError: if it cannot be loaded here.
        MissingExtra: if a package that it needs is not installed here.
    """
    match source:
        case CallableSource(factory):
            return factory
        case ImportSource(target):
            return _imported(target)
        case Code():
            return _from_code(source)
        case SpecSource(spec, module):
            if module:
                import_registering(module, str(source))
            require_extra(spec)
            return functools.partial(gym.make, spec)


def _imported(target: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    import_registering(module_name, target)
    value: Any = sys.modules[module_name]
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise SourceError(f"the module {module_name!r} has no {attribute!r} for {here()}")
        value = getattr(value, part)
    return _callable(value, target)


def _from_code(code: Code) -> Callable[..., object]:
    module = module_of(code)
    name = code.source.attribute
    if name is None:
        maker = _only_maker(code, module)
    elif hasattr(module, name):
        maker = _callable(getattr(module, name), str(code))
    else:
        known = ", ".join(_makers(module)) or "none"
        raise SourceError(f"{code.source.path} has no {name!r}; environments in it: {known}")
    if maker is getattr(module, MAKE_ENV, None) and not isinstance(maker, type):
        return lambda **env_kwargs: maker(env_kwargs)
    return maker


def _only_maker(code: Code, module: ModuleType) -> Callable[..., Any]:
    found = _makers(module)
    if len(found) == 1:
        return next(iter(found.values()))
    path = code.source.path
    if not found:
        raise SourceError(
            f"{path} defines no subclass of gymnasium.Env and no function {MAKE_ENV}(env_config)"
        )
    choices = ", ".join(f"{path}:{name}" for name in found)
    raise SourceError(f"{path} defines several environments; register one of {choices}")


def _makers(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The environment classes of a module, or else its function `make_env`.

    A package's are those that its `__init__.py` has at hand, wherever in the package they are written.
    """
    found: dict[str, Callable[..., Any]] = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gym.Env) and not issubclass(value, gym.Wrapper)
        if f"{value.__module__}.".startswith(f"{module.__name__}.") and not name.startswith("_")
    }
    make_env = getattr(module, MAKE_ENV, None)
    return {MAKE_ENV: make_env} if callable(make_env) else found


def _callable(value: object, target: str) -> Callable[..., Any]:
    if not callable(value):
        raise SourceError(f"{target} is {value!r}; expected a class or function that makes an environment")
    return value


def here() -> str:
    """The interpreter and host, for messages."""
    return f"{sys.executable} on {socket.gethostname()}"
