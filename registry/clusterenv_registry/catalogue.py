"""Every environment and backend that has a name: look-up in one order, collisions, suggestions.

The order is: what this process registered, what the user stored, what plugins offer, Gymnasium's ids.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterenv_registry import store
from clusterenv_registry.classic import CLASSIC
from clusterenv_registry.entry import (
    GYMNASIUM,
    Backend,
    Broken,
    CallableSource,
    Entry,
    FileSource,
    Source,
    SpecSource,
    check_name,
    source_of,
)
from clusterenv_registry.errors import RegistrationError, SourceError, StoreError, UnknownEnvironment

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

    from clusterenv_registry.backends import BackendFactory

_registered: dict[str, Entry] = {}

_SHOWN_SUGGESTIONS = 3
_CALLER = 5
"""Frames from a warning up to who asked for the environment."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All that can be asked for by name, in the order of look-up, and what is broken."""

    entries: tuple[Entry, ...]
    backends: tuple[Backend, ...]
    broken: tuple[Broken, ...]


def register(
    name: str, factory: Callable[..., gym.Env[Any, Any]] | EnvSpec | str, *, replace: bool = False
) -> None:
    """`name` stands for `factory` in this process and on the workers it starts.

    Registering the same again changes nothing, and a class or function that was defined anew under its own
    name (a notebook's cell run twice) takes the place of the older one.

    Args:
        name: What `type` or `env_name` will say.
        factory: A class or function called with `env_kwargs`, a Gymnasium EnvSpec, or "module:Class".
        replace: Whether `name` may stand for something else so far.

    Raises:
        RegistrationError: if `name` or `factory` is unfit, or `name` stands for something else.
    """
    entry = Entry(check_name(name), source_of(factory), "this process")
    known = _registered.get(name)
    if known is not None and not replace and not _same(known.source, entry.source):
        raise RegistrationError(
            f"{name!r} already stands for {known.source}, not {entry.source}; replace=True changes that"
        )
    _registered[name] = entry


def resolve(
    type_: str,
    env_name: str | None,
    env_kwargs: Mapping[str, Any],
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]],
) -> Callable[[], gym.Env[Any, Any]] | BackendFactory:
    """A constructor of the environment, which pickles and works on a worker that knows nothing of it.

    Args:
        type_: "gymnasium", or the name of a backend or of an environment.
        env_name: With "gymnasium", the name of the environment, or "BACKEND:NAME"; with a backend, the name
            of one of its environments; else None.
        env_kwargs: Keyword arguments for the environment's constructor.
        wrappers: Wrappers around it, innermost first.

    Raises:
        UnknownEnvironment: if no source offers the name, or the two arguments do not fit together.
        RegistryError: if the environment is known and cannot be made, as far as that shows here.
    """
    from clusterenv_registry import code
    from clusterenv_registry.loading import EnvFactory, require_extra

    found = _backend(type_, env_name)
    if found is not None:
        return _of_backend(*found, env_kwargs, wrappers)
    entry = find(_wanted(type_, env_name))
    source: Source | code.Code = entry.source
    if isinstance(source, SpecSource):
        require_extra(source.spec)
    if isinstance(source, FileSource):
        try:
            source = code.read(source)
        except SourceError as error:
            raise SourceError(f"{entry.name!r} is registered as {source}; {error}") from error
    return EnvFactory(entry.name, source, dict(env_kwargs), tuple(wrappers))


def find(name: str) -> Entry:
    """The first entry called `name` in the order of look-up.

    Raises:
        UnknownEnvironment: if there is none.
        RegistryError: if the entry that comes first is damaged, or two plugins offer it.
    """
    entry = _by_hand(name)
    if entry is not None:
        return entry
    offer = _offer(name)
    if isinstance(offer, Backend):
        raise UnknownEnvironment(
            f"{name!r} is a backend of {offer.owner}; its environments are {name}:NAME in env_name"
        )
    return offer or _gymnasium_entry(name)


def contents() -> Catalogue:
    """The whole catalogue, Gymnasium's ids included."""
    import gymnasium

    from clusterenv_registry import plugins

    stored, installed = store.read(), plugins.installed()
    specs = gymnasium.registry
    ids = [Entry(spec.id, SpecSource(spec), "Gymnasium") for spec in specs.values()]
    classic = [
        Entry(name, SpecSource(specs[env_id]), "ClusterEnv")
        for name, env_id in CLASSIC.items()
        if env_id in specs
    ]
    return Catalogue(
        (*_registered.values(), *stored.entries.values(), *installed.entries, *classic, *ids),
        installed.backends,
        (*stored.broken, *installed.broken),
    )


def offered(name: str) -> str | None:
    """Who gives `name` a meaning to everybody, so that an entry of the user's hides it; None: nobody."""
    import gymnasium

    from clusterenv_registry import backends, plugins

    installed = plugins.installed()
    everything: tuple[Entry | Backend, ...] = (*installed.entries, *installed.backends)
    owners = [offer.owner for offer in everything if offer.name == name]
    if owners:
        return " and ".join(owners)
    if name in backends.OWN:
        return backends.OWN[name]
    if name in CLASSIC:
        return "ClusterEnv"
    return "Gymnasium" if name in gymnasium.registry else None


def _by_hand(name: str) -> Entry | None:
    """What this process registered, or else what the user stored."""
    if name in _registered:
        return _registered[name]
    stored = store.read()
    for broken in stored.broken:
        if broken.name == name:
            raise StoreError(f"{name!r} in {broken.owner}: {broken.problem}")
    return stored.entries.get(name)


