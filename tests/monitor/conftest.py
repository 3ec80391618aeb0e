"""A place for runs that no other test, and no run of the user, can see."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where runs are made, with a space in its path; home and index are the test's own too."""
    folder = tmp_path / "run folders"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "state"))
    return folder
