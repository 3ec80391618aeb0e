from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

from clusterenv_registry import RegistrationError
from clusterenv_registry.entry import (
    CallableSource,
    FileSource,
    ImportSource,
    SpecSource,
    check_name,
    source_of,
)


def test_file_source_takes_a_class_after_a_colon(env_file: Path) -> None:
    assert FileSource.parse(f"{env_file}:Counter") == FileSource(str(env_file), "Counter")


def test_file_source_is_absolute_whatever_folder_the_command_ran_in(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(env_file.parent)

    assert FileSource.parse("counter.py") == FileSource(str(env_file), None)


def test_file_source_is_the_same_however_its_folder_is_spelt(env_file: Path) -> None:
    (env_file.parent / "sub").mkdir()
    plain = FileSource(str(env_file), None)

    assert FileSource.parse(f"{env_file.parent}/sub/../{env_file.name}") == plain


def test_file_source_keeps_what_is_above_the_target_of_a_link(env_file: Path) -> None:
    (env_file.parent / "deep" / "er").mkdir(parents=True)
    (env_file.parent / "link").symlink_to(env_file.parent / "deep" / "er")
    env_file.rename(env_file.parent / "deep" / env_file.name)
    path = f"{env_file.parent}/link/../{env_file.name}"

    assert FileSource.parse(path) == FileSource(path, None)


def test_file_source_accepts_a_path_that_holds_a_colon(tmp_path: Path) -> None:
    odd = tmp_path / "a:b.py"
    odd.write_text("")

    assert FileSource.parse(str(odd)) == FileSource(str(odd), None)
    assert FileSource.parse(f"{odd}:Env") == FileSource(str(odd), "Env")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("missing.py", "missing.py is missing; expected a .py file"),
        ("folder", "folder is no package; expected"),
        ("notes.txt", "notes.txt is not a Python file; expected"),
        ("counter.py:1st", "'1st' in .* is no class name; expected file.py:Class"),
    ],
)
def test_file_source_refuses_what_is_no_python_file(
    env_file: Path, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (env_file.parent / "folder").mkdir()
    (env_file.parent / "notes.txt").write_text("")
    monkeypatch.chdir(env_file.parent)

    with pytest.raises(RegistrationError, match=problem):
        FileSource.parse(text)


def test_source_of_tells_the_three_kinds_apart() -> None:
    spec = gym.spec("CartPole-v1")

    assert source_of(spec) == SpecSource(spec)
    assert source_of("package.module:Env") == ImportSource("package.module:Env")
    assert source_of(gym.Env) == CallableSource(gym.Env)


@pytest.mark.parametrize("value", ["CartPole-v1", "module", 3, None])
def test_source_of_refuses_what_makes_no_environment(value: object) -> None:
    with pytest.raises(RegistrationError, match=r"expected a class or function that returns a gymnasium.Env"):
        source_of(value)


@pytest.mark.parametrize("name", ["MyEnv", "my-env.2", "team/Reacher-v0"])
def test_check_name_accepts(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "gymnasium", "a b", "module:Env", "/Env", "Env/", "été\n", "-x", "a/-x", "..", "../x", None, 3],
)
def test_check_name_refuses(name: object) -> None:
    with pytest.raises(RegistrationError, match="an environment cannot be called"):
        check_name(name)
