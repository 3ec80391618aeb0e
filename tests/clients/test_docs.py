"""Code in README and docs that needs other libraries (blocks marked `py`) runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs_as_printed(block: str, tmp_path: Path) -> None:
    for library in ("stable_baselines3", "tianshou", "torchrl"):
        if library in block and find_spec(library) is None:
            pytest.skip(f"{library} is not installed; .ci/clients runs this")
    script = tmp_path / "script.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_pinned_versions_are_those_that_the_docs_name() -> None:
    pinned = (ROOT / ".ci" / "clients-constraints.txt").read_text()
    page = (ROOT / "docs" / "clients.md").read_text()
    names = {
        "Gymnasium": "gymnasium",
        "Stable-Baselines3": "stable-baselines3",
        "TorchRL": "torchrl",
        "Tianshou": "tianshou",
    }
    for name, package in names.items():
        version = re.search(rf"^\| {name} (\d+\.\d+) \|", page, re.MULTILINE)
        assert version, name
        assert f"\n{package}=={version[1]}." in pinned
