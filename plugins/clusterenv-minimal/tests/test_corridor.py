"""The environment, and that ClusterEnv finds it by name."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from clusterenv_minimal.corridor import Corridor
from gymnasium.utils.env_checker import check_env

import clusterenv


def test_environment_keeps_gymnasiums_rules() -> None:
    check_env(Corridor(), skip_render_check=True)


def test_walk_to_the_end_pays_off() -> None:
    env = gym.wrappers.TimeLimit(Corridor(length=3), 100)
    env.reset(seed=0)
    assert env.step(np.int64(1))[1:3] == (-0.01, False)
    assert env.step(np.int64(1))[1:3] == (1.0, True)


def test_clusterenv_finds_it_by_name() -> None:
    with clusterenv.ClusterEnv({"type": "Corridor", "env_kwargs": {"length": 3}, "envs_per_node": 2}) as env:
        env.reset(seed=0)
        assert env.step(np.ones(2, np.int64))[0].tolist() == [[0.5], [0.5]]
