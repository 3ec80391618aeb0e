"""Fresh virtual environments with a plugin in them, which find all else where this interpreter does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def venv_with(plugin: str, folder: Path, *requirements: str) -> Path:
    """The interpreter of a new virtual environment in `folder` with a plugin and these requirements alone."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    beside = [str(ROOT), str(ROOT / "registry"), sysconfig.get_path("purelib")]
    (Path(site) / "beside.pth").write_text("\n".join(beside) + "\n")
    source = folder / "source"
    shutil.copytree(ROOT / "plugins" / plugin, source)
    if requirements:
        constraints = str(ROOT / ".ci" / "constraints.txt")
        run(python, "-m", "pip", "install", "-q", "--no-deps", "-c", constraints, *requirements)
    run(python, "-m", "pip", "install", "-q", "--no-deps", str(source))
    return python


def run(python: Path, *words: str, cwd: Path | None = None) -> str:
    """What it prints."""
    done = subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
