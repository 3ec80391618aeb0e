"""Environments that break Gymnasium's rules: the right value, or an error that names them."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ClusterEnvError
from tests.agents import NumpyAgent
from tests.contract.spaces import any_space
from tests.envs import Count, Sampled
from tests.long_form import drawn

BROKEN = 1
"""The environment, of two, that breaks the rules."""


class Evil:
    """Raises whatever is done with it."""

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("evil")

    __repr__ = __str__ = __bool__ = __float__ = __int__ = __index__ = __array__ = __len__ = _raise
    __iter__ = __eq__ = __getitem__ = __contains__ = _raise
    __hash__ = object.__hash__


class Lies(UserDict):  # type: ignore[type-arg]
    """A mapping whose items are no pairs."""

    def items(self) -> Any:
        return [1, 2, 3]


def circle() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["self"] = [info, info]
    return info


ARRAYS = [
    np.zeros(0),
    np.array(3),
    np.array([[1.5]]),
    np.array([1, "x"], object),
    np.array(["text"]),
    np.array([1 + 2j]),
    np.array(["2020-01-01"], "datetime64[D]"),
    np.zeros((2, 2), [("a", "f4")]),
    np.ma.masked_array([1, 2], [True, False]),
    np.float32(np.nan),
    np.longdouble(1e400),
    np.str_("x"),
]
ODD = [
    *(None, True, 0, -1, 1 << 70, 1 << 9000, 1.5, float("inf"), float("nan"), 1j),
    *("", "text", "\ud800", b"bytes", Decimal("1.5"), Fraction(1, 3)),
    *(torch.tensor(2.0), torch.ones(1, requires_grad=True), torch.ones(2)),
    *((), [], {}, set(), object, Evil(), Lies({"a": 1}), OrderedDict(a=1), circle()),
    *(lambda: None, iter([1]), range(3)),
    *ARRAYS,
]


@dataclass(frozen=True)
class Odd:
    """Stands for one of `ODD`, which hypothesis could neither print nor compare."""

    number: int


def made(value: Any) -> Any:
    """`value` with what they stand for in place of all `Odd`."""
    if isinstance(value, Odd):
        return ODD[value.number]
    if isinstance(value, list | tuple):
        return type(value)(map(made, value))
    return {key: made(item) for key, item in value.items()} if type(value) is dict else value


PLAIN = st.integers(0, len(ODD) - 1).map(Odd)
ANYTHING = st.recursive(
    PLAIN,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.tuples(parts, parts)
        | st.dictionaries(
            st.sampled_from(["a", "_a", "", 1, (1, 2), None, "final_obs", "\ud800"]), parts, max_size=3
        )
    ),
    max_leaves=4,
)
RIGHT = {"obs": np.ones(1, np.float32), "reward": 1.0, "terminated": False, "truncated": False, "info": {}}


class Breaks(Count):
    """Count that returns `steps` from reset (the first) and each step, whatever that is."""

    def __init__(self, results: list[Any]) -> None:
        super().__init__(1000)
        self.results = results
        self.asked = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.asked = 0
        return self.results[0]

    def step(self, action: Any) -> Any:
        self.asked += 1
        return self.results[min(self.asked, len(self.results) - 1)]


def steps() -> st.SearchStrategy[Any]:
    """What a step returns: five things one of which may be anything, or anything at all."""
    one_odd = st.tuples(st.sampled_from(sorted(RIGHT)), ANYTHING).map(
        lambda change: tuple((RIGHT | {change[0]: change[1]}).values())
    )
    return one_odd | one_odd | ANYTHING


def resets() -> st.SearchStrategy[Any]:
    right = st.just((RIGHT["obs"], {}))
    return (
        right | right | right | st.tuples(ANYTHING, st.just({})) | st.tuples(st.just(RIGHT["obs"]), ANYTHING)
    )


def used(env: ClusterEnv, collect: bool) -> None:
    env.reset(seed=0)
    for _ in range(2):
        obs, rewards, terminated, truncated, info = env.step(np.zeros(2, np.int64))
        assert obs.shape == (2, 1)
        assert rewards.dtype == np.float64
        assert terminated.dtype == truncated.dtype == np.bool_
        assert all(isinstance(value, dict) or len(value) == 2 for value in info.values())
    if collect:
        assert env.rollout(NumpyAgent(env), 3).rewards.dtype == np.float32


def allowed(use: Callable[[], object], name: str) -> None:
    """`use` works, or says which environment is to blame."""
    told = name
    try:
        use()
    except ClusterEnvError as error:
        told = str(error)
    assert name in told


@drawn(250)
@given(reset=resets(), results=st.lists(steps(), min_size=1, max_size=3), collect=st.booleans())
@example(
    reset=(RIGHT["obs"], {}),
    results=[tuple((RIGHT | {"info": {"_a": {}}}).values())],
    collect=False,
)
def test_environment_that_returns_anything_is_understood_or_named(
    reset: Any, results: list[Any], collect: bool
) -> None:
    broken = partial(Breaks, made([reset, *results]))
    with ClusterEnv([partial(Breaks, [(RIGHT["obs"], {}), tuple(RIGHT.values())]), broken], SERIAL) as env:
        allowed(lambda: used(env, collect), f"environment {BROKEN}")


SERIAL = LocalConfig(serial=True)


@drawn(125)
@given(space=any_space(), returned=any_space(), seed=st.integers(0, 1000))
def test_observation_of_another_space_is_understood_or_named(
    space: gym.Space, returned: gym.Space, seed: int
) -> None:
    def make(number: int) -> gym.Env:
        env = Sampled(space)
        if number == BROKEN:
            returned.seed(seed)
            env._obs = returned.sample  # type: ignore[method-assign]
        return env

    def use() -> None:
        with ClusterEnv([partial(make, number) for number in range(2)], SERIAL) as env:
            env.reset(seed=0)
            env.step(np.zeros(2, np.int64))

    allowed(use, f"environment {BROKEN}")


@pytest.mark.parametrize("info", [Evil(), Lies({"a": 1}), circle(), {"a": Evil()}, {Evil(): 1}, [1], None])
def test_info_that_cannot_be_read_is_left_out_or_named(info: Any) -> None:
    right = (RIGHT["obs"], {})
    step = (*list(RIGHT.values())[:4], info)
    with ClusterEnv([partial(Breaks, [right, step])], SERIAL) as env:
        env.reset(seed=0)
        allowed(lambda: env.step(np.zeros(1, np.int64)), "environment 0")
