"""`clusterenv quicktest`, where a plugin that somebody has installed is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_every_part_is_tried_and_what_fails_has_its_cure(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clusterenv]\nenvs = not_there\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    done = subprocess.run(
        [sys.executable, "-m", "clusterenv", "quicktest"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    words = {
        line[6:28].strip(): line[:4].strip() for line in lines if line[:6].strip() in ("ok", "FAIL", "-")
    }
    assert [what for what, word in words.items() if word == "FAIL"] == ["plugin"]
    for what in (
        "compiled kernels",
        "Gymnasium",
        "box2d",
        "local",
        "train dqn",
        "evaluate",
        "plot and compare",
    ):
        assert words[what] == "ok"
    assert words["envpool"] == "-"
    failed = next(number for number, line in enumerate(lines) if line.startswith("FAIL"))
    assert "broken" in lines[failed]
    assert "-> install it again, or uninstall it" in lines[failed + 1]
    assert lines[-1].startswith("1 of these checks failed in ")
