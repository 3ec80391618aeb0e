from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest

from clusterenv_registry import MissingExtra, SourceError, code
from clusterenv_registry.entry import CallableSource, FileSource, ImportSource, SpecSource
from clusterenv_registry.loading import EnvFactory, require_extra


def _made(source: Any, **env_kwargs: Any) -> gym.Env[Any, Any]:
    return EnvFactory("Test", code.read(source) if isinstance(source, FileSource) else source, env_kwargs)()


def test_factory_loads_the_only_environment_of_a_file(env_file: Path) -> None:
    env = _made(FileSource(str(env_file)), start=7)

    assert env.reset(seed=0)[0].tolist() == [7.0]


def test_factory_runs_a_file_once_and_again_when_it_changed(env_file: Path) -> None:
    first, second = _made(FileSource(str(env_file))), _made(FileSource(str(env_file)))
    env_file.write_text(env_file.read_text().replace("start=0", "start=5"))
    changed = _made(FileSource(str(env_file)))

    assert type(first) is type(second)
    assert changed.reset(seed=0)[0].tolist() == [5.0]


def test_factory_survives_a_pickle(env_file: Path) -> None:
    factory = EnvFactory(
        "Test",
        code.read(FileSource(str(env_file), "Counter")),
        {"start": 3},
        (gym.wrappers.FlattenObservation,),
    )

    env = cloudpickle.loads(cloudpickle.dumps(factory))()

    assert isinstance(env, gym.wrappers.FlattenObservation)
    assert env.reset(seed=0)[0].tolist() == [3.0]


def test_wrappers_are_applied_innermost_first() -> None:
    spec = gym.spec("CartPole-v1")
    wrappers = (lambda env: gym.wrappers.TimeLimit(env, 5), gym.wrappers.RecordEpisodeStatistics)

    env = EnvFactory("Test", SpecSource(spec), {}, wrappers)()

    assert isinstance(env, gym.wrappers.RecordEpisodeStatistics)
    assert isinstance(env.env, gym.wrappers.TimeLimit)


def test_gymnasium_environment_has_the_wrappers_and_spec_of_make() -> None:
    env = _made(SpecSource(gym.spec("CartPole-v1")), render_mode="rgb_array")

    assert env.spec == gym.make("CartPole-v1", render_mode="rgb_array").spec


@pytest.mark.parametrize(
    ("addition", "attribute", "problem"),
    [
        ("class Other(Counter): pass", None, r"several environments; register one of .*:Counter, .*:Other"),
        ("del Counter", None, "defines no subclass of gymnasium.Env"),
        ("", "Missing", "has no 'Missing'; environments in it: Counter"),
        ("Value = 3", "Value", "is 3; expected a class or function"),
        ("def make(): return 3", "make", r"'Test' \(.*:make\) made 3; expected a gymnasium.Env"),
    ],
)
def test_file_that_holds_no_such_environment_is_refused(
    env_file: Path, addition: str, attribute: str | None, problem: str
) -> None:
    env_file.write_text(f"{env_file.read_text()}\n{addition}\n")

    with pytest.raises(SourceError, match=problem):
        _made(FileSource(str(env_file), attribute))


def test_wrapper_classes_and_imported_environments_of_a_file_do_not_count(env_file: Path) -> None:
    more = "class Wrapped(gym.Wrapper): pass\nclass _Base(gym.Env): pass\n"
    more += "from gymnasium.envs.classic_control import CartPoleEnv\n"
    env_file.write_text(env_file.read_text() + more)

    assert type(_made(FileSource(str(env_file)))).__name__ == "Counter"


def test_missing_file_names_the_path_and_the_host(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone.py is not there on \S+"):
        _made(FileSource(str(tmp_path / "gone.py")))


def test_error_of_the_file_itself_passes_through_and_leaves_no_module(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    before = set(sys.modules)

    with pytest.raises(ZeroDivisionError):
        _made(FileSource(str(path)))

    assert not [name for name in set(sys.modules) - before if name.startswith("_clusterenv_file_")]


def test_import_source_finds_nested_attributes() -> None:
    env = _made(ImportSource("gymnasium.envs.classic_control:CartPoleEnv"))

    assert type(env).__name__ == "CartPoleEnv"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_module_at_all:Env", "asks for the module 'no_such_module_at_all', which .* cannot import"),
        ("gymnasium:NoSuchEnv", "the module 'gymnasium' has no 'NoSuchEnv' for"),
    ],
)
def test_import_source_names_module_interpreter_and_host(target: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as caught:
        _made(ImportSource(target))
    assert sys.executable in str(caught.value)


def test_callable_that_makes_something_else_is_refused() -> None:
    with pytest.raises(SourceError, match=r"made <object object .*>; expected a gymnasium.Env"):
        _made(CallableSource(object))


@pytest.mark.parametrize(
    ("env_id", "entry_point", "module", "extra"),
    [
        ("LunarLander-v3", "gymnasium.envs.box2d.lunar_lander:LunarLander", "Box2D", "box2d"),
        ("Ant-v5", "gymnasium.envs.mujoco.ant_v5:AntEnv", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py.env:AtariEnv", "ale_py", "atari"),
    ],
)
def test_missing_package_is_answered_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, env_id: str, entry_point: str, module: str, extra: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else real(name))
    spec = gym.envs.registration.EnvSpec(env_id, entry_point)

    with pytest.raises(MissingExtra) as caught:
        require_extra(spec)

    assert str(caught.value).startswith(
        f"{env_id!r} needs {module}, which is not installed for {sys.executable}"
    )
    assert str(caught.value).endswith(f'pip install "clusterenv-rl[{extra}]"')


def test_entry_points_of_the_extras_are_where_gymnasium_has_them() -> None:
    assert str(gym.spec("LunarLander-v3").entry_point).startswith("gymnasium.envs.box2d.")
    assert str(gym.spec("Ant-v5").entry_point).startswith("gymnasium.envs.mujoco.")
