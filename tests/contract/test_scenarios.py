"""What walks cannot show: where we differ from Gymnasium on purpose, and what is asked for beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ConfigError, StateError
from tests.contract.vectors import RUNNERS, SERIAL, TWO_WORKERS, WORKERS_WITH_RUNNERS
from tests.contract.walking import assert_same
from tests.envs import Count, Echo, Index, RandomObs, ReusingCount, SharingCount, Tells

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

ZEROS = np.zeros(2, np.int64)


class Doubles(Echo):
    """Doubles each action in place and shows it; info holds the first that it was given."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 2
        if self.t == 0:
            self.first = action
        return *super().step(action)[:4], {"first": self.first}


class Chooses:
    """Acts as it is told."""

    def __init__(self, actions: np.ndarray) -> None:
        self.actions = actions

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"actions": self.actions}

    def set_parameters(self, parameters: dict[str, np.ndarray]) -> None:
        self.actions = parameters["actions"]

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.actions[: len(obs)].copy()


@pytest.fixture(params=[SERIAL, TWO_WORKERS, RUNNERS], ids=["serial", "two workers", "runners"])
def launcher(request: pytest.FixtureRequest) -> LocalConfig:
    launcher: LocalConfig = request.param
    return launcher


def test_disabled_refuses_to_step_an_ended_environment_before_any_moves(launcher: LocalConfig) -> None:
    env_fns: list[Callable[[], gym.Env]] = [partial(Count, 2, "term"), partial(Count, 3, "trunc")]
    with ClusterEnv(env_fns, launcher, autoreset_mode="Disabled") as env:
        env.reset(seed=0)
        env.step(ZEROS)
        env.step(ZEROS)
        for step in (env.step, env.step_async):
            with pytest.raises(StateError, match=r"environments \[0\] have ended and autoreset is disabled"):
                step(ZEROS)
        assert env.get_attr("t") == (2, 2)
        assert env.reset(options={"reset_mask": np.array([True, False])})[0][:, 0].tolist() == [0, 2]
        assert env.step(ZEROS)[3].tolist() == [False, True]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masked_reset_keeps_the_other_episodes_in_the_statistics(
    launcher: LocalConfig, mode: AutoresetMode
) -> None:
    with ClusterEnv([partial(Count, 5)] * 2, launcher, autoreset_mode=mode) as env:
        recorder = RecordEpisodeStatistics(env)
        recorder.reset(seed=0)
        recorder.step(ZEROS)
        recorder.step(ZEROS)
        obs, _ = recorder.reset(options={"reset_mask": np.array([True, False])})
        assert obs[:, 0].tolist() == [0, 2]
        assert recorder.episode_lengths.tolist() == [0, 2]


def test_environment_that_uses_its_buffers_again_shows_what_was_in_them(launcher: LocalConfig) -> None:
    """Gymnasium's own class gives [0.] and "reset" here."""
    env_fns = [partial(ReusingCount, 2, "term"), partial(ReusingCount, 3, "trunc")]
    with ClusterEnv(env_fns, launcher, autoreset_mode="SameStep") as env:
        first, _ = env.reset(seed=0)
        env.step(ZEROS)
        info = env.step(ZEROS)[4]
        assert info["final_obs"][0].tolist() == [2.0]
        assert info["final_info"]["k"].tolist() == ["step", None]
        assert info["k"].tolist() == ["reset", "step"]
        assert first[:, 0].tolist() == [0, 0]


def test_environments_that_share_one_info_show_what_was_in_it(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(SharingCount, 4), partial(SharingCount, 9)], launcher) as env:
        assert env.reset(seed=0)[1]["left"].tolist() == [4, 9]
        assert env.step(ZEROS)[4]["left"].tolist() == [3, 8]


@pytest.mark.parametrize("by_agent", [False, True])
def test_environment_may_write_into_its_actions_and_keep_them(launcher: LocalConfig, by_agent: bool) -> None:
    with ClusterEnv([partial(Doubles, spaces.MultiDiscrete([5, 5]))] * 2, launcher) as env:
        env.reset(seed=0)
        chosen = []
        for t in range(3):
            actions = np.full((2, 2), t + 1)
            obs, *_, info = env.step(Chooses(actions) if by_agent else actions)
            chosen.append((info["action"] if by_agent else actions).tolist())
            assert obs.tolist() == [[2 * t + 2] * 2] * 2
            assert info["first"].tolist() == [[2, 2]] * 2
        assert chosen == [[[t, t]] * 2 for t in (1, 2, 3)]


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_trajectories_do_not_depend_on_the_number_of_workers(nodes: int) -> None:
    def trajectory(launcher: LocalConfig, seed: Any) -> list[Any]:
        with ClusterEnv([RandomObs] * 8, launcher) as env:
            return [env.reset(seed=seed)[0], *(env.step(np.zeros(8, np.int64))[:4] for _ in range(50))]

    alone = trajectory(SERIAL, np.int64(7))
    assert_same(trajectory(LocalConfig(nodes=nodes, cpus_per_node=1), 7), alone, "trajectory")


@pytest.mark.parametrize(
    "seed", [[1, 2, 3], (1,), np.arange(3), "12", 1.5, -1, [1, -2], [1, 2.5], 1 << 63, True], ids=str
)
def test_seed_that_does_not_fit_is_a_value_error_before_anything_moves(seed: Any) -> None:
    with ClusterEnv([partial(Count, 9)] * 2, SERIAL) as env:
        env.reset(seed=[4, None])
        env.step(ZEROS)
        for reset in (env.reset, env.reset_async, env.async_reset):
            with pytest.raises(ValueError, match="seed is"):
                reset(seed=seed)
        assert env.get_attr("t") == (1, 1)


