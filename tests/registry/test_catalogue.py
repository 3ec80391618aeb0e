from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from clusterenv_registry import (
    MissingExtra,
    RegistrationError,
    SourceError,
    StoreError,
    UnknownEnvironment,
    register,
    resolve,
    store,
)
from clusterenv_registry.catalogue import contents, find
from clusterenv_registry.classic import CLASSIC
from clusterenv_registry.entry import FileSource, ImportSource

PLUGIN = """
from clusterenv_registry import hookimpl

@hookimpl
def clusterenv_register_envs():
    return {"CartPole-v1": "somewhere:Else", "Shared": "somewhere:Else"}
"""


def _cart_pole(**env_kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **env_kwargs)


def test_names_resolve_in_one_order(
    install_plugin: Callable[[str, str], None], env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = [find("CartPole-v1").owner]
    install_plugin("plugin_envs", PLUGIN)
    owners.append(find("CartPole-v1").owner)
    store.add("CartPole-v1", FileSource(str(env_file)))
    owners.append(find("CartPole-v1").owner)
    register("CartPole-v1", _cart_pole)
    owners.append(find("CartPole-v1").owner)

    assert owners == [
        "Gymnasium",
        "plugin envs of plugin_envs 1.0",
        f"file {store.location()}",
        "this process",
    ]


def test_registered_name_works_as_type_and_as_env_name() -> None:
    register("Pole", _cart_pole)

    by_type = resolve("Pole", None, {"render_mode": "rgb_array"}, ())()
    by_name = resolve("gymnasium", "Pole", {"render_mode": "rgb_array"}, ())()

    assert by_type.render_mode == by_name.render_mode == "rgb_array"


def test_stored_file_resolves_to_its_environment(env_file: Path) -> None:
    store.add("Counter", FileSource(str(env_file)))

    env = resolve("Counter", None, {"start": 2}, ())()

    assert env.reset(seed=0)[0].tolist() == [2.0]


def test_stored_file_that_is_gone_is_an_error_where_the_name_is_asked_for(env_file: Path) -> None:
    store.add("Counter", FileSource(str(env_file)))
    env_file.unlink()

    with pytest.raises(
        SourceError, match=r"'Counter' is registered as .*counter.py; .*counter.py is not there"
    ):
        resolve("Counter", None, {}, ())


def test_unknown_name_is_answered_with_what_is_broken_by_its_name_and_where_to_look() -> None:
    store.add("Good", ImportSource("a.b:C"))
    text = store.location().read_text()
    store.location().write_text(text.replace('"target": "a.b:C"', '"path": 7'))

    with pytest.raises(UnknownEnvironment, match="`clusterenv envs` lists those there are; 'Good' in file "):
        resolve("gymnasium", "xyzzy", {}, ())

    store.location().write_text("{")
    with pytest.raises(UnknownEnvironment) as caught:
        resolve("gymnasium", "xyzzy", {}, ())
    assert str(caught.value).count(str(store.location())) == 1


def test_damaged_entry_is_an_error_for_its_name_alone() -> None:
    store.location().parent.mkdir()
    store.location().write_text('{"format": 1, "environments": {"CartPole-v0": 7}}')

    with pytest.raises(StoreError, match=r"'CartPole-v0' in file .*: a damaged entry, 7"):
        resolve("gymnasium", "CartPole-v0", {}, ())
    resolve("gymnasium", "CartPole-v1", {}, ())


def test_spec_registers_under_a_name_of_its_own() -> None:
    register("ShortPole", gym.envs.registration.EnvSpec("Pole-v0", _cart_pole, max_episode_steps=9))

    env = resolve("ShortPole", None, {}, ())()

    assert env.spec is not None
    assert env.spec.max_episode_steps == 9


def test_register_again_is_harmless_and_takes_the_newer_definition() -> None:
    def define(length: float) -> type[gym.Env[Any, Any]]:
        class Cell(gym.Env[Any, Any]):
            size = length

        return Cell

    register("Cell", define(1.0))
    register("Cell", define(2.0))

    assert resolve("Cell", None, {}, ())().get_wrapper_attr("size") == 2.0


def test_register_refuses_another_thing_under_a_known_name_unless_told_to_replace() -> None:
    register("Pole", _cart_pole)

    with pytest.raises(
        RegistrationError,
        match=r"'Pole' already stands for .*_cart_pole, not gymnasium:Env; replace=True changes",
    ):
        register("Pole", "gymnasium:Env")
    register("Pole", "gymnasium:Env", replace=True)

    assert str(find("Pole").source) == "gymnasium:Env"


@pytest.mark.parametrize(
    ("name", "newest", "told"),
    [
        ("LunarLander-v2", "LunarLander-v3", "'LunarLander-v2' is no longer in Gymnasium"),
        ("CartPole", "CartPole-v1", "'CartPole' names no version"),
    ],
)
def test_id_of_an_older_version_stands_for_the_newest_with_one_warning(
    name: str, newest: str, told: str
) -> None:
    with pytest.warns(UserWarning, match=f"{told}; '{newest}' is used instead") as caught:
        entry = find(name)

    assert len(caught) == 1
    assert str(entry.source) == newest


def test_classic_names_stand_for_pinned_ids() -> None:
    assert str(find("MujocoAnt").source) == "Ant-v5"
    for name, env_id in CLASSIC.items():
        assert str(find(name).source) == env_id


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("LunarLander-v7", "LunarLander-v3"),
        ("LunarLandr-v3", "LunarLander-v3"),
        ("cartpole", "CartPole-v1"),
        ("MountainCar-v7", "MountainCar-v0"),
        ("MyPol", "MyPole"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, suggestion: str) -> None:
    register("MyPole", _cart_pole)

    with pytest.raises(UnknownEnvironment) as caught:
        resolve("gymnasium", name, {}, ())

    assert str(caught.value).startswith(f"there is no environment {name!r}; did you mean {suggestion!r}")
    assert caught.value.suggestions[0] == suggestion
    assert caught.value.name == name


@pytest.mark.parametrize("name", ["no/such-v0", "a b", "xyzzy", "A:B:C"])
def test_name_unlike_any_other_is_refused_without_suggestion(name: str) -> None:
    with pytest.raises(
        (UnknownEnvironment, SourceError), match=r"there is no environment|asks for the module"
    ):
        resolve("gymnasium", name, {}, ())


@pytest.mark.parametrize(
    ("type_", "env_name", "problem"),
    [
        (
            "gymnasium",
            None,
            'type "gymnasium" needs env_name, the id of an environment such as "CartPole-v1"',
        ),
        ("gymnasum", "CartPole-v1", "there is no environment 'gymnasum'; did you mean 'gymnasium'"),
        ("CartPole-v1", "CartPole-v1", "'CartPole-v1' names an environment itself and takes no env_name"),
    ],
)
def test_type_and_env_name_that_do_not_fit_are_refused(
    type_: str, env_name: str | None, problem: str
) -> None:
    with pytest.raises(UnknownEnvironment, match=problem):
        resolve(type_, env_name, {}, ())


def test_missing_extra_shows_when_the_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("Box2D", "ale_py") else real(name)
    )

    with pytest.raises(MissingExtra, match=r'pip install "clusterenv-rl\[box2d\]"'):
        resolve("gymnasium", "LunarLander-v3", {}, ())
    with pytest.raises(MissingExtra, match=r'pip install "clusterenv-rl\[atari\]"'):
        resolve("gymnasium", "ALE/Pong-v5", {}, ())


