"""README and docs are code: every Python block runs as printed, as a script of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from clusterenv import EnvConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.process
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.usefixtures("nothing_left")
def test_python_block_runs_as_printed(block: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_lists_every_option() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("## Options") : readme.index("## Where things are")]
    for item in fields(EnvConfig):
        assert f"`{item.name}`" in table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
