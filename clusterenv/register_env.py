"""Register an environment: the command that stores one for a user, and the functions for one process.

`python -m clusterenv.register_env --name MyEnv --path my_env.py` imports the registry alone: it starts fast.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from clusterenv_registry import CheckError, RegistrationError, RegistryError, register, store
from clusterenv_registry.checking import check
from clusterenv_registry.entry import Entry, FileSource, ImportSource, as_item, stored_source

__all__ = ["register", "register_env"]

register_env = register


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 0 if it was done, 2 with one sentence on stderr if not."""
    parser = _parser()
    options = parser.parse_args(argv)
    adds = options.name is not None and options.path is not None
    asked = [adds, options.list, options.show is not None, options.remove is not None]
    if asked.count(True) != 1 or (options.name is None) != (options.path is None):
        parser.error("expected --name with --path, or one of --list, --show, --remove")
    try:
        if options.list:
            return _list(as_json=options.json)
        if options.show is not None:
            return _show(options.show, as_json=options.json)
        if options.remove is not None:
            return _remove(options.remove, as_json=options.json)
        _add(options)
        return _show(options.name, as_json=True) if options.json else 0
    except RegistryError as error:
        trace = error.remote_traceback if isinstance(error, CheckError) else ""
        sys.stderr.write(f"{trace}register_env: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="register_env",
        description='Register an environment by name: {"type": NAME} then means it in every script of yours, '
        "on every node.",
        usage="%(prog)s [-h] (--name NAME --path SOURCE [--replace] [--env-kwargs JSON | --no-check] | "
        "--list | --show NAME | --remove NAME) [--json]",
    )
    parser.add_argument("--name", help="what scripts will call the environment")
    parser.add_argument(
        "--path",
        metavar="SOURCE",
        help="a file or the folder of a package, with :CLASS if it has several; or package.module:CLASS",
    )
    parser.add_argument("--replace", action="store_true", help="NAME may stand for something else so far")
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument(
        "--env-kwargs", metavar="JSON", type=_mapping, default={}, help="arguments to check it with"
    )
    checks.add_argument("--no-check", action="store_true", help="do not try it out, as where it cannot run")
    parser.add_argument("--list", action="store_true", help="show what is registered")
    parser.add_argument("--show", metavar="NAME", help="show all that is known of NAME")
    parser.add_argument("--remove", metavar="NAME", help="forget NAME")
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return parser


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object, such as '{{\"length\": 5}}'")
    return value


def _add(options: argparse.Namespace) -> None:
    """Store the environment, once it was tried unless it shall not be."""
    name, source, replace = options.name, stored_source(options.path), options.replace
    store.require_free(name, source, replace=replace)
    if not replace:
        _require_own(name, source)
    found = {} if not isinstance(source, FileSource) else {"sha256": _sha256(source)}
    if not options.no_check:
        checked = check(source, options.env_kwargs)
        found |= {"observation_space": checked.observation_space, "action_space": checked.action_space}
        for warning in checked.warnings:
            sys.stderr.write(f"register_env: Gymnasium's checker says: {warning}\n")
    store.add(name, source, found, replace=replace)
    if not options.json:
        sys.stdout.write(f"{name} is registered as {source}\n")


def _require_own(name: str, source: FileSource | ImportSource) -> None:
    """Return if `name` means nothing to others, or is the user's already.

    Raises:
        RegistrationError: if an entry of the user's would hide what all scripts know under this name.
    """
    from clusterenv_registry.catalogue import offered

    owner = None if name in store.read().entries else offered(name)
    if owner is not None:
        raise RegistrationError(
            f"{name!r} is a name of {owner}; choose another, or --replace makes it "
            f"{source} in all your scripts"
        )


def _remove(name: str, *, as_json: bool) -> int:
    store.remove(name)
    told = json.dumps({"name": name, "removed": True}) if as_json else f"{name} is no longer registered"
    sys.stdout.write(told + "\n")
    return 0


def _list(*, as_json: bool) -> int:
    stored = store.read()
    entries = [stored.entries[name] for name in sorted(stored.entries)]
    if as_json:
        sys.stdout.write(json.dumps([_facts(entry) for entry in entries], indent=1) + "\n")
    else:
        width = max(map(len, stored.entries), default=0)
        for entry in entries:
            sys.stdout.write(f"{entry.name:{width}}  {entry.source}\n")
    for broken in stored.broken:
        sys.stderr.write(f"register_env: {broken.name or broken.owner}: {broken.problem}\n")
    if not entries and not stored.broken and not as_json:
        sys.stdout.write("nothing is registered yet; add an environment with --name and --path\n")
    return 2 if stored.broken else 0


def _show(name: str, *, as_json: bool) -> int:
    facts = _facts(store.get(name))
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        return 0
    for key, value in facts.items():
        sys.stdout.write(f"{key.replace('_', ' '):18} {'-' if value is None else value}\n")
    return 0


def _facts(entry: Entry) -> dict[str, str | None]:
    """All that is known of a stored entry, and whether its code is still what was checked."""
    facts: dict[str, str | None] = {"name": entry.name, **as_item(entry.source), **entry.found}
    if isinstance(entry.source, FileSource) and "sha256" in entry.found:
        facts["state"] = _state(entry.source, entry.found["sha256"])
    return facts


def _state(source: FileSource, sha256: str) -> str:
    try:
        now = _sha256(source)
    except RegistryError as error:
        return str(error)
    return "as it was registered" if now == sha256 else "changed since it was registered"


def _sha256(source: FileSource) -> str:
    from clusterenv_registry import code

    return code.read(source).sha256


if __name__ == "__main__":
    sys.exit(main())
