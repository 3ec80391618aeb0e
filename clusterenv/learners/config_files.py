"""Configuration files of training runs: YAML whose keys are options, checked key by key with their line.

Keys may be spelt as other libraries spell them: `ALIASES` maps those words onto the options there are. The
same words work on the command line.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import yaml

from clusterenv.errors import ConfigError
from clusterenv.learners.duration_option import Duration, seconds_of

SHIPPED: Final = Path(__file__).parent / "configs"
"""A folder for each algorithm, with the configurations that come with the package."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "env_id": ("env", "env_name", "environment"),
    "env_kwargs": ("env_config",),
    "num_envs": ("n_envs", "total_envs"),
    "envs_per_worker": ("num_envs_per_worker", "envs_per_node"),
    "workers": ("num_workers", "n_workers"),
    "total_steps": ("total_timesteps", "max_steps", "num_timesteps"),
    "num_steps": ("n_steps", "rollout_length", "unroll_length"),
    "learning_rate": ("lr",),
    "epochs": ("n_epochs", "num_epochs", "update_epochs"),
    "passes": ("n_epochs", "num_epochs", "epochs"),
    "num_minibatches": ("n_minibatches", "nminibatches"),
    "batch_size": ("minibatch_size",),
    "gae_lambda": ("lam", "lambda"),
    "trace_lambda": ("vtrace_lambda", "gae_lambda", "lambda"),
    "rho_bar": ("clip_rho_threshold", "vtrace_clip_rho_threshold"),
    "c_bar": ("clip_c_threshold", "vtrace_clip_c_threshold"),
    "clip_coef": ("clip_range", "clip_param", "clip_epsilon"),
    "clip_value": ("clip_range_vf", "vf_clip_param"),
    "normalize_advantages": ("normalize_advantage", "norm_adv"),
    "value_coef": ("vf_coef", "vf_loss_coeff"),
    "entropy_coef": ("ent_coef", "entropy_coeff"),
    "max_grad_norm": ("grad_clip",),
    "hidden": ("hidden_size", "hidden_sizes", "fcnet_hiddens"),
    "replay_capacity": ("buffer_size",),
    "target_rate": ("tau",),
    "num_threads": ("threads", "n_threads"),
    "checkpoint_every": ("save_interval", "save_freq", "checkpoint_interval"),
    "log_interval": ("log_every", "log_freq"),
    "run_dir": ("log_dir", "checkpoint_dir", "save_dir", "output_dir"),
    "stop_at_return": ("target_return", "reward_threshold"),
}
"""For each option, how else it may be spelt. No algorithm has two options with a word in common."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a file with its value, and where it stands."""

    key: str
    value: Any
    where: str

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"{self.key} ({self.where})"


def option_names(kind: type[Any]) -> dict[str, str]:
    """Every word that may stand for an option of the config class `kind`, with the option's own name."""
    own = {item.name for item in fields(kind)}
    words = {alias: name for name in own for alias in ALIASES.get(name, ()) if alias not in own}
    return words | {name: name for name in own}


def find(name: str, algorithm: str) -> Path:
    """The file that `--config name` means: a path, or a configuration that is shipped for `algorithm`.

    Raises:
        ConfigError: if there is neither.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {file.stem: file for file in sorted((SHIPPED / algorithm).glob("*.yaml"))}
    found = shipped.get(name.replace("/", "-").removeprefix(f"{algorithm}-").removesuffix(".yaml"))
    if found is not None:
        return found
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f"{near[0]!r}, perhaps, or another one" if near else "one"
    names = ", ".join(shipped) or "none"
    raise ConfigError(
        "config", name, f"a file, or {hint} of the configurations shipped for {algorithm}: {names}"
    )


def settings_in(path: Path) -> list[Setting]:
    """The keys of a file, in its order.

    Raises:
        ConfigError: if it cannot be read, or is no mapping of keys to values; the line is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(path), f"a YAML file that can be read ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError("config", str(path), f"a YAML file ({error})") from error
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("config", str(path), "a YAML file of keys and values, such as `gamma: 0.99`")
    return list(_settings_of(node, path))


