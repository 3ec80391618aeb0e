"""ClusterEnv over real workers: the numbers of Gymnasium's contract, whatever runs underneath."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import (
    ActionError,
    AgentError,
    ClusterEnvError,
    ConfigError,
    EnvError,
    LaunchError,
    SetupTimeout,
    StateError,
    UseAfterClose,
    WorkerLost,
)
from tests.agents import CleanRLAgent, MLPAgent
from tests.envs import Count, Echo, Fails, Hangs, Index, Nested, RandomObs, Sampled

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left", "without_torch")]

ONE = LocalConfig(nodes=1, cpus_per_node=1)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)
TERM_TRUNC: list[Callable[[], gym.Env]] = [partial(Count, 2, "term"), partial(Count, 3, "trunc")]
ZEROS = np.zeros(2, np.int64)


def column(obs: np.ndarray) -> list[float]:
    return obs[:, 0].tolist()


def test_next_step_gives_the_numbers_of_s1(launcher: LocalConfig) -> None:
    with ClusterEnv(TERM_TRUNC, launcher) as env:
        obs, info = env.reset(seed=0)
        assert column(obs) == [0, 0]
        assert info["k"].tolist() == ["reset", "reset"]
        rows = [env.step(ZEROS) for _ in range(5)]
    assert [column(row[0]) for row in rows] == [[1, 1], [2, 2], [0, 3], [1, 0], [2, 1]]
    assert [row[1].tolist() for row in rows] == [[1, 1], [1, 1], [0, 1], [1, 0], [1, 1]]
    assert [row[2].tolist() for row in rows] == [
        [False, False],
        [True, False],
        [False, False],
        [False, False],
        [True, False],
    ]
    assert [row[3].tolist() for row in rows][2] == [False, True]
    assert rows[2][4]["k"].tolist() == ["reset", "step"]
    assert not any("final_obs" in row[4] for row in rows)
    assert rows[0][1].dtype == np.float64


def test_same_step_gives_the_numbers_of_s2(launcher: LocalConfig) -> None:
    with ClusterEnv(TERM_TRUNC, launcher, autoreset_mode="SameStep") as env:
        assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        env.reset(seed=0)
        first, second, third, fourth, fifth = (env.step(ZEROS) for _ in range(5))
    assert [column(row[0]) for row in (first, second, third, fourth, fifth)] == [
        [1, 1],
        [0, 2],
        [1, 0],
        [0, 1],
        [1, 2],
    ]
    info = second[4]
    assert info["final_obs"][0].tolist() == [2.0]
    assert info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == [True, False]
    assert info["final_info"]["k"].tolist() == ["step", None]
    assert info["final_info"]["_k"].tolist() == [True, False]
    assert info["k"].tolist() == ["reset", "step"]
    assert third[4]["final_obs"][1].tolist() == [3.0]


def test_disabled_refuses_a_step_of_an_ended_environment() -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL, autoreset_mode=AutoresetMode.DISABLED) as env:
        env.reset(seed=0)
        env.step(ZEROS)
        env.step(ZEROS)
        with pytest.raises(StateError, match=r"environments \[0\] have ended"):
            env.step(ZEROS)
        options = {"reset_mask": np.array([True, False])}
        obs, _ = env.reset(options=options)
        assert column(obs) == [0, 2]
        assert column(env.step(ZEROS)[0]) == [1, 3]
        with pytest.raises(StateError, match="DISABLED"):
            env.rollout(MLPAgent(env), 2)


def test_masked_reset_keeps_the_other_rows_and_the_options(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 5), partial(Count, 5)], launcher) as env:
        env.reset(seed=0)
        env.step(ZEROS)
        env.step(ZEROS)
        options = {"reset_mask": np.array([True, False])}
        obs, info = env.reset(options=options)
        assert column(obs) == [0, 2]
        assert list(options) == ["reset_mask"]
        assert info["_k"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([True]), ValueError),
        (np.array([1, 0]), TypeError),
        (np.array([False, False]), ValueError),
    ],
)
def test_reset_refuses_a_bad_mask(mask: Any, error: type[Exception]) -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL) as env, pytest.raises(error, match="reset_mask"):
        env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("layout", [(1, 8), (2, 4), (4, 2)])
def test_trajectories_do_not_depend_on_the_layout_and_equal_sync_vector_env(layout: tuple[int, int]) -> None:
    workers, each = layout
    reference = SyncVectorEnv([RandomObs] * 8)
    config = {"envs_per_node": each} if False else {}
    with ClusterEnv([RandomObs] * 8, LocalConfig(nodes=workers, cpus_per_node=1), **config) as env:
        assert np.array_equal(env.reset(seed=np.int64(7))[0], reference.reset(seed=7)[0])
        actions = np.zeros(8, np.int64)
        for _ in range(50):
            ours, theirs = env.step(actions), reference.step(actions)
            for mine, other in zip(ours[:4], theirs[:4], strict=True):
                assert np.array_equal(mine, other)
                assert mine.dtype == other.dtype


def test_seed_list_of_another_length_is_a_value_error() -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL) as env:
        env.reset(seed=[1, None])
        with pytest.raises(ValueError, match="2 entries"):
            env.reset(seed=[1, 2, 3])


def test_slow_worker_keeps_its_row() -> None:
    fns = [partial(Index, 0, 0.05, 0.05), *(partial(Index, i, 0.005) for i in range(1, 4))]
    with ClusterEnv(fns, LocalConfig(nodes=4, cpus_per_node=1)) as env:
        env.reset(seed=0)
        for _ in range(20):
            assert column(env.step(np.zeros(4, np.int64))[0]) == [0, 1, 2, 3]


def test_spaces_are_known_before_launch_and_nested_ones_keep_their_nesting(launcher: LocalConfig) -> None:
    with ClusterEnv([Nested] * 4, launcher) as env:
        single = env.single_observation_space
        assert isinstance(single, spaces.Dict)
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
        env.action_space.seed(0)
        reference = SyncVectorEnv([Nested] * 4)
        expected, _ = reference.reset(seed=1)
        _assert_equal(obs, expected)
        for _ in range(12):
            actions = env.action_space.sample()
            _assert_equal(env.step(actions)[0], reference.step(actions)[0])


def _assert_equal(mine: Any, other: Any) -> None:
    if isinstance(other, dict):
        assert list(mine) == list(other)
        for key in other:
            _assert_equal(mine[key], other[key])
    elif isinstance(other, tuple):
        for a, b in zip(mine, other, strict=True):
            _assert_equal(a, b)
    else:
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)


def test_arrays_given_are_the_callers_own() -> None:
    with ClusterEnv([partial(Count, 9)] * 2, ONE) as env:
        first, _ = env.reset(seed=0)
        first[:] = 77
        second = env.step(ZEROS)[0]
        kept = second.copy()
        env.step(ZEROS)
        assert np.array_equal(second, kept)


@pytest.mark.parametrize("agent_type", [MLPAgent, CleanRLAgent])
def test_step_with_an_agent_tells_what_the_agent_says(
    launcher: LocalConfig, agent_type: Callable[[Any], Any]
) -> None:
    with ClusterEnv({"env_name": "CartPole-v1", "envs_per_node": 4}, launcher) as env:
        agent = agent_type(env)
        env.reset(seed=3)
        for _ in range(3):
            obs, reward, terminated, truncated, info = env.step(agent)
        assert obs.shape == (env.num_envs, 4)
        for key in (
            "action",
            "log_prob",
            "value",
            "behaviour_log_prob",
            "policy_version",
            "policy_lag",
            "kl",
        ):
            assert len(info[key]) == env.num_envs
            assert info[f"_{key}"].all()
        assert np.isfinite(info["log_prob"]).all()
        assert np.array_equal(info["log_prob"], info["behaviour_log_prob"])
        assert info["sync_count"].tolist() == [1] * env.num_envs
        assert set(info["action"].tolist()) <= {0, 1}
        assert reward.tolist() == [1.0] * env.num_envs
        assert not (terminated | truncated).any()


def test_rollout_has_the_final_observations_and_goes_on_from_the_last(launcher: LocalConfig) -> None:
    with ClusterEnv(TERM_TRUNC, launcher, seed=1) as env:
        batch = env.rollout(MLPAgent(env), num_steps=6)
        assert batch.obs[:, 0, 0].tolist() == [0, 1, 0, 1, 0, 1]
        assert batch.obs[:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2]
        assert batch.terminations[:, 0].tolist() == [False, True] * 3
        assert batch.truncations[:, 1].tolist() == [False, False, True] * 2
        assert batch.final_index.tolist() == [[1, 0], [2, 1], [3, 0], [5, 0], [5, 1]]
        assert batch.final_obs[:, 0].tolist() == [2, 3, 2, 2, 3]
        assert batch.last_obs[:, 0].tolist() == [0, 0]
        assert batch.valid.all()
        assert [(e.env_id, e.episode_return, e.length) for e in batch.episodes][:2] == [
            (0, 2.0, 2),
            (1, 3.0, 3),
        ]
        assert column(env.step(ZEROS)[0]) == [1, 1]
        assert env.rollout(MLPAgent(env), num_steps=1).obs[0, :, 0].tolist() == [1, 1]


def test_rollout_performs_the_reset_that_step_left_pending() -> None:
    with ClusterEnv(TERM_TRUNC, ONE, seed=1) as env:
        env.reset(seed=0)
        env.step(ZEROS)
        assert column(env.step(ZEROS)[0]) == [2, 2]
        batch = env.rollout(MLPAgent(env), num_steps=2)
        assert batch.obs[:, :, 0].tolist() == [[0, 2], [1, 0]]


def test_rollouts_with_equal_seeds_are_equal_over_layouts() -> None:
    def run(launcher: LocalConfig) -> tuple[np.ndarray, np.ndarray]:
        with ClusterEnv([RandomObs] * 4, launcher, seed=5) as env:
            agent = MLPAgent(env, seed=2)
            batches = [env.rollout(agent, num_steps=16) for _ in range(2)]
            return batches[-1].obs, batches[-1].actions

    obs, actions = run(SERIAL)
    for launcher in (ONE, TWO):
        other_obs, other_actions = run(launcher)
        assert np.array_equal(obs, other_obs)
        assert np.mean(actions == other_actions) > 0.99  # a sample may fall within rounding of a boundary


def test_continuous_actions_are_stored_raw_and_clipped_for_the_environment() -> None:
    fns = [partial(Echo, spaces.Box(-0.01, 0.01, (2,), np.float32), 50)] * 2
    with ClusterEnv(fns, ONE, seed=0) as env:
        batch = env.rollout(MLPAgent(env), num_steps=8)
        assert np.abs(batch.actions).max() > 0.01
        assert np.abs(batch.obs[1:]).max() <= 0.01 + 1e-7


def test_older_api_returns_as_gym_did() -> None:
    with ClusterEnv(TERM_TRUNC, ONE, api="gym") as env:
        assert column(env.reset()) == [0, 0]
        env.step(ZEROS)
        obs, reward, done, info = env.step(ZEROS)
        assert column(obs) == [0, 2]
        assert done.tolist() == [True, False]
        assert info["final_observation"][0].tolist() == [2.0]
        obs, reward, done, info = env.step(MLPAgent(env))
        assert info["TimeLimit.truncated"].tolist() == [False, True]
        assert reward.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("nodes", [1, 3])
def test_killed_worker_is_named_within_the_lease(nodes: int) -> None:
    env = ClusterEnv(
        [partial(Index, i) for i in range(6)],
        LocalConfig(nodes=nodes, cpus_per_node=1),
        on_worker_loss="raise",
        lease_s=3,
    )
    env.reset(seed=0)
    victim = nodes - 1
    os.kill(env.stats()["workers"][victim]["pid"], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerLost, match=f"worker {victim}.*signal 9") as raised:
        _step_for_ever(env)
    assert time.monotonic() - start < 4
    assert raised.value.rank == victim
    assert raised.value.signal == signal.SIGKILL
    assert raised.value.env_indices == tuple(range(6))[6 // nodes * victim :]
    assert raised.value.log_path is not None
    with pytest.raises(UseAfterClose):
        env.step(np.zeros(6, np.int64))
    for path in [raised.value.log_path.parent]:  # kept, since the error names it
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def _step_for_ever(env: ClusterEnv) -> None:
    while True:
        env.step(np.zeros(6, np.int64))


def _step_for(env: ClusterEnv, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        env.step(ZEROS)


def test_stopped_worker_is_silent_and_lost() -> None:
    env = ClusterEnv([partial(Index, i) for i in range(2)], TWO, on_worker_loss="raise", lease_s=1.5)
    env.reset(seed=0)
    pid = env.stats()["workers"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(WorkerLost, match="sent nothing") as raised:
        _step_for(env, 8)  # its runner is none the wiser, and steps until then
    assert time.monotonic() - start < 8
    assert not psutil.pid_exists(pid)
    _remove_logs(raised.value)


def test_hanging_environment_is_a_lost_worker_and_really_gone() -> None:
    env = ClusterEnv([partial(Count, 9), Hangs], TWO, on_worker_loss="raise", step_timeout_s=1.0)
    env.reset(seed=0)
    start = time.monotonic()
    with pytest.raises(WorkerLost, match="step_timeout_s") as raised:
        env.step(ZEROS)
    assert raised.value.reason == "timeout"
    assert time.monotonic() - start < 8
    _remove_logs(raised.value)


def _remove_logs(error: WorkerLost) -> None:
    assert error.log_path is not None
    for file in error.log_path.parent.iterdir():
        file.unlink()
    error.log_path.parent.rmdir()


def test_environment_that_raises_in_step_is_named_and_the_object_stays_usable(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 9), partial(Fails, "step", 2)], launcher) as env:
        env.reset(seed=0)
        env.step(ZEROS)
        with pytest.raises(EnvError, match="environment 1") as raised:
            env.step(ZEROS)
        assert raised.value.env_index == 1
        assert "Traceback" in raised.value.remote_traceback
        env.reset(seed=0)
        assert column(env.step(ZEROS)[0]) == [1, 1]


def test_environment_that_raises_when_built_is_an_error_at_once(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Fails, "init")] * 2, launcher) as env, pytest.raises(EnvError):
        env.launch()


def test_environment_that_raises_on_a_worker_only_names_it() -> None:
    with (
        ClusterEnv([partial(Count, 3), partial(Fails, "init")], TWO) as env,
        pytest.raises(EnvError, match="environment 1"),
    ):
        env.launch()


def test_environments_with_other_spaces_are_refused() -> None:
    with (
        ClusterEnv([partial(Count, 3), RandomObs], TWO) as env,
        pytest.raises(LaunchError, match="equal spaces"),
    ):
        env.launch()


def test_setup_that_hangs_reaches_its_deadline() -> None:
    with (
        ClusterEnv([partial(Hangs, "init")], ONE, setup_timeout_s=1.0) as env,
        pytest.raises(SetupTimeout, match="setup_timeout_s"),
    ):
        env.launch()


@pytest.mark.parametrize(
    "actions",
    [np.zeros(3, np.int64), [0], np.zeros((2, 1), np.int64), np.array([0.5, 0.5]), "left", None],
)
def test_actions_that_do_not_fit_are_refused_before_anything_moves(actions: Any) -> None:
    with ClusterEnv([partial(Count, 9)] * 2, SERIAL) as env:
        env.reset(seed=0)
        with pytest.raises((ActionError, AgentError)):
            env.step(actions)
        assert column(env.step(ZEROS)[0]) == [1, 1]


def test_agent_without_usable_methods_is_refused() -> None:
    with ClusterEnv([partial(Count, 9)] * 2, SERIAL) as env:
        env.reset(seed=0)
        with pytest.raises(AgentError, match="distribution"):
            env.step(object())
        with pytest.raises(AgentError, match="distribution"):
            env.rollout(object(), 3)
        with pytest.raises(AgentError, match="needs an agent"):
            env.rollout(ZEROS, 3)
        assert column(env.step(ZEROS)[0]) == [1, 1]


def test_life_has_one_explicit_launch_and_ends_with_close() -> None:
    env = ClusterEnv(TERM_TRUNC, SERIAL)
    observation_space, action_space = env.launch()
    assert observation_space == Count.observation_space
    assert action_space == Count.action_space
    with pytest.raises(StateError, match="launch was called before"):
        env.launch()
    with pytest.raises(StateError, match="step before reset"):
        env.step(ZEROS)
    env.close()
    env.close()
    for call in (env.launch, env.reset, env.stats, lambda: env.step(ZEROS), lambda: env.rollout(object(), 1)):
        with pytest.raises(UseAfterClose):
            call()


def test_launch_after_an_implied_one_returns_the_spaces() -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL) as env:
        env.reset(seed=0)
        assert env.launch()[0] == Count.observation_space


@pytest.mark.parametrize("num_steps", [0, -1, 1.5, True, "4"])
def test_rollout_refuses_a_bad_number_of_steps(num_steps: Any) -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL) as env, pytest.raises(ConfigError, match="num_steps"):
        env.rollout(MLPAgent(env), num_steps)


def test_port_range_in_use_is_named() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launcher = LocalConfig(nodes=1, port_range=(port, port))
        with ClusterEnv(TERM_TRUNC, launcher) as env, pytest.raises(LaunchError, match=str(port)):
            env.launch()


def test_env_pickles_to_a_closed_stub() -> None:
    with ClusterEnv(TERM_TRUNC, SERIAL) as env:
        stub = pickle.loads(pickle.dumps(env))
        assert stub.num_envs == 2
        assert stub.single_action_space == env.single_action_space
        assert stub.closed
        with pytest.raises(UseAfterClose):
            stub.reset()


@pytest.mark.parametrize("mode", ["same", "different", "given"])
def test_stub_has_the_spaces_of_its_observation_mode(mode: str) -> None:
    single = spaces.Box(-99, 9999, (1,), np.float32)
    given = (batch_space(single, 2), single)
    with ClusterEnv(TERM_TRUNC, SERIAL, observation_mode=given if mode == "given" else mode) as env:
        early = pickle.loads(pickle.dumps(env))
        assert early.single_observation_space == env.single_observation_space
        if mode == "different":  # to find it out every callable would have to be built
            with pytest.raises(UseAfterClose, match="was not known"):
                _ = early.observation_space
        else:
            assert early.observation_space == env.observation_space
        expected = env.observation_space
        assert pickle.loads(pickle.dumps(env)).observation_space == expected


def test_dropped_env_ends_its_workers() -> None:
    env = ClusterEnv(TERM_TRUNC, ONE)
    env.reset(seed=0)
    pid = env.stats()["workers"][0]["pid"]
    del env
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_stats_tell_steps_and_bytes() -> None:
    with ClusterEnv(TERM_TRUNC, TWO) as env:
        env.reset(seed=0)
        for _ in range(4):
            env.step(ZEROS)
        stats = env.stats()
    assert [worker["rank"] for worker in stats["workers"]] == [0, 1]
    assert {worker["state"] for worker in stats["workers"]} == {"ready"}
    assert stats["weight_bytes_sent"] == 0
    assert stats["bytes_received"] > 0


def test_callables_are_dealt_so_that_the_first_workers_have_one_more() -> None:
    with ClusterEnv([partial(Index, i) for i in range(5)], LocalConfig(nodes=3, cpus_per_node=1)) as env:
        obs, _ = env.reset(seed=0)
        assert column(obs) == [0, 1, 2, 3, 4]
        batch = env.rollout(MLPAgent(env), 2)
        assert batch.workers.tolist() == [0, 0, 1, 1, 2]


# --- restart and drop -----------------------------------------------------------------------------------


def _kill(env: ClusterEnv, rank: int) -> None:
    os.kill(env.stats()["workers"][rank]["pid"], signal.SIGKILL)


def test_killed_worker_comes_back_and_the_other_rows_have_no_gap() -> None:
    with ClusterEnv([partial(Count, 10**9) for _ in range(4)], TWO, lease_s=3) as env:
        env.reset(seed=0)
        actions = np.zeros(4, np.int64)
        env.step(actions)
        first_pid = env.stats()["workers"][1]["pid"]
        _kill(env, 1)
        seen, pids = [], set()
        deadline = time.monotonic() + 60
        was_missing = False  # its runner may make some more steps before it is gone too
        while time.monotonic() < deadline and not (was_missing and "valid" not in seen[-1][4]):
            seen.append(env.step(actions))
            was_missing |= "valid" in seen[-1][4]
            stats = env.stats()["workers"][1]
            pids.add((stats["restarts"], stats["pid"]))
        assert [row[0][0, 0] for row in seen] == list(range(2, 2 + len(seen)))
        assert all(row[1][:2].tolist() == [1.0, 1.0] for row in seen)
        missing = [row for row in seen if "valid" in row[4]]
        loss, back, after = missing[0], missing[-1], seen[-1]
        assert loss[4]["worker_lost"].tolist() == [False, False, True, True]
        assert loss[3].tolist() == [False, False, True, True]
        for row in missing:
            assert row[4]["valid"].tolist() == [True, True, False, False]
            assert row[1][2:].tolist() == [0.0, 0.0]
        assert not any(row[3].any() or row[4]["worker_lost"].any() for row in missing[1:])
        assert back[0][2:, 0].tolist() == [0.0, 0.0]
        assert after[0][2:, 0].tolist() == [1.0, 1.0]
        assert stats["restarts"] == 1
        assert "signal 9" in stats["last_error"]
        assert (1, None) in pids  # its next process has been started, and is not there yet
        assert first_pid not in {pid for restarts, pid in pids if restarts}


def test_rollout_marks_the_rows_of_a_lost_worker_and_goes_on_with_its_replacement() -> None:
    with ClusterEnv([partial(Count, 7) for _ in range(4)], TWO, seed=0, lease_s=3, kl_threshold=0.0) as env:
        agent = MLPAgent(env)
        env.rollout(agent, 5)
        _kill(env, 0)
        deadline = time.monotonic() + 60
        lost = 0
        while time.monotonic() < deadline:
            batch = env.rollout(agent, 50)
            assert batch.valid[:, 2:].all()
            if batch.valid.all():
                break
            assert not batch.valid[:, :2].any()
            lost += 1
        assert lost
        assert batch.valid.all()
        assert batch.obs[:7, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert env.stats()["workers"][0]["syncs_by_reason"] == {"first": 1}


def test_dropped_worker_stays_away() -> None:
    with ClusterEnv([partial(Count, 9) for _ in range(4)], TWO, on_worker_loss="drop") as env:
        env.reset(seed=0)
        _kill(env, 1)
        actions = np.zeros(4, np.int64)
        deadline = time.monotonic() + 30
        while "valid" not in env.step(actions)[4] and time.monotonic() < deadline:
            pass
        for _ in range(20):
            assert env.step(actions)[4]["valid"].tolist() == [True, True, False, False]
        assert env.stats()["workers"][1]["state"] == "gone"


def test_worker_told_to_end_says_goodbye_with_the_reason_and_is_replaced() -> None:
    with ClusterEnv([partial(Count, 10**9) for _ in range(2)], TWO) as env:
        env.reset(seed=0)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while not (info := env.step(ZEROS)[4]).get("worker_lost", ZEROS).any():
            assert time.monotonic() < deadline
        assert info["worker_lost"].tolist() == [False, True]
        assert "walltime" in env.stats()["workers"][1]["last_error"]
        while "valid" in env.step(ZEROS)[4]:
            assert time.monotonic() < deadline


def test_environment_that_cannot_be_built_again_ends_the_run_with_the_first_loss() -> None:
    with ClusterEnv([partial(Count, 9), FailsOnSecondBuild()], TWO, max_restarts=2) as env:
        env.reset(seed=0)
        _kill(env, 1)
        with pytest.raises(
            WorkerLost, match=r"max_restarts = 2[\s\S]*The first loss[\s\S]*signal 9"
        ) as raised:
            _step_two_for_ever(env)
        assert "cannot be built twice" in str(raised.value)
    _remove_logs(raised.value)


def _step_two_for_ever(env: ClusterEnv) -> None:
    while True:
        env.step(ZEROS)


class FailsOnSecondBuild:
    """Builds a Count on the head and for the first worker process, then fails."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp()

    def __call__(self) -> gym.Env:
        built = len(list(Path(self.folder).iterdir()))
        if built >= 1:
            raise RuntimeError("cannot be built twice")
        (Path(self.folder) / "built").touch()
        return Count(9)


