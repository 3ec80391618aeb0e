from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterenv_registry import RegistrationError, UnknownEnvironment, plugins, resolve

GOOD = """
from clusterenv_registry import hookimpl

def make(size=1):
    import gymnasium
    return gymnasium.make("CartPole-v1")

@hookimpl
def clusterenv_register_envs():
    return {"Pole": make, "PoleByName": "NAME:make"}
"""


def _good(name: str) -> str:
    return GOOD.replace("NAME", name)


def test_plugin_offers_environments_as_callables_and_by_import(
    install_plugin: Callable[[str, str], None],
) -> None:
    install_plugin("good_envs", _good("good_envs"))

    env = resolve("Pole", None, {"size": 2}, ())()
    by_name = resolve("gymnasium", "PoleByName", {}, ())()

    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert by_name.spec == env.spec
    assert {entry.owner for entry in plugins.installed().entries} == {"plugin envs of good_envs 1.0"}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (GOOD.replace("register_envs", "registerenvs"), "PluginValidationError"),
        (GOOD.replace("def clusterenv_register_envs()", "def clusterenv_register_envs(x)"), "PluginValid"),
        (GOOD.replace('return {"Pole"', 'return 1 / 0, {"Pole"'), "ZeroDivisionError"),
        (GOOD.replace('return {"Pole"', 'return [{"Pole"').replace("}", "}]"), "expected a mapping"),
        (GOOD.replace('"Pole":', '"a pole":'), "an environment cannot be called 'a pole'"),
        (GOOD.replace("make,", "7,"), "an environment cannot be made from 7"),
    ],
)
def test_broken_plugin_is_data_and_hides_no_other(
    install_plugin: Callable[[str, str], None], source: str, problem: str
) -> None:
    install_plugin("bad_envs", source)
    install_plugin("good_envs", _good("good_envs"))

    found = plugins.installed()

    assert [entry.name for entry in found.entries] == ["Pole", "PoleByName"]
    [broken] = found.broken
    assert broken.owner == "plugin envs of bad_envs 1.0"
    assert problem in broken.problem
    assert "Traceback" in broken.traceback
    resolve("gymnasium", "CartPole-v1", {}, ())


def test_broken_plugin_is_named_when_an_unknown_environment_is_asked_for(
    install_plugin: Callable[[str, str], None],
) -> None:
    install_plugin("bad_envs", "import no_such_module_at_all")

    with pytest.raises(
        UnknownEnvironment,
        match=r"'Lost'.*plugin envs of bad_envs 1.0 is broken \(ModuleNotFoundError: No module",
    ):
        resolve("Lost", None, {}, ())


def test_two_plugins_with_one_name_are_an_error_for_that_name_alone(
    install_plugin: Callable[[str, str], None],
) -> None:
    install_plugin("first_envs", _good("first_envs"))
    install_plugin("second_envs", _good("second_envs").replace("PoleByName", "Other"))

    with pytest.raises(
        RegistrationError,
        match=r"'Pole' is offered by plugin envs of first_envs 1.0 and plugin envs of second_envs 1.0",
    ):
        resolve("Pole", None, {}, ())
    resolve("Other", None, {}, ())
