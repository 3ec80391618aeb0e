"""Values of the caller as bytes for workers: what cannot be pickled is named by its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType

import cloudpickle

from clusterenv.errors import ConfigError

Test = Callable[[object], bool]


def sendable(value: object, name: str) -> bytes:
    """`value`, called `name` in errors, as bytes that workers unpickle; code of `__main__` travels along.

    Raises:
        ConfigError: if a part cannot be pickled; names it.
    """
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        path, part = culprit(value, can_pickle)
        raise ConfigError(
            f"{name}{path}",
            part,
            f"something that can be pickled for workers; {type(part).__qualname__} cannot: {error}",
        ) from error


def culprit(value: object, can_pickle: Test) -> tuple[str, object]:
    """Path from `value` to the smallest part of it that cannot be pickled, and that part."""
    path = ""
    seen = {id(value)}
    while True:
        for name, part in _parts(value):
            if id(part) not in seen and not can_pickle(part):
                path, value = path + name, part
                seen.add(id(part))
                break
        else:
            return path, value


def can_pickle(value: object, dumps: Callable[[object], object] = cloudpickle.dumps) -> bool:
    """Whether `dumps` makes bytes of `value`."""
    try:
        dumps(value)
    except Exception:  # noqa: BLE001  # reducers of a user's classes may raise anything
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """What a value is pickled from, each with how to write it after the value's own name."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, type):
        yield from ((f".{name}", _plain(part)) for name, part in vars(value).items())
    else:
        yield from _attributes(value)
        yield ".__class__", type(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    for name, part in getattr(value, "__dict__", {}).items():
        if name in ("_modules", "_parameters", "_buffers") and isinstance(part, Mapping):  # of torch
            yield from ((f".{inner}", tensor) for inner, tensor in part.items())
        else:
            yield f".{name}", part
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _function_parts(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (global {name})", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" (variable {name})", cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _plain(member: object) -> object:
    """The function behind a static or class method or a property."""
    return getattr(member, "__func__", None) or getattr(member, "fget", None) or member
