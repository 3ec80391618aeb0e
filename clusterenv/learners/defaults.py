"""The one table of settings that differ between environments, and how a command line is laid over it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import tyro

Config = TypeVar("Config", bound=Any)  # a frozen dataclass with `env_id` and defaults for all the rest

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
}
"""By algorithm and environment: what differs from the defaults of the algorithm's config class."""


def parse(algorithm: str, kind: type[Config], argv: Sequence[str]) -> Config:
    """The options of `argv`, else the environment's defaults, else those of `kind`.

    Exits, as commands do, on --help and on options that do not exist.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env-id", "--env_id", dest="env_id")
    env_id = first.parse_known_args(list(argv))[0].env_id
    program = f"clusterenv train {algorithm}"
    if env_id is None:  # then tyro shows the help, or says that --env-id is missing
        return tyro.cli(kind, prog=program, args=list(argv))
    default: Config = kind(env_id=env_id, **DEFAULTS[algorithm].get(env_id, {}))
    return tyro.cli(kind, prog=program, args=list(argv), default=default)
