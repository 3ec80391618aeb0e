"""What a command line means: its own options, over those of a file, over the defaults of the environment."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro
import yaml

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError
from clusterenv.learners.config_files import (
    Setting,
    find,
    option_names,
    options_of,
    settings_in,
    typed,
    unknown,
)
from clusterenv.learners.defaults import DEFAULTS
from clusterenv.learners.launching import (
    LAUNCHER_HELP,
    LauncherName,
    SlurmOptions,
    described,
    launcher_config,
)
from clusterenv.learners.resuming import milestone
from clusterenv.learners.runs import repeatable

Config = TypeVar("Config", bound=Any)  # a frozen dataclass with `env_id`, and defaults for the rest

CONFIG_HELP = (
    "YAML file of options, or the name of one that is shipped, such as procgen-laptop; the options of the"
    " command line win over it."
)
PRINT_HELP = "Print what would run, as a file that --config takes, and end."

NO_OPTIONS = ("algorithm", "launcher", "slurm")
"""Keys of a file that are not options of the algorithm."""
INSTEAD = {"envs_per_worker": "num_envs", "num_minibatches": "batch_size"}
"""Options that a command line gives in place of what a file says by the other one."""


@dataclass(frozen=True, slots=True)
class File:
    """What a configuration file says."""

    options: Mapping[str, Setting]
    """By the option's own name."""
    launcher: LauncherName = "local"
    slurm: SlurmOptions = field(default_factory=SlurmOptions)


def parse(
    algorithm: str, kind: type[Config], argv: Sequence[str]
) -> tuple[Config, LocalConfig | SlurmConfig]:
    """The options of `argv`, else a file's, else the environment's, else those of `kind`; where workers run.

    Exits, as commands do, on --help, on --print-config and on options that do not exist.

    Raises:
        ConfigError: if what a file or the command line says cannot work.
    """
    words = [_own_word(word, kind) for word in argv]
    known = _looked_up(words)
    file = File({})
    if known.config is not None:
        if known.resume is not None:
            raise ConfigError("config", known.config, "nothing with --resume, since that run has its options")
        file = read(known.config, algorithm, kind)
    config = field()  # tyro shows the help, or says that --env-id is missing
    env_id = known.env_id or (file.options["env_id"].value if "env_id" in file.options else None)
    if known.resume is not None:
        config = field(default=resumed_config(algorithm, kind, known.resume, known.env_id))
    elif env_id is not None:
        of_file = {name: setting.value for name, setting in file.options.items()}
        options = {**DEFAULTS[algorithm].get(env_id, {}), **of_file, "env_id": env_id}
        options |= {other: None for name, other in INSTEAD.items() if _is_given(name, words)}
        config = field(default=_unchecked(kind, options))
    where = tyro.conf.arg(help=LAUNCHER_HELP)
    line: Any = make_dataclass(
        "Line",
        [
            ("options", Annotated[kind, tyro.conf.arg(name="")], config),
            ("config", Annotated[str | None, tyro.conf.arg(help=CONFIG_HELP)], field(default=None)),
            ("print_config", Annotated[bool, tyro.conf.arg(help=PRINT_HELP)], field(default=False)),
            ("launcher", Annotated[LauncherName, where], field(default=file.launcher)),
            ("slurm", SlurmOptions, field(default=file.slurm)),
        ],
    )
    program = f"clusterenv train {algorithm}"
    try:
        given = tyro.cli(line, prog=program, description=inspect.getdoc(kind), args=words)
    except ConfigError as error:
        setting = file.options.get(error.name)
        if setting is None or setting.value != error.value:
            raise
        raise ConfigError(setting.name, error.value, error.expected) from error
    resolved = given.options
    unused = given.launcher == "local" and given.slurm == file.slurm  # the file's, for its own launcher
    slurm = SlurmOptions() if unused else given.slurm
    launcher = launcher_config(given.launcher, slurm, resolved.workers_of_learner, resolved.serial)
    if given.print_config:
        content = {"algorithm": algorithm, **repeatable(resolved), **described(launcher)}
        sys.stdout.write(yaml.safe_dump(content, sort_keys=False))
        raise SystemExit(0)
    return resolved, launcher


