"""What runs tell of themselves, and what of it is believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterenv.run_records import STATUS_FILE, index_folder, read_folder, read_index, strike
from tests.monitor.runs import made_run, worker

FOLDER = "clusterenv-x"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = made_run(tmp_path / FOLDER)

    assert read_folder(tmp_path / FOLDER) == status
    assert list(read_index()) == [status]
    assert (tmp_path / FOLDER / STATUS_FILE).stat().st_mode & 0o777 == 0o600
    assert index_folder().stat().st_mode & 0o777 == 0o700


def test_struck_run_is_not_listed_any_more(tmp_path: Path) -> None:
    status = made_run(tmp_path / FOLDER)

    strike(status)
    strike(status)

    assert list(read_index()) == []


def test_index_lies_in_the_users_state_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLUSTERENV_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    assert index_folder() == tmp_path / "state" / "clusterenv" / "runs"


def test_user_without_a_home_gets_no_index_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLUSTERENV_HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # which is how an unknown user is told
    monkeypatch.chdir(tmp_path)

    with pytest.raises(FileNotFoundError, match="this user has no home"):
        made_run(tmp_path / FOLDER)

    assert not (tmp_path / "~").exists()
    assert list(read_index()) == []
    status = read_folder(tmp_path / FOLDER)
    assert status is not None
    strike(status)


def test_nobody_elses_files_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path / FOLDER)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert read_folder(tmp_path / FOLDER) is None
    assert list(read_index()) == []


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_or_read_is_not_believed(tmp_path: Path, what: str) -> None:
    folder = tmp_path / FOLDER
    made_run(folder)
    place = folder if what == "folder" else folder / STATUS_FILE
    place.chmod(place.stat().st_mode | 0o040)

    assert read_folder(folder) is None


def test_copy_or_link_of_a_run_is_no_run(tmp_path: Path) -> None:
    made_run(tmp_path / FOLDER)
    (tmp_path / "clusterenv-link").symlink_to(tmp_path / FOLDER)
    (tmp_path / FOLDER).rename(tmp_path / "clusterenv-moved")

    assert read_folder(tmp_path / "clusterenv-link") is None
    assert read_folder(tmp_path / "clusterenv-moved") is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[", b'{"run_id": "../../x"}'])
def test_damaged_file_is_no_run(tmp_path: Path, text: bytes) -> None:
    status = made_run(tmp_path / FOLDER)
    (tmp_path / FOLDER / STATUS_FILE).write_bytes(text)
    status.index_path.write_bytes(text)

    assert read_folder(tmp_path / FOLDER) is None
    assert list(read_index()) == []


@pytest.mark.parametrize(
    "damage",
    [
        {"folder": "/tmp/clusterenv-a\0b"},
        {"folder": "clusterenv-relative"},
        {"folder": f"/tmp/clusterenv-{'x' * 5000}"},
        {"since": -1e15},
        {"updated": 1e300},
        {"workers": [worker(log_path="/a\0b")]},
    ],
)
def test_entry_that_no_head_has_written_is_not_listed(tmp_path: Path, damage: dict[str, Any]) -> None:
    status = made_run(tmp_path / FOLDER)
    status.index_path.write_bytes(msgspec.structs.replace(status, **damage).encoded())

    assert list(read_index()) == []


def test_there_need_not_be_an_index() -> None:
    assert list(read_index()) == []
