"""The one table of settings that differ between environments, and how a command line is laid over it."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError
from clusterenv.learners.launching import LAUNCHER_HELP, LauncherName, SlurmOptions, launcher_config
from clusterenv.learners.resuming import milestone

Config = TypeVar("Config", bound=Any)  # a frozen dataclass with `env_id`, and defaults for the rest

DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "num_steps": 32,
            "learning_rate": 2.5e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 2_000_000,
            "learning_rate": 2e-3,
            "num_minibatches": 8,
            "gamma": 0.995,
            "entropy_coef": 0.003,
        },
        "Pendulum-v1": {
            "total_steps": 500_000,
            "num_steps": 32,
            "epochs": 8,
            "num_minibatches": 8,
            "gamma": 0.95,
        },
    },
    "a2c": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "envs_per_worker": 16,
            "learning_rate": 5e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {"total_steps": 2_000_000, "gamma": 0.995},
    },
    "a3c": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "envs_per_worker": 16,
            "learning_rate": 3e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {"total_steps": 2_000_000, "gamma": 0.995},
    },
    "impala": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "num_steps": 16,
            "learning_rate": 1e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 1_000_000,
            "num_steps": 64,
            "num_minibatches": 8,
            "learning_rate": 2e-3,
            "gamma": 0.995,
        },
    },
    "dqn": {
        "CartPole-v1": {
            "total_steps": 60_000,
            "replay_capacity": 20_000,
            "replay_ratio": 16.0,
            "batch_size": 64,
            "hidden": (64, 64),
        },
        "LunarLander-v3": {"total_steps": 500_000, "gamma": 0.995},
    },
    "sac": {
        "Pendulum-v1": {
            "total_steps": 20_000,
            "learning_starts": 1_000,
            "batch_size": 128,
            "replay_ratio": 64.0,
            "learning_rate": 1e-3,
            "hidden": (64, 64),
            "replay_capacity": 50_000,
        },
    },
}
"""By algorithm and environment: what differs from the defaults of the algorithm's config class."""


def parse(
    algorithm: str, kind: type[Config], argv: Sequence[str]
) -> tuple[Config, LocalConfig | SlurmConfig]:
    """The options of `argv`, else the environment's defaults, else those of `kind`; and where workers run.

    Exits, as commands do, on --help and on options that do not exist.

    Raises:
        ConfigError: if what is said of the launcher cannot work.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env-id", "--env_id", dest="env_id")
    first.add_argument("--slurm.nodes", dest="nodes")
    first.add_argument("--resume", type=Path)
    known = first.parse_known_args(list(argv))[0]
    if known.nodes is not None:
        raise ConfigError("slurm.nodes", known.nodes, "nothing, since --workers says how many nodes")
    config = field()  # tyro shows the help, or says that --env-id is missing
    if known.resume is not None:
        config = field(default=resumed_config(algorithm, kind, known.resume, known.env_id))
    elif known.env_id is not None:
        config = field(default=kind(env_id=known.env_id, **DEFAULTS[algorithm].get(known.env_id, {})))
    line: Any = make_dataclass(
        "Line",
        [
            ("config", Annotated[kind, tyro.conf.arg(name="")], config),
            ("launcher", Annotated[LauncherName, tyro.conf.arg(help=LAUNCHER_HELP)], field(default="local")),
            ("slurm", SlurmOptions, field(default=SlurmOptions())),
        ],
    )
    program = f"clusterenv train {algorithm}"
    given = tyro.cli(line, prog=program, description=inspect.getdoc(kind), args=list(argv))
    return given.config, launcher_config(
        given.launcher, given.slurm, given.config.workers_of_learner, given.config.serial
    )


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
    try:
        config: Config = kind(**options)
    except TypeError as error:
        raise ConfigError("resume", str(folder), f"a run of this version of clusterenv ({error})") from error
    return config
