"""Checks of what a caller gives; each names the option, what was seen and what is expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from clusterenv.errors import ConfigError

INTERFACE = r"[\w.:/@-]{1,64}"
"""What names of interfaces, addresses and subnets are made of."""


def unknown_key(where: str, key: str, known: set[str]) -> ConfigError:
    """An error for a key that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"{near[0]!r}, perhaps, or another " if near else "one "
    return ConfigError(f"{where} key", key, f"{hint}of {', '.join(sorted(known))}")


def check_port_range(port_range: tuple[int, int] | None) -> None:
    """Refuse anything but None or two ports in order."""
    if port_range is None:
        return
    good = isinstance(port_range, tuple | list) and len(port_range) == 2 and all(map(is_int, port_range))
    if not good or not 1 <= port_range[0] <= port_range[1] <= 65535:
        raise ConfigError("port_range", port_range, "(first, last) with 1 <= first <= last <= 65535, or None")


def check_connection(
    shared_folder: str | Path | None,
    interface: str | None,
    worker_interface: str | None,
    port_range: tuple[int, int] | None,
    queue_timeout_s: float | None,
) -> None:
    """Refuse options under which no worker would find the head."""
    if shared_folder is not None:
        folder("shared_folder", shared_folder)
    for name, value in (("interface", interface), ("worker_interface", worker_interface)):
        if value is not None and not (isinstance(value, str) and re.fullmatch(INTERFACE, value, re.ASCII)):
            raise ConfigError(name, value, 'an interface such as "ib0", an address, a subnet, or None')
    check_port_range(port_range)
    if queue_timeout_s is not None:
        positive("queue_timeout_s", queue_timeout_s)


def folder(name: str, value: object) -> None:
    """Refuse what is no absolute path of a folder."""
    if not isinstance(value, str | Path) or not str(value).isprintable() or "\\" in str(value):
        raise ConfigError(name, value, "the path of a folder, of one line and without backslashes")
    try:
        absolute = Path(value).expanduser().is_absolute()
    except RuntimeError:
        raise ConfigError(
            name, value, 'an absolute path, since the home folder of "~" is not known'
        ) from None
    if not absolute:
        raise ConfigError(name, value, 'an absolute path, or one that begins with "~"')


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is a whole number, NumPy's included, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a number, NumPy's included, and not a bool."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def at_least(name: str, value: object, least: int, most: int = 1 << 31) -> None:
    """Refuse anything but a whole number within bounds."""
    if not is_int(value) or value < least:
        raise ConfigError(name, value, f"a whole number from {least}")
    if value > most:
        raise ConfigError(name, value, f"a whole number from {least} to {most}")


def positive(name: str, value: object) -> None:
    """Refuse anything but a number of seconds above 0."""
    if not is_number(value) or not value > 0:  # refuses NaN too
        raise ConfigError(name, value, "a number of seconds above 0")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse what is not allowed."""
    if value not in allowed:
        raise ConfigError(name, value, " or ".join(f'"{item}"' for item in allowed))


def one_line(name: str, value: object) -> None:
    """Refuse anything but None or printable text of one line."""
    if value is not None and not (isinstance(value, str) and value and value.isprintable()):
        raise ConfigError(name, value, "text of one line, or None")
