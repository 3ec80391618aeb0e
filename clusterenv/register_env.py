"""Register an environment: the command that stores one for a user, and the functions for one process.

`python -m clusterenv.register_env --name MyEnv --path my_env.py` imports the registry alone: it starts fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from clusterenv_registry import RegistryError, register, store
from clusterenv_registry.entry import FileSource

__all__ = ["register", "register_env"]

register_env = register


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 0 if it was done, 2 with one sentence on stderr if not."""
    parser = _parser()
    options = parser.parse_args(argv)
    adds = options.name is not None and options.path is not None
    if [adds, options.list, options.remove is not None].count(True) != 1:
        parser.error("expected --name with --path, or --list, or --remove")
    try:
        if options.list:
            return _list()
        if options.remove is not None:
            return _remove(options.remove)
        return _add(options.name, options.path, replace=options.replace)
    except RegistryError as error:
        sys.stderr.write(f"register_env: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="register_env",
        description='Register an environment by name: {"type": NAME} then means it in every script of yours.',
        usage="%(prog)s [-h] (--name NAME --path FILE.py[:CLASS] [--replace] | --list | --remove NAME)",
    )
    parser.add_argument("--name", help="what scripts will call the environment")
    parser.add_argument("--path", metavar="FILE.py[:CLASS]", help="the file, and the class if it has several")
    parser.add_argument("--replace", action="store_true", help="NAME may stand for another file so far")
    parser.add_argument("--list", action="store_true", help="show what is registered")
    parser.add_argument("--remove", metavar="NAME", help="forget NAME")
    return parser


def _add(name: str, path: str, *, replace: bool) -> int:
    source = FileSource.parse(path)
    store.add(name, source, replace=replace)
    sys.stdout.write(f"{name} is registered as {source}\n")
    return 0


def _remove(name: str) -> int:
    store.remove(name)
    sys.stdout.write(f"{name} is no longer registered\n")
    return 0


def _list() -> int:
    stored = store.read()
    width = max(map(len, stored.entries), default=0)
    for name, entry in sorted(stored.entries.items()):
        sys.stdout.write(f"{name:{width}}  {entry.source}\n")
    for broken in stored.broken:
        sys.stderr.write(f"register_env: {broken.name or broken.owner}: {broken.problem}\n")
    if not stored.entries and not stored.broken:
        sys.stdout.write("nothing is registered yet; add an environment with --name and --path\n")
    return 2 if stored.broken else 0


if __name__ == "__main__":
    sys.exit(main())
