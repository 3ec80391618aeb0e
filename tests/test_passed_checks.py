"""Gymnasium's checking wrappers, which steps pass by once an environment has passed them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from clusterenv import passed_checks
from clusterenv.commands import Call, SetAttr
from clusterenv.shard import Shard
from clusterenv.shard_calls import call, set_attr

ACTION = [np.zeros(1, np.int64)]


def made() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=3)


def layers(env: gym.Env) -> list[gym.Env]:
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def shortened(env: gym.Env) -> list[type]:
    """The wrappers that are passed by."""
    return [type(layer) for layer in layers(env)[:-1] if "step" in vars(layer)]


def after_an_episode() -> Shard:
    shard = Shard([made], first_env=0, autoreset_mode=AutoresetMode.SAME_STEP)
    shard.reset([1])
    assert not shortened(shard.envs[0])
    for _ in range(3):
        assert not shortened(shard.envs[0])
        shard.step(ACTION)
    return shard


def test_checks_are_left_out_after_the_first_episode() -> None:
    env = after_an_episode().envs[0]
    assert [type(layer) for layer in layers(env)][:3] == [TimeLimit, OrderEnforcing, PassiveEnvChecker]
    assert shortened(env) == [OrderEnforcing, PassiveEnvChecker]
    assert env.env.step == env.unwrapped.step


def test_episodes_are_the_same_without_checks() -> None:
    walks = []
    for lean in (True, False):
        shard = Shard([made], first_env=0, autoreset_mode=AutoresetMode.SAME_STEP)
        if not lean:
            shard.checks.leave_out = lambda row: None
        shard.reset([1])
        batches = [shard.step(ACTION) for _ in range(9)]
        walks.append([(b.obs[0].tolist(), b.truncations.tolist(), b.final_obs[0].tolist()) for b in batches])
        assert bool(shortened(shard.envs[0])) == lean
    assert walks[0] == walks[1]


def test_environment_that_is_called_or_changed_steps_through_everything_until_its_next_reset() -> None:
    for command in (
        Call(name="get_wrapper_attr", arguments=cloudpickle.dumps((("gravity",), {})), mask=None),
        SetAttr(name="gravity", values=[cloudpickle.dumps(9.0)], mask=None),
    ):
        shard = after_an_episode()
        (call if isinstance(command, Call) else set_attr)(shard, command)
        assert not shortened(shard.envs[0])
        for _ in range(3):
            shard.step(ACTION)
        assert shortened(shard.envs[0])


def test_what_has_a_step_of_its_own_keeps_it() -> None:
    env = made()
    calls: list[Any] = []
    checker = env.env.env

    def step(action: Any) -> Any:
        calls.append(action)
        return PassiveEnvChecker.step(checker, action)

    checker.step = step
    env.reset(seed=1)
    env.step(0)
    env.step(0)
    passed_checks.leave_out(env)
    env.step(1)
    assert calls == [0, 0, 1]


def test_subclass_of_a_check_is_not_left_out() -> None:
    class Counts(OrderEnforcing):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            return super().step(action)

    env = Counts(made())
    env.reset(seed=1)
    for _ in range(2):
        env.step(0)
    passed_checks.leave_out(env)
    env.step(0)
    assert env.steps == 3


def test_copy_of_an_environment_steps_itself() -> None:
    env = after_an_episode().envs[0]
    copy = deepcopy(env)
    copy.reset(seed=2)
    before = env.unwrapped.state
    copy.step(1)
    assert env.unwrapped.state is before


@pytest.mark.parametrize("steps", [0, 1])
def test_nothing_is_left_out_before_it_has_been_checked(steps: int) -> None:
    env = made()
    env.reset(seed=1)
    for _ in range(steps):
        env.step(0)
    assert passed_checks.leave_out(env) is None
    assert not shortened(env)
