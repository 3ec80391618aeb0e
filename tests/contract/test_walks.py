"""Random walks over every transport equal those of Gymnasium's SyncVectorEnv, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clusterenv import ClusterEnv
from tests.contract.spaces import actions, any_action_space, any_space, observations
from tests.contract.vectors import NUM_ENVS, SERIAL, WORKERS, ShardVector
from tests.contract.walking import EnvFn, Pair, Walker, walk
from tests.long_form import drawn

IN_PROCESS = 1000
"""Generated cases for a shard, and half as many for a serial ClusterEnv."""
PER_LAYOUT = 34
"""Generated cases for each layout of workers and autoreset mode, all in one launched run."""

MOVES = 8

modes = st.sampled_from(list(AutoresetMode))
seeds = st.integers(0, (1 << 31) - 1)
scripts = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=NUM_ENVS)
counts = st.integers(1, 4)


def examples(count: int) -> settings:
    return drawn(
        count,
        times=4,  # a walk over workers starts processes
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def walkers(shown: gym.Space, acted: gym.Space, script: Any, count: int) -> list[EnvFn]:
    return [partial(Walker, shown, acted, index, script) for index in range(count)]


@pytest.mark.timeout(600)
@examples(IN_PROCESS)
@given(any_space(), any_action_space(), scripts, counts, modes, seeds)
def test_shard_walks_as_gymnasium_does(
    shown: gym.Space, acted: gym.Space, script: Any, count: int, mode: AutoresetMode, seed: int
) -> None:
    env_fns = walkers(shown, acted, script, count)
    pair = Pair(ShardVector(env_fns, mode), SyncVectorEnv(env_fns, autoreset_mode=mode))
    walk(pair, mode, np.random.default_rng(seed), MOVES, {})


@pytest.mark.timeout(600)
@examples(IN_PROCESS // 2)
@given(any_space(), any_action_space(), scripts, counts, modes, seeds)
def test_serial_env_walks_as_gymnasium_does(
    shown: gym.Space, acted: gym.Space, script: Any, count: int, mode: AutoresetMode, seed: int
) -> None:
    env_fns = walkers(shown, acted, script, count)
    with ClusterEnv(env_fns, SERIAL, autoreset_mode=mode) as env:
        reference = SyncVectorEnv(env_fns, autoreset_mode=mode)
        assert env.observation_space == reference.observation_space
        assert env.action_space == reference.action_space
        assert env.metadata == reference.metadata
        assert env.autoreset_mode == reference.autoreset_mode
        walk(Pair(env, reference), mode, np.random.default_rng(seed), MOVES, {})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((layout, mode, i + j), id=f"{layout}, {mode.value}")
        for i, layout in enumerate(WORKERS)
        for j, mode in enumerate(AutoresetMode)
    ],
)
def launched(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A run of workers and its twin; over its three modes each layout has every kind of space."""
    layout, mode, part = request.param
    env_fns = walkers(observations(part), actions(part), [[3]], NUM_ENVS)
    with ClusterEnv(env_fns, WORKERS[layout], autoreset_mode=mode) as env:
        yield Pair(env, SyncVectorEnv(env_fns, autoreset_mode=mode))


@pytest.mark.process
@pytest.mark.timeout(600)
@examples(PER_LAYOUT)
@given(script=scripts, seed=seeds)
def test_workers_walk_as_gymnasium_does(launched: Pair, script: Any, seed: int) -> None:
    mode = launched.reference.metadata["autoreset_mode"]
    walk(launched, mode, np.random.default_rng(seed), MOVES, {"script": script})


def test_there_are_enough_cases() -> None:
    assert IN_PROCESS + IN_PROCESS // 2 + PER_LAYOUT * len(WORKERS) * len(AutoresetMode) >= 2000
