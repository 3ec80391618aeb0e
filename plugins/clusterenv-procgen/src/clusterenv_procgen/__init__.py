"""Procgen's 16 games for ClusterEnv, one by one and as the backend `procgen`, and for Gymnasium.

https://github.com/openai/procgen; Cobbe et al., 2020, arXiv:1912.01588.
"""

from __future__ import annotations

from clusterenv_procgen.options import GAMES, id_of
from clusterenv_procgen.scores import normalized_score
from clusterenv_registry import hookimpl

__all__ = ["GAMES", "normalized_score"]


@hookimpl
def clusterenv_register_backends() -> dict[str, str]:
    """Vectors of games: `procgen:coinrun`, or `procgen:procgen-coinrun-v0`, and the other 15."""
    return {"procgen": "clusterenv_procgen.vector:make"}


@hookimpl
def clusterenv_register_envs() -> dict[str, str]:
    """Single games, to be wrapped: `procgen-coinrun-v0` and the other 15."""
    return {id_of(game): f"clusterenv_procgen.env:{game}" for game in GAMES}
