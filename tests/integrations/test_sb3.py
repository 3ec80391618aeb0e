"""The adapter for Stable-Baselines3 does what SB3's own DummyVecEnv does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv import ClusterEnv, EnvConfig, LocalConfig
from clusterenv.errors import ConfigError
from tests.envs import Count, Nested, Sampled
from tests.integrations.envs import Dial, Loud, Louder
from tests.spaces import assert_same

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed; .ci/clients runs this")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from clusterenv.integrations.sb3 import ClusterVecEnv

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SERIAL = LocalConfig(serial=True)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
NAMED = spaces.Dict({"near": spaces.Box(-1, 1, (2,), np.float32), "far": spaces.Box(0, 9, (3,), np.int64)})
SPACES: dict[str, gym.Space] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "picture": spaces.Box(0, 255, (4, 4, 1), np.uint8),
    "number": spaces.Discrete(7),
    "dict": NAMED,
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float64))),
}
DIALS: list[Callable[[], gym.Env]] = [partial(Dial, 0), lambda: Loud(Dial(1)), lambda: Louder(Dial(2))]


def walk(env: VecEnv, num_steps: int = 30) -> list[Any]:
    env.action_space.seed(2)
    env.seed(7)
    seen: list[Any] = [env.reset(), list(env.reset_infos)]
    for _ in range(num_steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        seen += [env.step(actions), list(env.reset_infos)]
    return seen


def in_order(value: Any) -> Any:
    """The value with dicts in one order and no wall-clock times."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value) if key != "t" or "r" not in value}
    return type(value)(map(in_order, value)) if isinstance(value, tuple | list) else value


@pytest.fixture(params=[SERIAL, TWO], ids=["serial", "two workers"])
def dials(request: pytest.FixtureRequest) -> Iterator[ClusterVecEnv]:
    env = ClusterVecEnv(DIALS, request.param)
    yield env
    env.close()


def assert_same_walks(env: VecEnv, twin: VecEnv) -> None:
    seen, expected = walk(env), walk(twin)
    assert_same(in_order(seen), in_order(expected))
    assert any(step[2].any() for step in expected[2::2])


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_steps_and_infos_are_those_of_dummy_vec_env(space: gym.Space) -> None:
    fns = [partial(Sampled, space)] * 3
    assert_same_walks(ClusterVecEnv(fns, SERIAL), DummyVecEnv(fns))


def test_steps_and_infos_are_the_same_over_workers() -> None:
    fns = [partial(Sampled, NAMED)] * 3
    env = ClusterVecEnv(fns, TWO)
    assert_same_walks(env, DummyVecEnv(fns))
    env.close()
    env.close()


def test_make_vec_env_makes_it_of_what_it_makes_others_of() -> None:
    def made(**how: Any) -> VecEnv:
        kwargs = {"max_episode_steps": 9}
        return make_vec_env("CartPole-v1", n_envs=3, seed=5, env_kwargs=kwargs, wrapper_class=Loud, **how)

    env = made(vec_env_cls=ClusterVecEnv, vec_env_kwargs={"launcher": SERIAL})
    assert_same_walks(env, made())
    assert env.env_is_wrapped(Monitor) == [True, True, True]


@pytest.mark.parametrize(("kind", "truncated"), [("term", False), ("trunc", True)])
def test_time_limits_and_last_observations_are_told(kind: str, truncated: bool) -> None:
    env = ClusterVecEnv([partial(Count, 2, kind), partial(Count, 9, kind)], SERIAL)
    env.reset()
    zeros = np.zeros(2, np.int64)
    _, _, dones, infos = env.step(zeros)
    assert not dones.any()
    assert infos == [{"k": "step", "TimeLimit.truncated": False}] * 2
    obs, rewards, dones, infos = env.step(zeros)
    assert obs[:, 0].tolist() == [0, 2]
    assert dones.tolist() == [True, False]
    assert rewards.dtype == np.float32
    assert infos[0].pop("terminal_observation").tolist() == [2]
    assert infos[0] == {"k": "step", "TimeLimit.truncated": truncated}
    assert env.reset_infos[0] == {"k": "reset"}


def test_seed_and_options_are_used_once() -> None:
    env = ClusterVecEnv([partial(Sampled, NAMED)] * 2, SERIAL)
    assert env.seed(3) == [3, 4]
    env.set_options({"level": 1})
    first = env.reset()
    assert [info["options"] for info in env.reset_infos] == [{"level": 1}] * 2
    second = env.reset()
    assert [info["options"] for info in env.reset_infos] == [{}, {}]
    env.seed(3)
    third = env.reset()
    assert_same(third, first)
    assert not np.array_equal(second["near"], first["near"])


def test_options_may_differ_between_environments() -> None:
    fns = [partial(Sampled, NAMED)] * 4
    env, twin = ClusterVecEnv(fns, SERIAL), DummyVecEnv(fns)
    options = [{"level": 1}, {}, {"level": 3}, {}]
    for each in (env, twin):
        each.seed(3)
        each.set_options(options)
    assert_same(env.reset(), twin.reset())
    assert_same(env.reset_infos, twin.reset_infos)
    assert_same(env.reset(), twin.reset())


