"""The adapter for Tianshou does what Tianshou's own DummyVectorEnv does."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv import LocalConfig
from clusterenv.errors import ConfigError, SpaceError, UseAfterClose
from tests.envs import Nested, Sampled
from tests.integrations.envs import Dial
from tests.spaces import assert_same

pytest.importorskip("tianshou", reason="Tianshou is not installed; .ci/clients runs this")

with warnings.catch_warnings():  # what it warns of while it is imported is its own business
    warnings.simplefilter("ignore")
    from tianshou.env import BaseVectorEnv, DummyVectorEnv

    from clusterenv.integrations.tianshou import ClusterVectorEnv

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SERIAL = LocalConfig(serial=True)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
ONE = LocalConfig(nodes=1, cpus_per_node=1)
NAMED = spaces.Dict({"near": spaces.Box(-1, 1, (2,), np.float32), "far": spaces.Box(0, 9, (3,), np.int64)})
SPACES: dict[str, gym.Space] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "number": spaces.Discrete(7),
    "dict": NAMED,
}
NUM_ENVS = 4


def walk(env: BaseVectorEnv) -> list[Any]:
    """Steps and resets of all environments, of some, and of some in another order."""
    numbers = np.random.default_rng(3)
    seen: list[Any] = [env.seed(5), env.reset(), env.reset(seed=2, options={"level": 1})]
    for _ in range(40):
        ids = numbers.permutation(NUM_ENVS)[: numbers.integers(1, NUM_ENVS + 1)]
        actions = np.array([env.action_space[i].sample() for i in ids])
        step = env.step(actions, ids.tolist())
        seen.append(step)
        ended = ids[step[2] | step[3]]
        if ended.size:
            seen.append(env.reset(ended))
    return [without_order(part) for part in seen]


def without_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_order(value[key]) for key in sorted(value)}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [without_order(part) for part in value]
    return [without_order(part) for part in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_steps_and_infos_are_those_of_dummy_vector_env(space: gym.Space) -> None:
    fns = [partial(Sampled, space)] * NUM_ENVS
    assert_same(walk(ClusterVectorEnv(fns, SERIAL)), walk(DummyVectorEnv(fns)))


@pytest.mark.parametrize("launcher", [ONE, TWO], ids=["one worker", "two workers"])
def test_steps_and_infos_are_the_same_over_workers(launcher: LocalConfig) -> None:
    fns = [partial(Sampled, NAMED)] * NUM_ENVS
    env = ClusterVectorEnv(fns, launcher)
    assert_same(walk(env), walk(DummyVectorEnv(fns)))
    env.close()


def test_attributes_are_read_and_set_in_chosen_environments() -> None:
    env = ClusterVectorEnv([partial(Dial, index) for index in range(3)], SERIAL)
    assert env.get_env_attr("index") == [0, 1, 2]
    env.set_env_attr("setting", 5, id=[0, 2])
    assert env.get_env_attr("setting") == [5, 10, 5]
    assert env.get_env_attr("setting", id=1) == [10]
    assert env.get_env_attr("observation_space") == [Dial.observation_space] * 3
    assert [space.n for space in env.action_space] == [2, 2, 2]
    assert env.metadata[0]["autoreset_mode"] is AutoresetMode.DISABLED
    assert len(env) == 3


def test_render_gives_a_picture_of_each() -> None:
    env = ClusterVectorEnv([partial(Dial, index, "rgb_array") for index in range(2)], SERIAL)
    env.reset()
    assert [picture[0, 0, 0] for picture in env.render()] == [0, 1]


def test_close_ends_it() -> None:
    env = ClusterVectorEnv([partial(Dial, 0)], SERIAL)
    env.reset()
    env.close()
    assert env.env.closed
    with pytest.raises(UseAfterClose):
        env.env.reset()


@pytest.mark.parametrize(
    ("name", "value"), [("autoreset_mode", "SameStep"), ("api", "gym"), ("batch_size", 2)]
)
def test_options_that_collectors_cannot_work_with_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*expected nothing: Tianshou's collectors"):
        ClusterVectorEnv([partial(Dial, 0)] * 2, SERIAL, **{name: value})


def test_tuples_are_refused() -> None:
    pair = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
    with pytest.raises(SpaceError, match="observation space is a Tuple"):
        ClusterVectorEnv([partial(Sampled, pair)], SERIAL)


def test_nested_observations_are_rows_of_dicts() -> None:
    obs, _ = ClusterVectorEnv([Nested] * 2, SERIAL).reset()
    assert obs.dtype == object
    assert obs[0]["vector"].tolist() == [0, 0, 0]