def _offer(name: str) -> Entry | Backend | None:
    """What the one plugin that offers `name` means by it."""
    from clusterenv_registry import plugins

    installed = plugins.installed()
    everything: tuple[Entry | Backend, ...] = (*installed.entries, *installed.backends)
    offers = [offer for offer in everything if offer.name == name]
    if len(offers) > 1:
        owners = " and ".join(offer.owner for offer in offers)
        raise RegistrationError(
            f"{name!r} is offered by {owners}; uninstall one, or register the name yourself"
        )
    return offers[0] if offers else None


def _backend(type_: str, env_name: str | None) -> tuple[Backend, str | None] | None:
    """The backend that is asked for, as `type` or before a colon, and the name of its environment."""
    name, colon, rest = type_, "", env_name
    if type_ == GYMNASIUM:
        name, colon, rest = (env_name or "").partition(":")
        if not colon:
            return None
    if _by_hand(name) is not None:
        return None
    offer = _offer(name)
    return (offer, rest) if isinstance(offer, Backend) else None


def _of_backend(
    backend: Backend, env_name: str | None, env_kwargs: Mapping[str, Any], wrappers: Sequence[object]
) -> BackendFactory:
    from clusterenv_registry.backends import BackendFactory

    if not env_name:
        raise UnknownEnvironment(
            f"backend {backend.name!r} needs env_name, the name of one of its environments"
        )
    if wrappers:
        raise RegistrationError(
            f"wrappers are for single environments, but backend {backend.name!r} makes whole vectors; "
            "leave them out, or use an environment that Gymnasium makes"
        )
    return BackendFactory(backend.name, backend.source, env_name, dict(env_kwargs))


def _wanted(type_: str, env_name: str | None) -> str:
    if type_ == GYMNASIUM:
        if not env_name:
            raise UnknownEnvironment(
                'type "gymnasium" needs env_name, the id of an environment such as "CartPole-v1"'
            )
        return env_name
    if env_name is not None:
        find(type_)  # an unknown type is the better news
        raise UnknownEnvironment(
            f"type {type_!r} names an environment itself and takes no env_name; it is {env_name!r}"
        )
    return type_


def _gymnasium_entry(name: str) -> Entry:
    import gymnasium

    from clusterenv_registry.loading import import_registering, require_module

    module, _, env_id = CLASSIC.get(name, name).rpartition(":")
    if module:
        _require_no_plugin(module)
        import_registering(module, name)
    elif name.startswith("ALE/"):
        require_module("ale_py", name)  # its import is what registers these ids
        import_registering("ale_py", name)
    try:
        spec = gymnasium.spec(env_id)
    except gymnasium.error.Error:
        newest = _newest(env_id)
        if newest is None:
            raise _unknown(name) from None
        missing = "is no longer in Gymnasium" if _version(env_id) >= 0 else "names no version"
        warnings.warn(f"{env_id!r} {missing}; {newest.id!r} is used instead", stacklevel=_CALLER)
        spec = newest
    return Entry(name, SpecSource(_portable(spec), module or None), "Gymnasium")


def _newest(env_id: str) -> EnvSpec | None:
    """The newest version of the environment that `env_id` is an older version of, or names without one."""
    import gymnasium

    base = _without_version(env_id)
    versions = [spec for spec in gymnasium.registry.values() if _without_version(spec.id) == base]
    newest = max(versions, key=lambda spec: _version(spec.id), default=None)
    return newest if newest is not None and _version(newest.id) > _version(env_id) else None


def _portable(spec: EnvSpec) -> EnvSpec:
    """`spec` with its constructor by value where workers could not import it: their `__main__` is another."""
    from gymnasium.envs.registration import load_env_creator

    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        creator: Any = load_env_creator(spec.entry_point)
        return replace(spec, entry_point=creator)
    return spec


def _unknown(name: str) -> UnknownEnvironment:
    _require_no_plugin(name)
    catalogue = contents()
    names = [backend.name for backend in catalogue.backends] + [entry.name for entry in catalogue.entries]
    near = _nearest(name, [GYMNASIUM, *names])
    hint = (
        f"; did you mean {' or '.join(map(repr, near))}?"
        if near
        else "; `clusterenv envs` lists those there are"
    )
    troubles = "".join(f"; {item}" for item in catalogue.broken)
    return UnknownEnvironment(
        f"there is no environment {name!r}{hint}{troubles}", name=name, suggestions=near
    )


def _require_no_plugin(name: str) -> None:
    """Return unless `name` is a backend of a plugin of ours that is not there; a broken one is told of later.

    Raises:
        MissingExtra: if it is.
    """
    from clusterenv_registry import backends, plugins

    distribution = backends.OWN.get(name)
    if not any(str(distribution) in broken.owner for broken in plugins.installed().broken):
        backends.require_plugin(name)


def _nearest(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Other versions of the same environment, newest first, then names that look like `name`."""
    base = _without_version(name)
    versions = sorted((n for n in names if _without_version(n) == base), key=_version, reverse=True)
    alike = difflib.get_close_matches(name, names, _SHOWN_SUGGESTIONS)
    return tuple(dict.fromkeys([*versions, *alike]))[:_SHOWN_SUGGESTIONS]


def _without_version(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.rpartition(":")[2])


def _version(name: str) -> int:
    match = re.search(r"-v(\d+)$", name)
    return int(match.group(1)) if match else -1


def _same(one: Source, other: Source) -> bool:
    if isinstance(one, CallableSource) and isinstance(other, CallableSource):
        names = [
            (getattr(f, "__module__", None), getattr(f, "__qualname__", None))
            for f in (one.factory, other.factory)
        ]
        return one.factory is other.factory or (names[0] == names[1] and names[0][1] is not None)
    return one == other