def test_consecutive_seeds_seed_the_policys_noise_too() -> None:
    env = ClusterVecEnv([Count] * 2, SERIAL)
    asked: list[Any] = []
    reset = env.env.reset
    env.env.reset = lambda **how: asked.append(how["seed"]) or reset(**how)  # type: ignore[method-assign]
    env.seed(8)
    env.reset()
    env.reset()
    assert asked == [8, [None, None]]


def test_a_reset_gives_up_a_step_under_way() -> None:
    env = ClusterVecEnv([Count] * 2, SERIAL)
    env.reset()
    env.step_async(np.zeros(2, np.int64))
    assert env.reset().tolist() == [[0], [0]]
    assert env.step(np.zeros(2, np.int64))[0].tolist() == [[1], [1]]


def test_attributes_are_read_of_chosen_environments(dials: ClusterVecEnv) -> None:
    assert dials.get_attr("index") == [0, 1, 2]
    assert dials.get_attr("setting", indices=[2, 0]) == [20, 0]
    assert dials.get_attr("setting", indices=1) == [10]
    assert dials.has_attr("setting")
    assert dials.has_attr("turn")
    assert not dials.has_attr("missing")
    with pytest.raises(AttributeError, match="missing"):
        dials.get_attr("missing")


def test_attributes_are_set_in_chosen_environments(dials: ClusterVecEnv) -> None:
    dials.set_attr("setting", 5, indices=[1])
    assert dials.get_attr("setting") == [0, 5, 20]
    dials.set_attr("setting", [1, 2, 3])  # one value, which is a list
    assert dials.get_attr("setting") == [[1, 2, 3]] * 3


def test_methods_are_called_in_chosen_environments(dials: ClusterVecEnv) -> None:
    assert dials.env_method("turn", 1) == [1, 11, 21]
    assert dials.env_method("turn", 1, indices=[2, 1], twice=True) == [23, 13]
    assert dials.get_attr("setting") == [1, 13, 23]


def test_wrappers_are_found_in_chosen_environments(dials: ClusterVecEnv) -> None:
    assert dials.env_is_wrapped(Loud) == [False, True, True]
    assert dials.env_is_wrapped(Louder, indices=[2]) == [True]
    assert dials.env_is_wrapped(Monitor, indices=1) == [False]


def test_images_are_tiled() -> None:
    fns = [partial(Dial, index, "rgb_array") for index in range(4)]
    env, twin = ClusterVecEnv(fns, SERIAL), DummyVecEnv(fns)
    assert env.render_mode == "rgb_array"
    for each in (env, twin):
        each.reset()
    assert_same(env.render(), twin.render())


def test_no_images_without_a_render_mode() -> None:
    env = ClusterVecEnv([Count] * 2, SERIAL)
    with pytest.warns(UserWarning, match="The render mode is None"):
        assert env.get_images() == [None, None]


def test_cluster_env_is_taken_as_it_is() -> None:
    inner = ClusterEnv([Count] * 2, SERIAL, autoreset_mode="SameStep")
    env = VecMonitor(ClusterVecEnv(inner))
    assert env.unwrapped.env is inner
    env.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("made_of", "launcher", "options", "message"),
    [
        (ClusterEnv([Count], SERIAL), None, {}, 'autoreset_mode is .*NEXT_STEP.* expected "SameStep"'),
        ([Count], SERIAL, {"autoreset_mode": AutoresetMode.DISABLED}, "autoreset_mode is .*DISABLED"),
        ([Count], SERIAL, {"api": "gym"}, "api is 'gym'; expected \"gymnasium\""),
        (ClusterEnv([Count], SERIAL), SERIAL, {}, "when a launcher or options are given"),
    ],
)
def test_what_cannot_work_is_refused(made_of: Any, launcher: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClusterVecEnv(made_of, launcher, **options)


def test_nested_spaces_are_refused_as_by_stable_baselines3() -> None:
    with pytest.raises(NotImplementedError, match="Nested observation spaces"):
        ClusterVecEnv([Nested], SERIAL)


def test_options_may_come_as_a_config() -> None:
    config = EnvConfig(env_name="CartPole-v1", envs_per_node=2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ClusterVecEnv(config, SERIAL).reset().shape == (2, 4)


def test_rows_of_a_lost_worker_end_with_their_last_observation() -> None:
    env = ClusterVecEnv([partial(Count, 50)] * 2, TWO, on_worker_loss="drop")
    env.reset()
    obs, *_ = env.step(np.zeros(2, np.int64))
    psutil.Process(env.env.stats()["workers"][1]["pid"]).kill()
    deadline = time.monotonic() + 30
    dones = np.zeros(2, np.bool_)
    while not dones.any() and time.monotonic() < deadline:
        last = obs
        obs, _, dones, infos = env.step(np.zeros(2, np.int64))
    assert dones.tolist() == [False, True]
    assert infos[1]["worker_lost"] is True
    assert infos[1]["TimeLimit.truncated"] is True
    assert infos[1]["terminal_observation"].tolist() == last[1].tolist()
    env.close()
