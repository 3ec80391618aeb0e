"""Bad input of every public call is a typed error before any environment has moved."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from clusterenv import ClusterEnv, LocalConfig, make_vec
from clusterenv.errors import ClusterEnvError, ConfigError, EnvError
from clusterenv_registry import RegistryError
from tests.agents import MLPAgent
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS, SERIAL, TWO_WORKERS
from tests.envs import Echo

pytestmark = pytest.mark.process

MASK = np.array([True, False, True, False, True])
BAD: list[tuple[str, Callable[[ClusterEnv], Any]]] = [
    ("seed", lambda env: env.reset(seed="seven")),
    ("seed", lambda env: env.reset(seed=np.array(5))),
    ("seed", lambda env: env.reset_async(seed=[1, 2])),
    ("seed", lambda env: env.async_reset(seed=2.5)),
    ("seed", lambda env: env.reset(seed=np.array(3))),
    ("options", lambda env: env.reset(options=[1])),
    ("options", lambda env: env.reset_async(options="reset_mask")),
    (r"options\['lock'\]", lambda env: env.reset(options={"lock": threading.Lock()})),
    ("reset_mask", lambda env: env.reset(options={"reset_mask": MASK.tolist()})),
    ("reset_mask", lambda env: env.reset(options={"reset_mask": MASK[:2]})),
    ("reset_mask", lambda env: env.reset_async(options={"reset_mask": MASK.astype(int)})),
    ("reset_mask", lambda env: env.reset(options={"reset_mask": ~MASK & MASK})),
    ("reset_mask", lambda env: env.async_reset(options={"reset_mask": MASK})),
    ("actions", lambda env: env.step(np.zeros(4, np.int64))),
    ("actions", lambda env: env.step(np.zeros((5, 1), np.int64))),
    ("actions", lambda env: env.step(np.zeros(5))),
    ("actions", lambda env: env.step([0, 1, "left", 0, 0])),
    ("actions", lambda env: env.step({"a": 1})),
    ("actions", lambda env: env.step(None)),
    ("actions", lambda env: env.step(torch.zeros(5, dtype=torch.int64, device="meta"))),
    ("actions", lambda env: env.step_async(3)),
    ("actions", lambda env: env.step_async(torch.zeros(5))),
    ("methods", lambda env: env.step(object())),
    ("batch of actions", lambda env: env.step_async(object())),
    ("env_id", lambda env: env.send(np.zeros(1, np.int64), [5])),
    ("env_id", lambda env: env.send(np.zeros(2, np.int64), [1, 1])),
    ("env_id", lambda env: env.send(np.zeros(1, np.int64), np.array(0))),
    ("env_id", lambda env: env.send(np.zeros(1, np.int64), [2**70])),
    ("actions", lambda env: env.send(np.zeros(2, np.int64), [1])),
    ("batch_size", lambda env: env.recv()),
    ("num_steps", lambda env: env.rollout(MLPAgent(env), 0)),
    ("num_steps", lambda env: env.rollout(MLPAgent(env), "many")),
    ("needs an agent", lambda env: env.rollout(np.zeros(5), 2)),
    ("methods", lambda env: env.rollout(object(), 2)),
    ("num_steps", lambda env: env.stream(MLPAgent(env), 0)),
    ("fragments", lambda env: env.stream(MLPAgent(env), fragments=True)),
    ("queue", lambda env: env.stream(MLPAgent(env), queue=0)),
    ("sync_at", lambda env: env.stream(MLPAgent(env), sync_at="never")),
    ("needs an agent", lambda env: env.stream(np.zeros(5), 2)),
    ("methods", lambda env: env.stream(object(), 2)),
    ("methods", lambda env: env.publish(object())),
    ("name", lambda env: env.call("step", np.zeros(5))),
    ("name", lambda env: env.call(7)),
    ("name", lambda env: env.call_async("close")),
    ("arguments of add", lambda env: env.call("add", threading.Lock())),
    ("indices", lambda env: env.call_on([0, 0], "add", 1)),
    ("indices", lambda env: env.call_on([9], "add", 1)),
    ("indices", lambda env: env.call_on([1 << 70], "add", 1)),
    ("indices", lambda env: env.call_on(np.zeros((1, 1), int), "add", 1)),
    ("indices", lambda env: env.call_on("0", "add", 1)),
    ("indices", lambda env: env.call_on([0, [1]], "add", 1)),
    ("indices", lambda env: env.render([-1])),
    ("indices", lambda env: env.render(MASK)),
    ("name", lambda env: env.get_attr("")),
    ("nothing", lambda env: env.get_attr("nothing")),
    ("name", lambda env: env.set_attr(None, 1)),
    ("5 values", lambda env: env.set_attr("gravity", [1])),
    ("2 values", lambda env: env.set_attr("gravity", [1], indices=[0, 1])),
    ("indices", lambda env: env.set_attr("gravity", 1, indices=[0.5])),
    ("value of gravity", lambda env: env.set_attr("gravity", threading.Lock())),
    ("reset_wait", lambda env: env.reset_wait()),
    ("step_wait", lambda env: env.step_wait(timeout=1)),
    ("call_wait", lambda env: env.call_wait(timeout="soon")),
    ("launch was called", lambda env: env.launch()),
]


def without_addresses(value: object) -> str:
    """A name for a case that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.fixture(scope="module", params=[SERIAL, TWO_WORKERS], ids=["serial", "two workers"])
