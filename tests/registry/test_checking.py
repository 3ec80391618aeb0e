"""What is tried before an environment is registered, in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterenv_registry import CheckError
from clusterenv_registry.checking import check
from clusterenv_registry.entry import FileSource, ImportSource
from tests.processes import running, wait_until

pytestmark = pytest.mark.process


def test_good_environment_gives_its_spaces(env_file: Path) -> None:
    env_file.write_text("print('hello')\n" + env_file.read_text())
    checked = check(FileSource(str(env_file)), {"start": 2})
    assert checked.observation_space == "Box(0.0, 100.0, (1,), float32)"
    assert checked.action_space == "Discrete(2)"
    assert checked.warnings == ()


def test_importable_environment_is_checked_too() -> None:
    checked = check(ImportSource("gymnasium.envs.classic_control:CartPoleEnv"), {})
    assert checked.action_space == "Discrete(2)"


@pytest.mark.parametrize(
    ("old", "new", "stage", "error"),
    [
        (
            "import numpy as np",
            "import numpy as np; 1 / 0",
            "its import",
            "ZeroDivisionError: division by zero",
        ),
        ("self.start = start", "raise ValueError('on purpose')", "its constructor", "ValueError: on purpose"),
        ("super().reset(seed=seed)", "raise SystemExit", "reset and step", "SystemExit"),
        (
            "1.0, False, False, {}",
            "1.0, False, {}",
            "reset and step",
            "step returned 4 values; expected Gymnasium's",
        ),
        (
            "np.float32), {}\n",
            "np.float32)\n",
            "reset and step",
            "reset returned one ndarray; expected Gymnasium's 2",
        ),
        (
            "start=0",
            "start",
            "its constructor",
            "argument: 'start'; give it with --env-kwargs",
        ),
        ("np.full(1, self.start, ", "np.full(2, self.start, ", "Gymnasium's checker", "observation space"),
    ],
)
def test_failure_names_the_stage_and_shows_the_traceback_of_the_environment(
    env_file: Path, old: str, new: str, stage: str, error: str
) -> None:
    env_file.write_text(env_file.read_text().replace(old, new))
    with pytest.raises(CheckError, match=f"fails in {stage}: ") as raised:
        check(FileSource(str(env_file)), {})
    assert error in str(raised.value)
    assert "clusterenv_registry" not in raised.value.remote_traceback


def test_environment_that_ends_its_process_is_told(env_file: Path) -> None:
    env_file.write_text("import os, sys; print('bye', file=sys.stderr, flush=True); os._exit(3)\n")
    with pytest.raises(CheckError, match="ended its process, with status 3: bye"):
        check(FileSource(str(env_file)), {})


def test_environment_that_hangs_is_ended_with_all_that_it_started(env_file: Path) -> None:
    env_file.write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '1234'])\ntime.sleep(1234)\n"
        + env_file.read_text()
    )
    start = time.monotonic()
    with pytest.raises(CheckError, match="was not checked within 2 s"):
        check(FileSource(str(env_file)), {}, timeout_s=2.0)
    assert time.monotonic() - start < 30
    wait_until(lambda: not running(["sleep", "1234"]), within_s=5)


def test_doubts_of_gymnasiums_checker_are_told(env_file: Path) -> None:
    env_file.write_text(
        env_file.read_text().replace("Box(0, 100, (1,), np.float32)", "Box(-np.inf, np.inf, (1,))")
    )
    assert any("infinity" in text for text in check(FileSource(str(env_file)), {}).warnings)


@pytest.mark.parametrize("current", [True, False])
def test_module_beside_the_file_is_not_there_on_workers_and_so_not_in_the_check(
    env_file: Path, monkeypatch: pytest.MonkeyPatch, current: bool
) -> None:
    (env_file.parent / "helpers.py").write_text("")
    env_file.write_text("import helpers\n" + env_file.read_text())
    if current:
        monkeypatch.chdir(env_file.parent)
    with pytest.raises(CheckError, match=r"helpers.py is not sent along with counter.py: make a package"):
        check(FileSource(str(env_file)), {})


def test_module_of_the_package_that_is_imported_as_if_it_were_none_says_how(env_file: Path) -> None:
    folder = env_file.parent / "counters"
    folder.mkdir()
    env_file.rename(folder / "counter.py")
    (folder / "__init__.py").write_text("from counter import Counter\n")
    with pytest.raises(CheckError, match=r"is a part of the package: import it as counters\.counter$"):
        check(FileSource(str(folder)), {})


def test_module_of_the_current_folder_is_not_an_installed_one(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(env_file.parent)
    with pytest.raises(CheckError, match=r"counter.py is not installed: install it, or register it as"):
        check(ImportSource("counter:Counter"), {})


def test_file_with_two_environments_is_told_once_without_a_traceback(env_file: Path) -> None:
    env_file.write_text(env_file.read_text() + "\n\nclass Other(Counter):\n    pass\n")
    with pytest.raises(CheckError) as raised:
        check(FileSource(str(env_file)), {})
    assert str(raised.value).startswith(
        f"{env_file} defines several environments; register one of {env_file}:"
    )
    assert raised.value.remote_traceback == ""
