"""Find installed plugins and ask each for its environments and backends; a broken one becomes data.

Sole owner of the pluggy manager.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import pluggy

from clusterenv_registry import hookspecs
from clusterenv_registry.entry import Backend, Broken, Entry, backend_source, check_name, source_of
from clusterenv_registry.errors import RegistrationError


@dataclass(frozen=True, slots=True)
class Plugins:
    """What the installed plugins offer, in the order of their names, and those that failed."""

    entries: tuple[Entry, ...]
    backends: tuple[Backend, ...]
    broken: tuple[Broken, ...]


@functools.cache
def installed() -> Plugins:
    """The plugins of this interpreter, loaded once in a process."""
    return load(entry_points(group=hookspecs.PROJECT))


def load(points: Iterable[EntryPoint]) -> Plugins:
    """What the plugins behind `points` offer, each loaded apart from the others."""
    entries: list[Entry] = []
    backends: list[Backend] = []
    broken: list[Broken] = []
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for owner, point in sorted(((_owner(point), point) for point in points), key=lambda pair: pair[0]):
        try:
            plugin = _registered(manager, point, owner)
            envs = _answers(plugin, manager.hook.clusterenv_register_envs)
            made = _answers(plugin, manager.hook.clusterenv_register_backends)
            new_entries = [Entry(check_name(name), source_of(value), owner) for name, value in envs]
            backends += [Backend(check_name(name), backend_source(value), owner) for name, value in made]
            entries += new_entries
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin can raise anything; others must go on
            summary = f"{type(error).__name__}: {error}"
            broken.append(Broken(owner, summary, traceback=traceback.format_exc()))
    return Plugins(tuple(entries), tuple(backends), tuple(broken))


class _Manager(pluggy.PluginManager):
    """Looks for hooks among the names that a module gives, not those that every module has."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """As pluggy's, for which looking at `__doc__` and its kin takes most of its time."""
        return None if name.startswith("__") else super().parse_hookimpl_opts(plugin, name)


def _registered(manager: pluggy.PluginManager, point: EntryPoint, owner: str) -> object:
    """The plugin, once it is sure that it implements no hook that does not exist."""
    plugin: object = point.load()
    manager.register(plugin, name=owner)
    try:
        manager.check_pending()  # a misspelt hook would otherwise stay silent
    except pluggy.PluginValidationError:
        manager.unregister(plugin)
        raise
    return plugin


def _answers(plugin: object, hook: pluggy.HookCaller) -> list[tuple[str, object]]:
    """Names and what they stand for, as this plugin answers one hook."""
    return [
        pair
        for implementation in hook.get_hookimpls()
        if implementation.plugin is plugin
        for pair in _mapping(implementation.function(), hook.name).items()
    ]


def _mapping(answer: object, hook: str) -> Mapping[str, object]:
    if isinstance(answer, Mapping):
        return answer
    raise RegistrationError(f"{hook} returned {answer!r}; expected a mapping from names")


def _owner(point: EntryPoint) -> str:
    if point.dist is None:
        return f"plugin {point.name}"
    # Two lines of it are wanted, and importlib would parse all of it as an e-mail, at each look.
    metadata = point.dist.read_text("METADATA") or point.dist.read_text("PKG-INFO") or ""
    name, version = (re.search(rf"^{key}: (.*)", metadata, re.MULTILINE) for key in ("Name", "Version"))
    return f"plugin {point.name} of {name and name[1]} {version and version[1]}"
