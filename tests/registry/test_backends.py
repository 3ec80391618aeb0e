from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from gymnasium.vector import AutoresetMode

from clusterenv_registry import (
    MissingExtra,
    RegistrationError,
    SourceError,
    UnknownEnvironment,
    plugins,
    register,
    resolve,
)
from clusterenv_registry.backends import BackendFactory
from clusterenv_registry.catalogue import contents
from clusterenv_registry.listing import listed

PLUGIN = """
from clusterenv_registry import hookimpl

@hookimpl
def clusterenv_register_backends():
    return {"pools": "tests.backends:make"}
"""

Install = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("type_", "env_name"), [("pools", "Count"), ("gymnasium", "pools:Count")], ids=["by type", "by colon"]
)
def test_backend_makes_vectors_of_the_environment_that_is_named(
    install_plugin: Install, type_: str, env_name: str
) -> None:
    install_plugin("pool_plugin", PLUGIN)

    factory = resolve(type_, env_name, {"n": 3}, ())
    assert isinstance(factory, BackendFactory)
    assert factory.name == "pools:Count"
    vector = pickle.loads(pickle.dumps(factory)).vector(2, 3)

    assert (vector.num_envs, vector.threads) == (2, 3)
    assert [env.n for env in vector.envs] == [3, 3]


def test_described_environment_of_a_backend_has_its_spaces_and_mode(install_plugin: Install) -> None:
    install_plugin("pool_plugin", PLUGIN)

    env = resolve("pools", "Count", {}, ())()

    assert env.observation_space.shape == (1,)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.close()


def test_what_is_before_the_colon_is_a_module_where_no_backend_has_the_name(install_plugin: Install) -> None:
    install_plugin("pool_plugin", PLUGIN)

    assert resolve("gymnasium", "gymnasium:CartPole-v1", {}, ())().spec.id == "CartPole-v1"
    with pytest.raises(SourceError, match="'pols:Count' asks for the module 'pols'"):
        resolve("gymnasium", "pols:Count", {}, ())


def test_name_registered_by_hand_comes_before_a_backend(install_plugin: Install) -> None:
    install_plugin("pool_plugin", PLUGIN)
    register("pools", "gymnasium.envs.classic_control:CartPoleEnv")

    assert type(resolve("pools", None, {}, ())()).__name__ == "CartPoleEnv"


@pytest.mark.parametrize(
    ("type_", "env_name", "problem"),
    [
        ("pools", None, "backend 'pools' needs env_name, the name of one of its environments"),
        ("gymnasium", "pools:", "backend 'pools' needs env_name"),
        ("gymnasium", "pools", r"'pools' is a backend of plugin envs of pool_plugin 1.0; .* pools:NAME"),
        ("pool", None, "there is no environment 'pool'; did you mean 'pools'"),
    ],
)
def test_backend_that_is_asked_for_wrongly_is_told(
    install_plugin: Install, type_: str, env_name: str | None, problem: str
) -> None:
    install_plugin("pool_plugin", PLUGIN)

    with pytest.raises(UnknownEnvironment, match=problem):
        resolve(type_, env_name, {}, ())


def test_wrappers_with_a_backend_are_refused(install_plugin: Install) -> None:
    install_plugin("pool_plugin", PLUGIN)

    with pytest.raises(RegistrationError, match="wrappers are for single environments, but backend 'pools'"):
        resolve("pools", "Count", {}, (lambda env: env,))


@pytest.mark.parametrize(
    "other", [PLUGIN, PLUGIN.replace("backends", "envs")], ids=["backend", "environment"]
)
def test_two_plugins_with_one_name_are_an_error_for_that_name_alone(
    install_plugin: Install, other: str
) -> None:
    install_plugin("first_plugin", PLUGIN)
    install_plugin("second_plugin", other.replace('{"', '{"more": "tests.envs:Count", "'))

    with pytest.raises(
        RegistrationError, match=r"'pools' is offered by plugin envs of \w+ 1.0 and plugin envs of \w+ 1.0"
    ):
        resolve("pools", "Count", {}, ())
    resolve("gymnasium", "CartPole-v1", {}, ())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("7", "a backend cannot be made from 7; expected a factory of vectors"),
        ('"no target"', "a backend cannot be made from 'no target'"),
    ],
)
def test_plugin_that_offers_no_factory_is_broken(install_plugin: Install, value: str, problem: str) -> None:
    install_plugin("bad_plugin", PLUGIN.replace('"tests.backends:make"', value))

    [broken] = plugins.installed().broken

    assert problem in broken.problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return 3", r"made 3; expected a gymnasium.vector.VectorEnv"),
        ("return make(name, n + 1, num_threads=1)", "made a vector of 3 environments; expected 2"),
        (
            "vector = make(name, n, num_threads=1)\n    vector.metadata = {}\n    return vector",
            r'whose metadata\["autoreset_mode"\] is None; expected a member of AutoresetMode',
        ),
        (
            "vector = make(name, n, num_threads=1)\n    vector.action_space = None\n    return vector",
            "a vector whose action_space is None; expected a gymnasium.Space",
        ),
    ],
)
def test_factory_that_makes_something_else_is_told(install_plugin: Install, body: str, problem: str) -> None:
    source = PLUGIN.replace("tests.backends:make", "odd_plugin:factory")
    install_plugin(
        "odd_plugin",
        f"from tests.backends import make\n\ndef factory(name, n, *, num_threads):\n    {body}\n{source}",
    )
    factory = resolve("pools", "Count", {}, ())
    assert isinstance(factory, BackendFactory)

    with pytest.raises(SourceError, match=problem):
        factory.vector(2, 1)


@pytest.mark.parametrize(("type_", "env_name"), [("envpool", "Pong-v5"), ("gymnasium", "procgen:coinrun")])
def test_backend_of_our_own_plugin_that_is_missing_is_answered_with_the_pip_command(
    type_: str, env_name: str
) -> None:
    with pytest.raises(MissingExtra, match=r"pip install clusterenv-(envpool|procgen) \(from a checkout"):
        resolve(type_, env_name, {}, ())


def test_backend_of_a_broken_plugin_is_answered_with_what_broke_it(install_plugin: Install) -> None:
    install_plugin("clusterenv-envpool", "import no_such_module")

    with pytest.raises(UnknownEnvironment, match=r"plugin envs of clusterenv-envpool 1.0 is broken \("):
        resolve("envpool", "Pong-v5", {}, ())


def test_listing_has_backends_with_their_names_and_what_is_missing(install_plugin: Install) -> None:
    install_plugin("pool_plugin", PLUGIN)
    install_plugin("lame_plugin", PLUGIN.replace("pools", "lame").replace("tests.backends", "no_such_thing"))

    found = {item.name: item for item in listed(contents())}

    assert found["pools"].env_names == ["Count", "Nested"]
    assert found["pools"].line() == (
        "plugin envs of pool_plugin 1.0: tests.backends:make; a backend; pools:Count, pools:Nested"
    )
    assert "No module named 'no_such_thing'" in str(found["lame"].missing)
    assert "needs: pip install clusterenv-envpool" in found["envpool"].line()
    assert found["CartPole-v1"].backend == "gymnasium"
