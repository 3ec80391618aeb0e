"""Turn the source of an environment into the environment, in whatever process that is asked of."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from clusterenv_registry.entry import CallableSource, FileSource, ImportSource, Source, SpecSource
from clusterenv_registry.errors import MissingExtra, SourceError

_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari"}
"""Module -> our extra that installs it."""

_NEEDS = {"gymnasium.envs.box2d.": "Box2D", "gymnasium.envs.mujoco.": "mujoco", "ale_py.": "ale_py"}
"""Where an environment's constructor lies -> the module it needs."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes one environment at each call. It pickles, and needs only this package where it is called."""

    name: str
    source: Source
    env_kwargs: Mapping[str, Any]
    wrappers: tuple[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]], ...] = ()

    def __call__(self) -> gym.Env[Any, Any]:
        """A new environment inside its wrappers.

        Raises:
            SourceError: if its source cannot be loaded here, or makes something else than an environment.
            MissingExtra: if a package that it needs is not installed here.
        """
        env = _build(self.source, dict(self.env_kwargs))
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
    for prefix, module in _NEEDS.items():
        if str(spec.entry_point).startswith(prefix):
            require_module(module, spec.id)


def require_module(module: str, name: str) -> None:
    """Return if `module`, which the environment `name` needs, is installed.

    Raises:
        MissingExtra: if not, with the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"{name!r} needs {module}, which is not installed for {_here()}: "
            f'pip install "clusterenv-rl[{_EXTRAS[module]}]"'
        )


def import_registering(module: str, name: str) -> None:
    """`module` is imported, so that what it registers with Gymnasium is known.

    Raises:
        SourceError: if it cannot be imported here.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        raise SourceError(
            f"{name!r} asks for the module {module!r}, which {_here()} cannot import: "
            f"{type(error).__name__}: {error}"
        ) from error


def _build(source: Source, env_kwargs: dict[str, Any]) -> object:
    match source:
        case CallableSource(factory):
            return factory(**env_kwargs)
        case ImportSource(target):
            return _imported(target)(**env_kwargs)
        case FileSource():
            return _from_file(source)(**env_kwargs)
        case SpecSource(spec, module):
            if module:
                import_registering(module, str(source))
            require_extra(spec)
            return gym.make(spec, **env_kwargs)


def _imported(target: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    import_registering(module_name, target)
    value: Any = sys.modules[module_name]
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise SourceError(f"the module {module_name!r} has no {attribute!r} for {_here()}")
        value = getattr(value, part)
    return _callable(value, target)


def _from_file(source: FileSource) -> Callable[..., Any]:
    module = _module_of(Path(source.path))
    if source.attribute is None:
        return _only_environment(module)
    if not hasattr(module, source.attribute):
        known = ", ".join(_environments(module)) or "none"
        raise SourceError(f"{source.path} has no {source.attribute!r}; environments in it: {known}")
    return _callable(getattr(module, source.attribute), str(source))


def _module_of(path: Path) -> ModuleType:
    """The module of a file, run once in a process for each content that the file has had."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read on {socket.gethostname()}: {error.strerror}") from error
    name = f"_clusterenv_file_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look their module up while it runs
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _only_environment(module: ModuleType) -> Callable[..., Any]:
    found = _environments(module)
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise SourceError(f"{module.__file__} defines no subclass of gymnasium.Env")
    choices = ", ".join(f"{module.__file__}:{name}" for name in found)
    raise SourceError(f"{module.__file__} defines several environments; register one of {choices}")


def _environments(module: ModuleType) -> dict[str, type[gym.Env[Any, Any]]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gym.Env) and not issubclass(value, gym.Wrapper)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }


def _callable(value: object, target: str) -> Callable[..., Any]:
    if not callable(value):
        raise SourceError(f"{target} is {value!r}; expected a class or function that makes an environment")
    return value


def _here() -> str:
    return f"{sys.executable} on {socket.gethostname()}"
