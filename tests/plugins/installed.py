"""Plugins in virtual environments of their own, which find all else where these tests do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"


def install_plugin(plugin: Path, folder: Path) -> Path:
    """The interpreter of a new virtual environment in `folder` in which the plugin is installed by pip."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    beside = [str(ROOT), str(ROOT / "registry"), sysconfig.get_path("purelib")]
    (Path(site) / "beside.pth").write_text("\n".join(beside) + "\n")
    source = folder / "source"
    shutil.copytree(plugin, source)
    run(python, "-m", "pip", "install", "-q", "--no-deps", str(source))
    return python


def run(python: Path, *words: str, cwd: Path | None = None, timeout_s: float = 240) -> str:
    """What `python words` writes to stdout; it must end well."""
    done = subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
