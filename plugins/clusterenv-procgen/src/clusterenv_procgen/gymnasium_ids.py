"""Procgen's games in Gymnasium's own registry."""

from __future__ import annotations

import gymnasium as gym

from clusterenv_procgen.options import GAMES, id_of


def register() -> None:
    """`procgen-coinrun-v0` and the other 15 are known to `gymnasium.make` and `gymnasium.make_vec`."""
    for game in GAMES:
        if id_of(game) not in gym.registry:
            gym.register(
                id_of(game),
                entry_point="clusterenv_procgen.env:ProcgenEnv",
                vector_entry_point="clusterenv_procgen.vector:ProcgenVectorEnv",
                kwargs={"env_name": game},
            )