# --- odd users ----------------------------------------------------------------------------------------------


def test_fork_of_the_head_can_neither_step_nor_close_the_run() -> None:
    with ClusterEnv(TERM_TRUNC, ONE) as env:
        env.reset(seed=0)
        child = os.fork()
        if child == 0:
            try:
                env.step(ZEROS)
            except StateError:
                env.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert column(env.step(ZEROS)[0]) == [1, 1]


class Forks(Count):
    """Forks in its third step, and lets the child go on."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 2:
            os.fork()
        return super().step(action)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_that_an_environment_forks_does_not_answer_too() -> None:
    with ClusterEnv([partial(Forks, 20)], ONE) as env:
        env.reset(seed=0)
        assert [env.step([0])[0][0, 0] for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]


class Panics(Count):
    """Raises what is no Exception, as a panic of an extension in Rust does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise GeneratorExit("panic")


def test_base_exception_of_an_environment_does_not_end_its_runner() -> None:
    with ClusterEnv([Panics], ONE) as env:
        env.reset(seed=0)
        with pytest.raises(ClusterEnvError, match="GeneratorExit"):
            env.step([0])
        env.reset(seed=0)


class Writes:
    """An agent that writes into the observations that it is given."""

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {}

    def act(self, obs: np.ndarray) -> np.ndarray:
        obs += 100.0
        return np.zeros(len(obs), np.int64)


def test_agent_that_writes_into_its_argument_does_not_change_the_rollout() -> None:
    with ClusterEnv([partial(Count, 20)], SERIAL, seed=0) as env:
        assert env.rollout(Writes(), 4).obs[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_observations_without_elements_can_be_collected() -> None:
    fns = [partial(Sampled, spaces.Box(-1, 1, (3, 0), np.float32))] * 2
    with ClusterEnv(fns, SERIAL, seed=0) as env:
        assert env.rollout(Writes(), 4).obs.shape == (4, 2, 3, 0)
