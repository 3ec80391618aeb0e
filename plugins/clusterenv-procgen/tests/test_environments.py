"""The games as Gymnasium knows them, and as ClusterEnv finds them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from clusterenv_procgen import GAMES, normalized_score
from clusterenv_procgen.env import ProcgenEnv
from clusterenv_procgen.scores import RANGES
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import GrayscaleObservation

import clusterenv


@pytest.mark.parametrize("game", GAMES)
def test_game_keeps_gymnasiums_rules(game: str) -> None:
    env = gym.make(f"procgen:procgen-{game}-v0", render_mode="rgb_array", distribution_mode="easy")
    assert env.observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert env.action_space == gym.spaces.Discrete(15)
    check_env(env.unwrapped)
    env.close()


def test_last_observation_and_frame_of_an_episode_are_its_own() -> None:
    env = gym.make(
        "procgen:procgen-coinrun-v0", render_mode="rgb_array", distribution_mode="easy", rand_seed=1
    )
    rng = np.random.default_rng(0)
    for _ in range(3):
        _, info = env.reset()
        level, terminated, truncated = info["level_seed"], False, False
        while not (terminated or truncated):
            obs, reward, terminated, truncated, info = env.step(rng.integers(15))
        frame = env.render()
        assert frame.shape == (512, 512, 3)
        assert info["level_seed"] == info["prev_level_seed"] == level
        assert info["prev_level_complete"] == (reward == 10.0)
        small = frame.reshape(64, 8, 64, 8, 3).mean((1, 3))
        assert np.abs(small - obs).mean() < 12  # the same scene; the next level's is not
        following, _ = env.reset()
        assert np.abs(small - following).mean() > 20
    env.close()


def test_the_ids_that_people_know_make_vectors_too() -> None:
    envs = gym.make_vec("procgen:procgen-maze-v0", num_envs=3, vectorization_mode="vector_entry_point")
    obs, infos = envs.reset(seed=1)
    assert obs.shape == (3, 64, 64, 3)
    single = ProcgenEnv("maze")
    assert single.reset(seed=2)[1]["level_seed"] == infos["level_seed"][1]
    envs.close()
    single.close()


def test_render_gives_a_frame_for_each_row() -> None:
    envs = gym.make_vec("procgen:procgen-miner-v0", 2, "vector_entry_point", {}, render_mode="rgb_array")
    envs.reset(seed=1)
    assert [frame.shape for frame in envs.render()] == [(512, 512, 3)] * 2
    envs.close()


def test_clusterenv_finds_single_games_which_may_be_wrapped() -> None:
    config = {"env_name": "procgen-heist-v0", "env_kwargs": {"num_levels": 5}, "envs_per_node": 2}
    with clusterenv.ClusterEnv({**config, "wrappers": (GrayscaleObservation,)}) as env:
        obs, infos = env.reset(seed=0)
        assert obs.shape == (2, 64, 64)
        assert infos["level_seed"].max() < 5


def test_normalized_score_is_that_of_the_paper() -> None:
    assert set(RANGES["easy"]) == set(RANGES["hard"]) == set(GAMES)
    assert normalized_score("coinrun", "hard", 7.5) == 0.5
    assert normalized_score("procgen-starpilot-v0", "easy", 64.0) == 1.0
    assert normalized_score("fruitbot", "hard", np.array([-0.5, 27.2])).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="no ranges for the mode 'memory'"):
        normalized_score("maze", "memory", 1.0)