def _settings_of(node: yaml.MappingNode, path: Path) -> Iterator[Setting]:
    loader = yaml.SafeLoader("")
    seen: dict[str, str] = {}
    for key_node, value_node in node.value:
        where = f"{path}, line {key_node.start_mark.line + 1}"
        key = str(key_node.value)
        if key in seen:
            raise ConfigError("config key", key, f"one value of it, but {seen[key]}, has one too ({where})")
        seen[key] = where
        value = loader.construct_object(value_node, deep=True)
        yield Setting(key, value, where)


def options_of(settings: list[Setting], kind: type[Any]) -> dict[str, Setting]:
    """By the name of the option of `kind`, the setting that gives it, with its value of the right type.

    Raises:
        ConfigError: if a key is none of an option's, an option is given twice, or a value has another type.
    """
    words = option_names(kind)
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Setting] = {}
    for setting in settings:
        name = words.get(setting.key)
        if name is None:
            raise unknown(setting, set(words))
        if name in found:
            expected = f"one spelling: {found[name].name} means the same option, {name}"
            raise ConfigError(setting.name, setting.value, expected)
        found[name] = Setting(setting.key, typed(setting, hints[name]), setting.where)
    return found


def unknown(setting: Setting, known: set[str]) -> ConfigError:
    """The error for a key that is none of an option's, with the nearest that is."""
    near = difflib.get_close_matches(setting.key, known, n=1)
    hint = f"{near[0]!r}, perhaps" if near else "an option that `clusterenv train ALGO --help` lists"
    return ConfigError("config key", setting.key, f"{hint} ({setting.where})")


def typed(setting: Setting, hint: Any) -> Any:  # noqa: ANN401 - of the type that `hint` names
    """The value of a setting as its option takes it: lists as tuples, paths, times, and numbers such as 1e-3.

    Raises:
        ConfigError: if it is of another type.
    """
    try:
        return _as(setting.value, hint)
    except (TypeError, ValueError) as error:
        raise ConfigError(setting.name, setting.value, in_words(hint)) from error


def _as(value: Any, hint: Any) -> Any:  # noqa: ANN401
    if hint == Duration:
        return seconds_of(str(value)) if not isinstance(value, bool) else _refused(value)
    origin = get_origin(hint)
    if origin is Annotated:
        return _as(value, get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _first(value, get_args(hint))
    if origin is Literal:
        return value if value in get_args(hint) else _refused(value)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_as(item, get_args(hint)[0]) for item in items)
    if origin is dict or hint is dict:
        return value if isinstance(value, dict) else _refused(value)
    return _plain(value, hint)


def _plain(value: Any, hint: Any) -> Any:  # noqa: ANN401
    if hint is type(None):
        return None if value is None else _refused(value)
    if hint is Path:
        return Path(value).expanduser() if isinstance(value, str) else _refused(value)
    if isinstance(value, bool) or hint is bool or hint is str:
        return value if type(value) is hint else _refused(value)
    number = float(value)  # YAML takes 1e-3 for text
    if hint is int:
        return int(number) if number.is_integer() else _refused(value)
    return number


def _first(value: Any, hints: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """The value as the first of some types that it has."""
    for hint in sorted(hints, key=lambda hint: hint is not type(None)):
        try:
            return _as(value, hint)
        except (TypeError, ValueError):
            continue
    return _refused(value)


def _refused(value: object) -> Any:  # noqa: ANN401 - never returns
    raise TypeError(type(value).__name__)


def in_words(hint: Any) -> str:  # noqa: ANN401 - any type
    """What is expected of a value, for an error."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    if hint == Duration:
        return "a time such as 90s, 30m or 1h30m"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_words(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f'"{argument}"' for argument in arguments)
    if origin is tuple:
        return f"a list of {in_words(arguments[0]).removeprefix('a ')}s"
    if origin is dict or hint is dict:
        return "a mapping, such as {size: 9}"
    return "null" if hint is type(None) else names.get(hint, str(hint))
