"""`on_env_error="rebuild"`: an environment that raises is built anew, alone, and its row says so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.batches import StepBatch
from clusterenv.commands import Failed, Reset, RunnerSetup, Step
from clusterenv.errors import ConfigError, EnvError, StateError
from clusterenv.runner import Runner
from tests.agents import MLPAgent
from tests.chaos.calls import CALLS, Calls, followed
from tests.chaos.ledger import Checker, Ledger
from tests.envs import Count, Fails, RandomObs

SERIAL = LocalConfig(serial=True)
ACTIONS = np.zeros(2, np.int64)
PAIR = [partial(Count, 9), partial(Fails, "step", 3)]
"""The second raises in the third step of each episode."""


class FailsUnlessDerived(RandomObs):
    """Raises in a reset with a small seed, as callers give them."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and 7 <= seed < 1000:
            raise RuntimeError("a seed that this environment cannot bear")
        return super().reset(seed=seed, options=options)


def rebuilding(env_fns: Any = PAIR, launcher: LocalConfig = SERIAL, **options: Any) -> ClusterEnv:
    return ClusterEnv(env_fns, launcher, on_env_error="rebuild", **options)


def column(step: tuple[Any, ...], env: int = 1) -> tuple[Any, ...]:
    obs, reward, terminated, truncated, info = step
    return (
        obs[env, 0],
        reward[env],
        bool(terminated[env]),
        bool(truncated[env]),
        info.get("valid", [True] * 2)[env],
    )


def step_for_long(env: ClusterEnv) -> None:
    for _ in range(20):
        env.step(ACTIONS)


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    with rebuilding(autoreset_mode=request.param) as env:
        env.reset(seed=0)
        env.step(ACTIONS)
        assert column(env.step(ACTIONS)) == (2, 1, False, False, True)
        yield env


@pytest.mark.parametrize("env", [AutoresetMode.NEXT_STEP], indirect=True)
def test_env_that_raises_ends_its_episode_and_begins_another_with_the_next_step(env: ClusterEnv) -> None:
    lost = env.step(ACTIONS)
    assert column(lost) == (2, 0, False, True, False)
    assert column(lost, 0) == (3, 1, False, False, True)
    info = lost[4]
    assert info["worker_lost"].tolist() == [False, False]
    assert info["_env_error"].tolist() == [False, True]
    assert "environment 1 failed in step" in info["env_error"][1]
    assert info["env_error"][1].endswith("RuntimeError: on purpose")

    began = env.step(ACTIONS)
    assert column(began) == (0, 0, False, False, True)
    assert "valid" not in began[4]
    assert column(env.step(ACTIONS), 0)[0] == 5
    assert env.stats()["workers"][0]["env_rebuilds"] == 1


@pytest.mark.parametrize("env", [AutoresetMode.SAME_STEP], indirect=True)
def test_env_that_raises_begins_its_next_episode_in_the_same_step(env: ClusterEnv) -> None:
    lost = env.step(ACTIONS)
    assert column(lost) == (0, 0, False, True, False)
    assert lost[4]["final_obs"][1] == [2]
    assert column(env.step(ACTIONS)) == (1, 1, False, False, True)


@pytest.mark.parametrize("env", [AutoresetMode.DISABLED], indirect=True)
def test_env_that_raises_waits_for_its_reset_where_that_is_the_callers(env: ClusterEnv) -> None:
    assert column(env.step(ACTIONS)) == (2, 0, False, True, False)
    with pytest.raises(StateError, match="have ended"):
        env.step(ACTIONS)
    obs, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert obs[:, 0].tolist() == [3, 0]
    assert column(env.step(ACTIONS)) == (1, 1, False, False, True)


