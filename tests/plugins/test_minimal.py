"""The plugin to copy is built, installed into a fresh virtual environment, and trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.plugins.installed import PLUGINS, install_plugin, run

PLUGIN = PLUGINS / "clusterenv-minimal"

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_plugin(PLUGIN, tmp_path_factory.mktemp("venv"))


def test_it_is_listed_with_its_owner(python: Path) -> None:
    listed = run(python, "-m", "clusterenv", "envs")
    owner = "plugin minimal of clusterenv-minimal 0.1.0: clusterenv_minimal.corridor:Corridor"
    assert owner in listed


def test_ppo_learns_it_over_two_workers(python: Path, tmp_path: Path) -> None:
    words = ["--env-id", "Corridor", "--workers", "2", "--envs-per-worker", "8", "--total-steps", "16384"]
    run(python, "-m", "clusterenv", "train", "ppo", *words, "--seed", "1", "--run-dir", "run", cwd=tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["episode_return"] > 0.9  # the shortest way of seven steps gives 0.94


def test_its_own_tests_pass(python: Path, tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests")
    assert "3 passed" in run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "tests"), cwd=tmp_path
    )
