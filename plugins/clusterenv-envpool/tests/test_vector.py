from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from clusterenv_envpool.factory import make
from clusterenv_envpool.vector import EnvPoolVector
from gymnasium.vector import AutoresetMode

KINDS = [
    "CartPole-v1",
    "FrozenLake-v1",
    "LunarLander-v3",
    "HalfCheetah-v5",
    "WalkerWalk-v1",
    "Pong-v5",
    "MiniGrid-Empty-5x5-v0",
    "CoinrunEasy-v0",
]


def vector(name: str = "CartPole-v1", num_envs: int = 4, **kwargs: object) -> EnvPoolVector:
    return make(name, num_envs, num_threads=2, **kwargs)


@pytest.mark.parametrize("name", KINDS)
def test_spaces_rows_and_resets_are_as_gymnasium_has_them(name: str) -> None:
    pool = vector(name)
    pool.action_space.seed(0)
    obs, infos = pool.reset(seed=1)
    assert pool.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert pool.observation_space.contains(obs)
    assert infos["elapsed_step"].tolist() == [0] * 4
    ended = np.zeros(4, np.bool_)
    for _ in range(120):
        obs, rewards, terminated, truncated, infos = pool.step(pool.action_space.sample())
        assert pool.observation_space.contains(obs)
        assert not rewards[ended].any()
        assert not (terminated | truncated)[ended].any()
        assert not infos["elapsed_step"][ended].any()
        ended = terminated | truncated
    pool.close()


def walk(pool: EnvPoolVector, seed: object, steps: int = 60) -> np.ndarray:
    actions = np.random.default_rng(0).integers(0, 2, (steps, pool.num_envs))
    return np.array([pool.reset(seed=seed)[0], *(pool.step(action)[0] for action in actions)])


def test_reset_honours_its_seed_again_and_again() -> None:
    pool = vector()
    first = walk(pool, 5)
    np.testing.assert_array_equal(walk(pool, 5), first)
    np.testing.assert_array_equal(walk(pool, [5, 6, 7, 8]), first)
    assert not np.array_equal(walk(pool, 6), first)
    assert not np.array_equal(walk(pool, 1 << 40), walk(pool, 1 << 41))


def test_without_a_seed_two_pools_differ() -> None:
    assert not np.array_equal(vector().reset()[0], vector().reset()[0])


def test_rows_do_not_depend_on_threads_or_on_the_order_in_which_they_are_ready() -> None:
    first = walk(vector(), 5)
    np.testing.assert_array_equal(walk(make("CartPole-v1", 4, num_threads=1), 5), first)
    np.testing.assert_array_equal(walk(vector(batch_size=2), 5), first)
    np.testing.assert_array_equal(walk(vector(batch_size=1), 5), first)


def test_a_mask_resets_its_rows_alone() -> None:
    pool = vector()
    pool.reset(seed=1)
    for _ in range(3):
        pool.step(np.ones(4, np.int64))
    _, infos = pool.reset(options={"reset_mask": np.array([False, True, False, True])})
    assert infos["_elapsed_step"].tolist() == [False, True, False, True]
    infos = pool.step(np.ones(4, np.int64))[4]
    assert infos["elapsed_step"].tolist() == [4, 1, 4, 1]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_some_rows_step_alone(batch_size: int | None) -> None:
    pool = vector(batch_size=batch_size)
    pool.reset(seed=1)
    obs, rewards, *_, infos = pool.step_rows(np.ones(2, np.int64), np.array([1, 3]))
    assert obs.shape == (2, 4)
    assert rewards.tolist() == [1.0, 1.0]
    assert infos["elapsed_step"].tolist() == [1, 1]
    assert pool.step(np.ones(4, np.int64))[4]["elapsed_step"].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("CartPol-v1", 4), "EnvPool .* has no environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        (("CartPole-v1", 4, {"batch_size": 3}), "batch_size is 3; expected a divisor of the 4 environments"),
        (("CartPole-v1", 4, {"seed": 3}), "seed in env_kwargs is 3; ClusterEnv sets it itself"),
        (("CartPole-v1", 4, {"lenght": 3}), "EnvPool refuses 'CartPole-v1' with {'lenght': 3}"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(
    arguments: tuple[str, int, dict[str, int]], problem: str
) -> None:
    name, num_envs, *kwargs = arguments
    with pytest.raises(ValueError, match=problem):
        vector(name, num_envs, **(kwargs[0] if kwargs else {}))


def test_what_envpool_cannot_do_is_refused_before_it_is_asked() -> None:
    pool = vector()
    pool.reset(seed=1)
    with pytest.raises(ValueError, match=r"actions from 0 to 7 are not all in Discrete\(2\)"):
        pool.step(np.array([0, 1, 7, 0]))
    with pytest.raises(ValueError, match="take no options at reset; there are \\['level'\\]"):
        pool.reset(options={"level": 3})
    with pytest.raises(ValueError, match="seeds for all rows at once"):
        pool.reset(seed=3, options={"reset_mask": np.array([True, False, False, False])})
    with pytest.raises(ValueError, match="waits for 2 environments at a time and 1 were asked"):
        vector(batch_size=2).step_rows(np.ones(1, np.int64), np.array([1]))


def test_bounds_that_stand_for_none_are_infinite() -> None:
    space = vector("LunarLander-v3").single_observation_space
    assert isinstance(space, gym.spaces.Box)
    assert np.isneginf(space.low).all()
    assert np.isposinf(space.high).all()
