"""A script in CleanRL's structure gives the same numbers when one line makes its environments on workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DIFF = (HERE / "cleanrl_style.diff").read_text()
SCRIPT = (HERE / "cleanrl_style.py").read_text()
STEPS, SEED = 8192, 3


def patched(script: str, diff: str) -> str:
    """`script` with the hunks of `diff` applied, each of which fits in one place."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert script.count(before) == 1, before
        script = script.replace(before, after)
    return script


def run(script: str, folder: Path) -> dict[str, object]:
    path = folder / "ppo.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), "--total-timesteps", str(STEPS), "--seed", str(SEED)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_script_gives_equal_numbers_over_sync_vector_env_and_over_workers(tmp_path: Path) -> None:
    expected = run(SCRIPT, tmp_path)
    seen = run(patched(SCRIPT, DIFF), tmp_path)
    assert len(expected["episodic_returns"]) > 100
    assert seen == expected


def test_diff_makes_the_environments_elsewhere_and_changes_nothing_else() -> None:
    removed = [line for line in DIFF.splitlines() if line.startswith("-")]
    assert len(removed) == 1
    assert "SyncVectorEnv(" in removed[0]


def test_readme_shows_the_diff() -> None:
    assert f"```diff\n{DIFF}```\n" in (HERE.parent.parent / "README.md").read_text()
