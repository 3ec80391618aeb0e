"""Where environments come from: ids, specs, wrappers, callables of a script; and the spec of a twin."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit, TransformReward

import clusterenv
from clusterenv import ClusterEnv, LocalConfig, make_vec
from clusterenv.errors import ConfigError
from tests.contract.gadgets import Outer
from tests.contract.vectors import SERIAL, TWO_WORKERS
from tests.contract.walking import Pair, assert_same
from tests.envs import Count, RandomObs

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[SERIAL, TWO_WORKERS], ids=["serial", "two workers"])
def launcher(request: pytest.FixtureRequest) -> LocalConfig:
    launcher: LocalConfig = request.param
    return launcher


def assert_walk_alike(ours: ClusterEnv, theirs: Any, steps: int = 20) -> None:
    """Every number of both is the same; gravity and the like are in them."""
    pair = Pair(ours, theirs)
    pair._compare_obs = lambda obs, expected: assert_same(obs, expected, "obs")  # type: ignore[method-assign]
    theirs.action_space.seed(0)
    pair.reset(3)
    for _ in range(steps):
        pair.step(theirs.action_space.sample())


def test_make_vec_makes_what_gymnasium_makes(launcher: LocalConfig) -> None:
    arguments: dict[str, Any] = {
        "wrappers": [partial(TransformReward, func=lambda reward: 3 * reward), Outer],
        "g": 5.0,
        "max_episode_steps": 7,
    }
    theirs = gym.make_vec("Pendulum-v1", 3, "sync", **arguments)
    with make_vec("Pendulum-v1", np.int64(3), launcher, **arguments) as env:  # type: ignore[arg-type]
        assert env.num_envs == theirs.num_envs == 3
        assert env.get_attr("note") == ("outer",) * 3
        assert_walk_alike(env, theirs)


def test_spec_makes_a_twin_in_this_process(launcher: LocalConfig) -> None:
    options = {"autoreset_mode": AutoresetMode.SAME_STEP}
    wrappers = [partial(TimeLimit, max_episode_steps=4)]
    with make_vec("Pendulum-v1", 4, launcher, wrappers=wrappers, vector_kwargs=options, g=2.0) as env:
        assert env.spec is not None
        assert env.spec.id == "Pendulum-v1"
        twin = gym.make_vec(env.spec)
        assert twin.num_envs == 4
        assert twin.metadata == env.metadata
        assert_walk_alike(env, twin)
        with make_vec(env.spec) as again:
            assert again.num_envs == 4
            assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
            again.launch()
        with make_vec(env.spec, 2) as fewer:
            assert fewer.num_envs == 2


def test_spec_of_the_older_api_and_of_options_is_that_of_the_vector() -> None:
    config = {"env_name": "CartPole-v1", "env_kwargs": {"max_episode_steps": 9}, "envs_per_node": 3}
    with ClusterEnv(config, SERIAL, api="gym") as env:
        assert env.spec is not None
        twin = gym.make_vec(env.spec)
        assert twin.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert twin.num_envs == 3
        assert twin.envs[0].spec.max_episode_steps == 9


def test_spec_of_a_registered_environment_makes_a_twin_too() -> None:
    clusterenv.register("ContractCount", Count)
    config = {"type": "ContractCount", "env_kwargs": {"n": 3}, "envs_per_node": 2}
    with ClusterEnv(config, SERIAL) as env:
        assert env.spec is not None
        assert env.spec.id == "ContractCount"
        assert_walk_alike(env, gym.make_vec(env.spec))


def test_spec_of_callables_is_that_of_their_environment_or_none() -> None:
    with ClusterEnv([partial(gym.make, "CartPole-v1")] * 2, SERIAL) as env:
        assert env.spec is not None
        assert gym.make_vec(env.spec).num_envs == 2
    with ClusterEnv([Count], SERIAL) as env:
        assert env.spec is None


def test_vector_wrappers_pass_the_spec_on() -> None:
    with make_vec("CartPole-v1", 2, SERIAL) as env:
        wrapped = gym.wrappers.vector.RecordEpisodeStatistics(env)
        assert wrapped.unwrapped.spec == env.spec
        assert wrapped.unwrapped.get_attr("length") == (0.5, 0.5)


SCRIPT = """
import sys

import gymnasium as gym
import numpy as np

import clusterenv
from clusterenv import ClusterEnv, LocalConfig

SCALE = 3.0


class Scaled(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.full(1, SCALE * action, np.float32), float(action), False, False, {}


class Negated(gym.ObservationWrapper):
    def observation(self, observation):
        return -observation


gym.register("Scaled-v0", Scaled)
launcher = LocalConfig(nodes=2, cpus_per_node=1)
for env in (
    ClusterEnv([Scaled, lambda: Negated(Scaled())], launcher),
    ClusterEnv({"env_name": "Scaled-v0", "envs_per_node": 1, "wrappers": [Negated]}, launcher),
    clusterenv.make_vec("Scaled-v0", 2, launcher, wrappers=[Negated]),
):
    with env:
        env.reset(seed=0)
        print(env.step(np.array([1, 1]))[0].ravel().tolist())
"""


def test_classes_functions_and_wrappers_of_a_script_run_on_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'registry'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[3.0,", "-3.0]", "[-3.0,", "-3.0]", "[-3.0,", "-3.0]"]


class Locked:
    """A callable with a lock somewhere inside."""

    def __init__(self) -> None:
        self.deep = {"lock": threading.Lock()}

    def __call__(self) -> gym.Env:
        return Count()


def closure() -> Any:
    lock = threading.Lock()
    return lambda: lock and Count()


@pytest.mark.parametrize(
    ("env_fn", "path"),
    [
        (Locked(), r"callable 1\.deep\['lock'\]"),
        (closure(), r"callable 1 \(variable lock\)"),
        (partial(Count, threading.Lock()), r"callable 1\.args\[0\]"),
        (partial(Count, n=threading.Lock()), r"callable 1\.keywords\['n'\]"),
    ],
    ids=["attribute", "closure", "argument", "keyword"],
)
def test_callable_that_cannot_be_pickled_is_named_by_the_path_of_what_is_to_blame(
    env_fn: Any, path: str
) -> None:
    with (
        ClusterEnv([Count, env_fn], TWO_WORKERS) as env,
        pytest.raises(ConfigError, match=f"{path} is .*lock"),
    ):
        env.launch()


def test_wrapper_and_argument_that_cannot_be_pickled_are_named() -> None:
    lock = threading.Lock()
    with (
        make_vec("CartPole-v1", 2, TWO_WORKERS, wrappers=[lambda env: lock and env]) as env,
        pytest.raises(ConfigError, match=r"callable 0\.wrappers\[0\] \(variable lock\)"),
    ):
        env.launch()
    with (
        make_vec("CartPole-v1", 2, TWO_WORKERS, strange=lock) as env,
        pytest.raises(ConfigError, match=r"callable 0\.env_kwargs\['strange'\]"),
    ):
        env.launch()


def test_each_environment_draws_its_own_numbers_without_a_seed(launcher: LocalConfig) -> None:
    with ClusterEnv([RandomObs] * 4, launcher) as env:
        assert len(np.unique(env.reset()[0])) == 16
