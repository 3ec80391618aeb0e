"""What is tried before an environment is registered, in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from clusterenv_registry import CheckError
from clusterenv_registry.checking import check
from clusterenv_registry.entry import FileSource, ImportSource

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
        ("1.0, False, False, {}", "1.0, False, {}", "reset and step", "not enough values to unpack"),
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
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1234"]]


def test_doubts_of_gymnasiums_checker_are_told(env_file: Path) -> None:
    env_file.write_text(
        env_file.read_text().replace("Box(0, 100, (1,), np.float32)", "Box(-np.inf, np.inf, (1,))")
    )
    assert any("infinity" in text for text in check(FileSource(str(env_file)), {}).warnings)
