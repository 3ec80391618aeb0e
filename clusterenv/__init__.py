"""Gymnasium environments on every core of every node, with the learner as one ordinary process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterenv.config import EnvConfig
    from clusterenv.env import ClusterEnv
    from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
    from clusterenv.make import make_vec
    from clusterenv.register_env import register
    from clusterenv.rollout import Rollout

__all__ = [
    "ClusterEnv",
    "EnvConfig",
    "LocalConfig",
    "ManualConfig",
    "Rollout",
    "SlurmConfig",
    "make_vec",
    "register",
]
__version__ = "0.1.0"

_LAZY = {
    "ClusterEnv": "clusterenv.env",
    "EnvConfig": "clusterenv.config",
    "LocalConfig": "clusterenv.launcher_config",
    "ManualConfig": "clusterenv.launcher_config",
    "Rollout": "clusterenv.rollout",
    "SlurmConfig": "clusterenv.launcher_config",
    "make_vec": "clusterenv.make",
    "register": "clusterenv.register_env",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'clusterenv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