def env(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    with ClusterEnv([partial(wrapped, i) for i in range(NUM_ENVS)], request.param) as env:
        env.launch()
        env.reset(seed=0)
        yield env


@pytest.mark.parametrize(("words", "call"), BAD, ids=[f"{i}-{words}" for i, (words, _) in enumerate(BAD)])
def test_bad_input_is_refused_before_anything_moves(
    env: ClusterEnv, words: str, call: Callable[[ClusterEnv], Any]
) -> None:
    before = env.get_attr("moved"), env.get_attr("called"), env.get_attr("gravity")
    with pytest.raises((ClusterEnvError, TypeError, ValueError), match=words):
        call(env)
    assert (env.get_attr("moved"), env.get_attr("called"), env.get_attr("gravity")) == before


def test_rollout_with_what_is_no_agent_does_not_even_reset() -> None:
    with ClusterEnv([partial(wrapped, i) for i in range(2)], SERIAL) as env:
        with pytest.raises(ClusterEnvError, match="methods"):
            env.rollout(object(), 2)
        assert env.get_attr("moved") == (0, 0)


def test_every_public_call_has_bad_input_here_or_takes_none() -> None:
    tried = {name for _, call in BAD for name in call.__code__.co_names}
    without_input = {"close", "script", "stats"}
    public = {
        name
        for name, _ in inspect.getmembers(ClusterEnv, inspect.isfunction)
        if not name.startswith("_") and (not hasattr(VectorEnv, name) or name in vars(ClusterEnv))
    }
    assert public - tried - without_input == set()


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(2)), {"a": [0, 1]}),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(2)), {"a": [0, 1], "b": "xy"}),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(2)), {"a": [0, 1], "b": ["x"]}),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(2)), {"a": [0, 1], "b": ["x", {1}]}),
        (spaces.Text(2), "xy"),
        (spaces.Text(2), ["x", object()]),
        (spaces.Sequence(spaces.Discrete(2)), [(0,), (1,), (0,)]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Graph(spaces.Discrete(2), None)]), ([0, 1],)),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3))),
        (spaces.Box(0, 255, (1,), np.uint8), np.full((2, 1), 300)),
        (spaces.Box(-1, 1, (1,)), np.full((2, 1), 1e300)),
        (spaces.MultiDiscrete([2, 3]), [[0, 1], [0]]),
    ],
    ids=without_addresses,
)
def test_actions_that_do_not_fit_a_space_are_refused(space: gym.Space, actions: Any) -> None:
    with ClusterEnv([partial(Echo, space)] * 2, SERIAL) as env:
        env.reset(seed=0)
        with pytest.raises(ClusterEnvError, match="actions"):
            env.step(actions)
        assert env.get_attr("t") == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "env_config"),
        (([1, 2],), "env_config"),
        ((object(),), "env_config"),
        (("CartPole-v1", "slurm"), "launcher"),
        (({"env_nam": "CartPole-v1"},), "env_nam"),
        (([lambda: None], LocalConfig(nodes=2)), "callables"),
    ],
    ids=without_addresses,
)
def test_constructor_refuses_what_makes_no_environments(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClusterEnv(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("NoSuchEnv-v9",), {}, "NoSuchEnv"),
        ((5,), {}, "id is 5"),
        (("CartPole-v1", 0), {}, "num_envs"),
        (("CartPole-v1", True), {}, "num_envs"),
        (("CartPole-v1", 2), {"wrappers": 3}, "wrappers"),
        (("CartPole-v1", 2), {"vectorization_mode": "async"}, "vectorization_mode .* run on workers"),
        (("CartPole-v1", 2), {"vector_kwargs": {"nope": 1}}, "nope"),
        (("CartPole-v1", 1, TWO_WORKERS), {}, "callables"),
    ],
    ids=without_addresses,
)
def test_make_vec_refuses_what_cannot_work(arguments: tuple[Any, ...], options: Any, words: str) -> None:
    with pytest.raises((ConfigError, RegistryError), match=words):
        make_vec(*arguments, **options)


class ParallelEnv:
    """What PettingZoo's parallel environments look like."""

    possible_agents: tuple[str, ...] = ("one", "two")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    action_space = observation_space


@pytest.mark.parametrize("launcher", [SERIAL, TWO_WORKERS], ids=["serial", "two workers"])
def test_environment_of_several_agents_is_refused_with_one_sentence(launcher: LocalConfig) -> None:
    env = ClusterEnv([ParallelEnv] * 2, launcher)  # type: ignore[list-item]
    with (
        env,
        pytest.raises(
            EnvError, match="ParallelEnv, an environment of several agents as PettingZoo"
        ) as raised,
    ):
        env.reset()
    assert "ClusterEnv runs environments of one agent: wrap it in a gymnasium.Env" in str(raised.value)


@pytest.mark.parametrize(
    "read", [lambda env: env.observation_space, lambda env: env.reset()], ids=["spaces", "reset"]
)
def test_environment_without_spaces_is_refused(read: Callable[[ClusterEnv], Any]) -> None:
    class Spaceless(Echo):
        def __init__(self) -> None:
            super().__init__(spaces.Discrete(2))
            self.action_space = None  # type: ignore[assignment]

    with (
        ClusterEnv([Spaceless], SERIAL) as env,
        pytest.raises(EnvError, match=r"whose action_space is None; expected a gymnasium\.Space"),
    ):
        read(env)


def test_thing_that_is_no_environment_is_refused() -> None:
    with (
        ClusterEnv([dict], SERIAL) as env,
        pytest.raises(EnvError, match=r"returned \{\}; expected a gymnasium.Env"),
    ):  # type: ignore[list-item]
        env.launch()
