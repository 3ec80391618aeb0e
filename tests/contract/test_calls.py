"""`call`, `get_attr`, `set_attr` and `render` over every transport."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv
from clusterenv.errors import ClusterEnvError, ConfigError, EnvError, MissingAttribute
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS
from tests.contract.walking import assert_same

pytestmark = pytest.mark.process

ACTIONS = np.zeros(NUM_ENVS, np.int64)


@pytest.fixture
def twin() -> Iterator[SyncVectorEnv]:
    env = SyncVectorEnv([partial(wrapped, i) for i in range(NUM_ENVS)])
    yield env
    env.close()


@pytest.fixture(autouse=True)
def usable_after(gadgets: ClusterEnv) -> Iterator[None]:
    """Whatever a test does, the environments step on."""
    gadgets.reset(seed=1)
    yield
    before = gadgets.get_attr("moved")
    gadgets.step(ACTIONS)
    assert gadgets.get_attr("moved") == tuple(moved + 1 for moved in before)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("add", (5,), {"b": 100}),
        ("add", (-1,), {}),
        ("twice", (4,), {}),
        ("note", (), {}),
        ("index", (), {}),
        ("render_mode", (), {}),
        ("fail", (99,), {}),
    ],
)
def test_call_returns_what_each_environment_gives_in_order(
    gadgets: ClusterEnv, twin: SyncVectorEnv, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert_same(gadgets.call(name, *args, **kwargs), twin.call(name, *args, **kwargs), name)
    assert gadgets.get_attr("index") == tuple(range(NUM_ENVS))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1,
        1 << 100,
        2.5,
        "text äß",
        b"bytes",
        [1, [2.0, None]],
        (1, ("a", ())),
        {"a": {"b": [1]}, 3: 4},
        np.float16(0.5),
        np.int8(-3),
        np.array([[1, 2], [3, 4]], np.uint16),
        np.zeros((0, 3)),
        np.array(["a", "bc"]),
        GraphInstance(np.zeros((2, 1)), None, None),
    ],
    ids=str,
)
def test_plain_values_travel_to_the_environments_and_back(gadgets: ClusterEnv, value: Any) -> None:
    assert_same(gadgets.call("echo", value), (value,) * NUM_ENVS, "echo")


def test_call_on_chosen_environments_leaves_the_others_alone(gadgets: ClusterEnv) -> None:
    called = gadgets.get_attr("called")
    assert gadgets.call_on([4, 0], "add", 10) == (14, 10)
    assert gadgets.call_on(np.array([2]), "add", a=1, b=1) == (4,)
    after = gadgets.get_attr("called")
    assert [new - old for new, old in zip(after, called, strict=True)] == [1, 0, 1, 0, 1]
    assert gadgets.call_on([], "add", 1) == ()


def test_set_attr_takes_one_value_for_all_or_one_for_each(gadgets: ClusterEnv, twin: SyncVectorEnv) -> None:
    for values in (1.5, [1, 2, 3, 4, 5], ("a", None, {"b": 1}, [2], 3), np.arange(3), "text"):
        gadgets.set_attr("gravity", values)
        twin.set_attr("gravity", values)
        assert_same(gadgets.get_attr("gravity"), twin.get_attr("gravity"), "gravity")
    gadgets.set_attr("gravity", [7, 8], indices=[3, 1])
    assert gadgets.get_attr("gravity") == ("text", 8, "text", 7, "text")
    gadgets.set_attr("note", "changed", indices=[0])
    assert gadgets.get_attr("note") == ("changed", *["outer"] * (NUM_ENVS - 1))
    gadgets.set_attr("note", "outer")


def test_set_attr_refuses_a_list_of_another_length(gadgets: ClusterEnv) -> None:
    with pytest.raises(ValueError, match="5 values, one for each environment"):
        gadgets.set_attr("gravity", [1, 2])


def test_name_that_is_missing_is_an_attribute_error(gadgets: ClusterEnv) -> None:
    with pytest.raises(AttributeError, match=r"environment 0.*no_such_thing") as raised:
        gadgets.get_attr("no_such_thing")
    assert isinstance(raised.value, MissingAttribute)
    assert raised.value.env_index == 0


def test_environment_that_raises_is_named_with_its_traceback(gadgets: ClusterEnv) -> None:
    with pytest.raises(EnvError, match="environment 3 failed in 'fail': ValueError: on purpose") as raised:
        gadgets.call("fail", 3)
    assert raised.value.env_index == 3
    assert "gadgets.py" in raised.value.remote_traceback


def test_property_that_raises_is_an_error_of_its_environment(gadgets: ClusterEnv) -> None:
    with pytest.raises(
        EnvError, match="environment 0 failed when asked for 'broken': ValueError: on purpose"
    ):
        gadgets.get_attr("broken")


class Unloadable:
    """Something that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("nine",)


