"""Finding the compiled core."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import clusterenv

PACKAGE = Path(clusterenv.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the package's sources and no compiled core."""
    target = tmp_path / "clusterenv"
    target.mkdir()
    for name in ("__init__.py", "native.py"):
        shutil.copy(PACKAGE / name, target)
    return tmp_path


def run(checkout: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Imports `native` from `checkout` and prints where the core comes from."""
    find = f"import sys; sys.path.insert(0, {str(checkout)!r})"
    code = f"{find}; from clusterenv import native; print(native._core.__file__)"
    command = [sys.executable, "-I", *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_core_comes_from_the_installed_distribution_when_a_checkout_hides_it(checkout: Path) -> None:
    result = run(checkout)
    assert result.returncode == 0, result.stderr
    installed = metadata.distribution("clusterenv-rl").locate_file("clusterenv")
    assert Path(result.stdout).parent == Path(str(installed))


def test_another_version_is_refused_in_one_sentence(checkout: Path) -> None:
    init = checkout / "clusterenv" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    init.write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.0.7"', text), encoding="utf-8")
    last = run(checkout).stderr.splitlines()[-1]
    assert last == (
        f"ImportError: {checkout}/clusterenv is version 0.0.7, but its compiled core would come from the "
        f"installed clusterenv-rl {clusterenv.__version__}: run `pip install {checkout}`"
    )


def test_no_installed_distribution_is_said_in_one_sentence(checkout: Path) -> None:
    last = run(checkout, "-S").stderr.splitlines()[-1]
    assert last == (
        f"ImportError: {checkout}/clusterenv has no compiled core and clusterenv-rl is not installed: "
        f"run `pip install {checkout}`"
    )