def test_module_before_an_id_is_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers_on_import.py").write_text(
        "import gymnasium\ngymnasium.register('Imported-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))

    with pytest.raises(UnknownEnvironment):
        resolve("gymnasium", "Imported-v0", {}, ())
    env = resolve("gymnasium", "registers_on_import:Imported-v0", {}, ())()

    assert type(env.unwrapped).__name__ == "CartPoleEnv"


def test_module_that_cannot_be_imported_is_named_with_the_interpreter() -> None:
    with pytest.raises(
        SourceError, match="'no_such_module:Env-v0' asks for the module 'no_such_module'"
    ) as caught:
        resolve("gymnasium", "no_such_module:Env-v0", {}, ())
    assert sys.executable in str(caught.value)


def test_contents_list_every_source(install_plugin: Callable[[str, str], None], env_file: Path) -> None:
    install_plugin("plugin_envs", PLUGIN)
    store.add("Counter", FileSource(str(env_file)))
    register("Pole", _cart_pole)

    names = [entry.name for entry in contents().entries]

    assert names[:4] == ["Pole", "Counter", "CartPole-v1", "Shared"]
    assert "LunarLander-v3" in names[4:]


HEAD = """
import sys
from pathlib import Path
import cloudpickle
import gymnasium as gym
from clusterenv_registry import register, resolve

class Here(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def __init__(self, start=0):
        self.start = start
    def reset(self, *, seed=None, options=None):
        return self.start, {}

gym.register("ByClass-v0", Here)
gym.register("ByName-v0", "__main__:Here")
register("Registered", Here)
arguments = [("gymnasium", "ByClass-v0"), ("gymnasium", "ByName-v0"), ("Registered", None)]
factories = [resolve(*pair, {"start": 1}, ()) for pair in arguments]
Path(sys.argv[1]).write_bytes(cloudpickle.dumps(factories))
"""

WORKER = """
import sys
from pathlib import Path
import cloudpickle
for factory in cloudpickle.loads(Path(sys.argv[1]).read_bytes()):
    assert factory().reset(seed=0)[0] == 1
"""


@pytest.mark.process
def test_environments_of_the_heads_main_script_work_in_another_process(tmp_path: Path) -> None:
    for name, text in (("head.py", HEAD), ("worker.py", WORKER)):
        (tmp_path / name).write_text(text)
        command = [sys.executable, tmp_path / name, tmp_path / "factories"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