def test_argument_that_workers_cannot_unpickle_leaves_the_environments_alone(gadgets: ClusterEnv) -> None:
    with pytest.raises(EnvError, match="arguments of 'echo' cannot be unpickled on the worker: ValueError"):
        gadgets.call("echo", Unloadable())
    with pytest.raises(EnvError, match="environment 0 failed when 'gravity' was set: ValueError"):
        gadgets.set_attr("gravity", Unloadable())
    with pytest.raises(ClusterEnvError, match="nine"):
        gadgets.reset(options={"what": Unloadable()})


def test_result_that_holds_itself_is_refused(gadgets: ClusterEnv) -> None:
    with pytest.raises(EnvError, match=r"environment 0: what 'endless' gave.*of type list nested 32 deep"):
        gadgets.call("endless")


def test_result_that_cannot_travel_is_refused_with_its_path(gadgets: ClusterEnv) -> None:
    with pytest.raises(EnvError, match=r"environment 0: what 'odd' gave.*\['deep'\]\[1\] is of type set"):
        gadgets.call("odd")


def test_argument_that_cannot_be_pickled_is_named_before_anything_is_called(gadgets: ClusterEnv) -> None:
    called = gadgets.get_attr("called")
    lock = {"inner": threading.Lock()}
    with pytest.raises(ConfigError, match=r"arguments of add\[0\]\[0\]\['inner'\].*lock"):
        gadgets.call("add", lock)
    with pytest.raises(ConfigError, match=r"value of gravity for environment 1 is .*lock"):
        gadgets.set_attr("gravity", [0, threading.Lock(), 0, 0, 0])
    assert gadgets.get_attr("called") == called


@pytest.mark.parametrize("name", ["reset", "step", "close", "_setattr", "_check_spaces", "", 3])
def test_call_refuses_names_that_are_not_the_callers(gadgets: ClusterEnv, name: Any) -> None:
    with pytest.raises(ValueError, match="name is"):
        gadgets.call(name)


def test_render_gives_a_frame_of_each_environment(gadgets: ClusterEnv, twin: SyncVectorEnv) -> None:
    twin.reset(seed=1)
    assert_same(gadgets.render(), twin.render(), "frames")


def test_render_of_chosen_environments_asks_no_others(gadgets: ClusterEnv) -> None:
    rendered = gadgets.get_attr("rendered")
    frames = gadgets.render([3, 1])
    assert [int(frame[0, 0, 0]) for frame in frames] == [30, 10]
    after = gadgets.get_attr("rendered")
    assert [new - old for new, old in zip(after, rendered, strict=True)] == [0, 1, 0, 1, 0]


def test_generators_are_copies_of_those_of_the_environments(gadgets: ClusterEnv, twin: SyncVectorEnv) -> None:
    twin.reset(seed=1)
    assert gadgets.np_random_seed == twin.np_random_seed == (1, 2, 3, 4, 5)
    for _ in range(2):  # drawing here moves nothing there
        drawn = [generator.random() for generator in gadgets.np_random]
    assert drawn == [generator.random() for generator in twin.np_random]