def read(name: str, algorithm: str, kind: type[Any]) -> File:
    """What the file `name`, or the shipped configuration of that name, says for `algorithm`.

    Raises:
        ConfigError: if there is no such file, or something in it cannot be; the line is named.
    """
    settings = settings_in(find(name, algorithm))
    apart = {setting.key: setting for setting in settings if setting.key in NO_OPTIONS}
    if "algorithm" in apart and apart["algorithm"].value != algorithm:
        found = apart["algorithm"]
        raise ConfigError(found.name, found.value, f"{algorithm}, since the command is `train {algorithm}`")
    launcher: LauncherName = "local"
    if "launcher" in apart:
        launcher = typed(apart["launcher"], LauncherName)
    others = [setting for setting in settings if setting.key not in apart]
    slurm = _slurm_options(apart["slurm"]) if "slurm" in apart else SlurmOptions()
    return File(options_of(others, kind), launcher, slurm)


def _slurm_options(setting: Setting) -> SlurmOptions:
    options = typed(setting, dict)
    known = {item.name for item in fields(SlurmOptions)} - {"nodes"}
    for key in options:
        if key not in known:
            raise unknown(Setting(f"slurm.{key}", None, setting.where), {f"slurm.{name}" for name in known})
    hints = get_type_hints(SlurmOptions)
    found = {
        key: typed(Setting(f"slurm.{key}", value, setting.where), hints[key])
        for key, value in options.items()
        if key != "directives"
    }
    directives = {key: str(value) for key, value in options.get("directives", {}).items()}
    return SlurmOptions(**found, directives=directives)


def _own_word(word: str, kind: type[Any]) -> str:
    """A word of a command line, with the option's own name in place of another library's."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    no, name = ("no-", flag[5:]) if flag.startswith("--no-") else ("", flag[2:])
    own = option_names(kind).get(name.replace("-", "_"))
    return word if own is None else f"--{no}{own.replace('_', '-')}{equals}{value}"


def _looked_up(words: Sequence[str]) -> argparse.Namespace:
    """What has to be known before the command line can be read as a whole."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env-id", dest="env_id")
    first.add_argument("--slurm.nodes", dest="nodes")
    first.add_argument("--resume", type=Path)
    first.add_argument("--config")
    known = first.parse_known_args(list(words))[0]
    if known.nodes is not None:
        raise ConfigError("slurm.nodes", known.nodes, "nothing, since --workers says how many nodes")
    return known


def _unchecked(kind: type[Config], options: Mapping[str, Any]) -> Config:
    """The options that a command line starts from: checked when it is complete, and not before."""
    config: Config = object.__new__(kind)
    for item in fields(kind):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        object.__setattr__(config, item.name, options.get(item.name, default))
    return config


def resumed_config(algorithm: str, kind: type[Config], folder: Path, env_id: str | None) -> Config:
    """The options of the run in `folder`, to go on with it; `env_id` is what the command line says.

    Raises:
        ConfigError: if there is no such run, it is of another environment, or has options of another version.
    """
    last = milestone(folder, algorithm)
    if env_id not in (None, last.env_id):
        raise ConfigError("env_id", env_id, f"{last.env_id}, the environment of the run in {folder}")
    options = dict(last.config) | {"resume": folder, "run_dir": None}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    paths = {name for name, hint in get_type_hints(kind).items() if Path in get_args(hint)}
    options |= {name: Path(value) for name, value in options.items() if name in paths and value is not None}
    try:
        config: Config = kind(**options)
    except TypeError as error:
        raise ConfigError("resume", str(folder), f"a run of this version of clusterenv ({error})") from error
    return config


def _is_given(name: str, words: Sequence[str]) -> bool:
    """Whether a command line has the option `name`."""
    return any(word.partition("=")[0].replace("_", "-") == f"--{name.replace('_', '-')}" for word in words)