def test_rows_of_a_rollout_in_which_an_env_raised_are_not_valid_and_cut_its_episode() -> None:
    with rebuilding(seed=0) as env:
        rollout = env.rollout(MLPAgent(env), 7)
    assert rollout.obs[:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout.valid[:, 1].tolist() == [True, True, False, True, True, False, True]
    assert rollout.truncations[:, 1].tolist() == (~rollout.valid[:, 1]).tolist()
    assert rollout.rewards[:, 1].tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert rollout.final_index.tolist() == [[2, 1], [5, 1]]
    assert rollout.final_obs[:, 0].tolist() == [2, 2]
    assert [(ended.length, ended.episode_return) for ended in rollout.episodes] == [(2, 2.0), (2, 2.0)]
    assert rollout.valid[:, 0].all()


def test_time_limit_holds_in_an_env_that_was_built_anew() -> None:
    def limited() -> gym.Env:
        return TimeLimit(OrderEnforcing(Fails("step", 3, n=9)), 2)

    def limited_above() -> gym.Env:
        return TimeLimit(OrderEnforcing(Fails("step", 3, n=9)), 4)

    with rebuilding([limited, limited_above], seed=0) as env:
        rollout = env.rollout(MLPAgent(env), 8)
    assert rollout.truncations[:, 0].tolist() == [False, True] * 4
    assert rollout.valid[:, 0].all()
    assert rollout.obs[:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert rollout.valid[:, 1].tolist() == [True, True, False, True, True, False, True, True]


def test_env_that_raises_too_often_is_an_error_that_tells_the_first() -> None:
    with rebuilding(max_restarts=2) as env:
        env.reset(seed=0)
        message = r"environment 1 .*max_restarts = 2 times within an hour. The first error: environment 1"
        with pytest.raises(EnvError, match=message) as caught:
            step_for_long(env)
        assert (caught.value.env_index, caught.value.worker) == (1, 0)
        assert 'raise RuntimeError("on purpose")' in caught.value.remote_traceback


def test_step_that_fails_leaves_no_mark_on_rows_of_the_next() -> None:
    runner = Runner(
        RunnerSetup(
            first_env=0,
            num_envs=2,
            env_blobs=[cloudpickle.dumps(partial(Fails, "step", at)) for at in (3, 1)],
            env_blob_of=[0, 1],
            noise_seed=0,
            autoreset_mode="NextStep",
            sys_path=[],
            step_timeout_s=60.0,
            cpus=None,
            env_rebuilds=1,
        )
    )
    runner.build()
    runner.handle(Reset(seeds=[0, 1]))
    assert runner.handle(Step(actions=[ACTIONS])).lost == [1]  # type: ignore[union-attr]  # a StepBatch
    assert runner.handle(Step(actions=[ACTIONS])).lost == []  # type: ignore[union-attr]
    failed = runner.handle(Step(actions=[ACTIONS]))  # the first is built anew, the second once too often
    assert isinstance(failed, Failed)
    assert failed.env_index == 1

    batch = runner.handle(Step(actions=[ACTIONS[:1]], mask=np.array([True, False])))

    assert isinstance(batch, StepBatch)
    assert batch.lost == []
    assert [each.env_id for each in batch.rebuilt] == [0]


def test_env_that_raises_in_reset_begins_with_a_seed_of_no_other_environment() -> None:
    first = []
    for _ in range(2):
        with rebuilding([FailsUnlessDerived] * 2) as env:
            obs, info = env.reset(seed=6)
            first.append(obs[1].tolist())
            assert info["_env_error"].tolist() == [False, True]
            assert env.step(ACTIONS)[4].get("valid") is None
    assert first[0] == first[1]
    others = [RandomObs().reset(seed=seed)[0].tolist() for seed in range(20)]
    assert first[0] not in others


def test_env_that_cannot_be_built_again_is_an_error_of_that_env(tmp_path: Path) -> None:
    built = tmp_path / "built"

    def once() -> gym.Env:
        if built.exists():
            raise OSError("no second one")
        built.touch()
        return Fails("step", 1)

    with rebuilding([partial(Count, 9), once], observation_mode="same") as env:
        env.reset(seed=0)
        with pytest.raises(EnvError, match="environment 1 could not be made: OSError: no second one"):
            env.step(ACTIONS)


@pytest.mark.process
def test_others_have_no_gap_while_one_env_is_built_anew(tmp_path: Path) -> None:
    env_fns = [partial(Ledger, env, tmp_path) for env in range(4)]
    launcher = LocalConfig(nodes=2, cpus_per_node=2)
    with rebuilding(env_fns, launcher, lease_s=30) as env, followed() as taken:
        calls = Calls(env, MLPAgent(env), Checker(4), taken)
        calls.reset(0)
        for number, call in enumerate(CALLS):
            assert calls.make(call)
            (tmp_path / "fault-3").write_text("raise")
            assert any(not calls.make(call) for _ in range(1000))  # a stream first gives older ones
            assert all(calls.make(call) for _ in range(20))
            calls.settle()
            workers = env.stats()["workers"]
            assert [worker["env_rebuilds"] for worker in workers] == [0, number + 1]
        assert [worker["restarts"] for worker in workers] == [0, 0]


def test_what_happens_to_an_env_that_raises_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match="on_env_error"):
        ClusterEnv([Count], on_env_error="ignore")