def test_slow_worker_keeps_its_rows() -> None:
    env_fns = [partial(Index, 0, 0.05, 0.05), *(partial(Index, i, 0.005) for i in range(1, 4))]
    with ClusterEnv(env_fns, WORKERS_WITH_RUNNERS) as env:
        env.reset(seed=0)
        for _ in range(20):
            assert env.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [0, 1, 2, 3]


def test_actions_of_a_discrete_space_with_a_start_arrive_as_numpy_scalars(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Echo, spaces.Discrete(3, start=2))] * 2, launcher) as env:
        env.reset(seed=0)
        for actions in (np.array([2, 4]), [2, 4], np.array([2, 4], np.int32)):
            obs, *_, info = env.step(actions)
            assert_same(obs, np.array([2, 4]), "obs")
            assert info["type"].tolist() == ["int64", "int64"]


INFOS = [
    ({"x": 1}, {"x": 2.7}, [1.0, 2.7]),
    ({"x": None}, {"x": 3}, [None, 3]),
    ({"x": True}, {"x": [1, 2]}, [True, [1, 2]]),
    ({}, {"x": 5}, [0, 5]),
]


@pytest.mark.parametrize(("one", "other", "expected"), INFOS, ids=str)
def test_infos_of_several_types_lose_nothing(
    launcher: LocalConfig, one: dict[str, Any], other: dict[str, Any], expected: list[Any]
) -> None:
    if launcher is RUNNERS and one:
        return  # one launch is enough to show that runners do not differ
    with ClusterEnv([partial(Tells, [one]), partial(Tells, [other])], launcher) as env:
        info = env.reset(seed=0)[1]
        assert info["x"].tolist() == expected
        assert info["_x"].tolist() == ["x" in one, "x" in other]


def test_arrays_of_several_shapes_and_nested_infos_keep_theirs() -> None:
    infos: list[dict[str, Any]] = [
        {"a": np.zeros(2), "n": {"deep": 1}},
        {"a": np.ones(3), "n": {"flat": 2.0}},
    ]
    with ClusterEnv([partial(Tells, [info]) for info in infos], TWO_WORKERS) as env:
        info = env.reset(seed=0)[1]
        assert [array.tolist() for array in info["a"]] == [[0, 0], [1, 1, 1]]
        assert info["n"]["deep"].tolist() == [1, 0]
        assert info["n"]["_deep"].tolist() == [True, False]
        assert info["n"]["_flat"].tolist() == [False, True]


# --- observation_mode -----------------------------------------------------------------------------------


class Bounded(Count):
    """Count whose observation is below its own bound."""

    def __init__(self, high: float, shape: tuple[int, ...] = (1,)) -> None:
        super().__init__(9)
        self.observation_space = spaces.Dict(
            x=spaces.Box(0, high, shape, np.float32), d=spaces.Discrete(int(high))
        )

    def _obs(self) -> Any:
        return {"x": np.zeros(self.observation_space["x"].shape, np.float32), "d": np.int64(self.t)}


def test_observation_spaces_may_differ_in_bounds_if_asked(launcher: LocalConfig) -> None:
    env_fns = [partial(Bounded, 10 + i) for i in range(3)]
    theirs = gym.vector.SyncVectorEnv(env_fns, observation_mode="different")
    with ClusterEnv(env_fns, launcher, observation_mode="different") as env:
        assert env.single_observation_space == theirs.single_observation_space
        assert env.observation_space == theirs.observation_space
        assert_same(env.reset(seed=0)[0], theirs.reset(seed=0)[0], "obs")
        assert env.observation_space.contains(env.step(np.zeros(3, np.int64))[0])


def test_observation_spaces_can_be_given(launcher: LocalConfig) -> None:
    env_fns = [partial(Bounded, 10 + i) for i in range(3)]
    single = spaces.Dict(x=spaces.Box(0, 99, (1,), np.float32), d=spaces.Discrete(99))
    batched = gym.vector.utils.batch_space(single, 3)
    with ClusterEnv(env_fns, launcher, observation_mode=(batched, single)) as env:
        assert env.observation_space is batched
        assert env.single_observation_space is single
        assert batched.contains(env.reset(seed=0)[0])


def test_observation_spaces_that_differ_are_refused_by_default_and_in_shape_always(
    launcher: LocalConfig,
) -> None:
    with (
        ClusterEnv([partial(Bounded, 10), partial(Bounded, 11)], launcher) as env,
        pytest.raises(Exception, match="space") as raised,
    ):
        env.launch()
    assert type(raised.value).__name__ in ("SpaceError", "LaunchError")
    other_shape = [partial(Bounded, 10), partial(Bounded, 10, (2,))]
    with (
        ClusterEnv(other_shape, launcher, observation_mode="different") as env,
        pytest.raises(Exception, match="space") as raised,
    ):
        env.launch()
    assert type(raised.value).__name__ in ("SpaceError", "LaunchError")


@pytest.mark.parametrize("mode", ["other", None, (1, 2), (spaces.Discrete(2),)], ids=str)
def test_observation_mode_that_is_none_is_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match="observation_mode"):
        ClusterEnv([Count], SERIAL, observation_mode=mode)
