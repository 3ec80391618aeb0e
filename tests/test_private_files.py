"""Private files: written whole or not at all, and read only if nobody else could have written them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clusterenv import private_files
from clusterenv.private_files import (
    NotPrivate,
    is_own_folder,
    read_private,
    remove_folder,
    require_private,
    write_private,
)

OTHER_USER = 12345


def test_file_has_its_content_its_mode_and_no_company(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    write_private(path, b"one")
    write_private(path, b"two", durable=False)

    assert read_private(path, 100, own=True) == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"12345")

    assert read_private(tmp_path / "file", 3) == b"123"


def test_failed_write_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_private(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, b"new")

    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o677])
def test_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)

    with pytest.raises(NotPrivate, match=f"its mode is {mode:04o}; it must be 0600"):
        read_private(path, 1)


def test_link_is_not_followed(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")

    with pytest.raises(OSError, match="symbolic link"):
        read_private(tmp_path / "link", 1)


def test_pipe_does_not_block_its_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    assert read_private(tmp_path / "pipe", 1) == b""


def test_file_of_another_user_is_refused_where_an_own_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "file", b"x")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)

    assert read_private(tmp_path / "file", 1) == b"x"
    with pytest.raises(NotPrivate, match=f"{tmp_path}/file belongs to user"):
        read_private(tmp_path / "file", 1, own=True)


def test_own_folder_is_private_real_and_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, link, file = tmp_path / "folder", tmp_path / "link", tmp_path / "file"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    write_private(file, b"")

    assert is_own_folder(folder)
    assert not is_own_folder(link)
    assert not is_own_folder(file)
    assert not is_own_folder(tmp_path / "absent")
    folder.chmod(0o750)
    assert not is_own_folder(folder)
    with pytest.raises(NotPrivate, match="its mode is 0750; it must be 0700"):
        require_private(folder, folder)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    assert not is_own_folder(folder)


def test_folder_is_removed_though_something_is_written_into_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    remove = shutil.rmtree
    tries = []

    def slowly(path: Path, *, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        tries.append(path)
        if len(tries) < 3:
            path.mkdir()
            (path / "exit-code").write_text("0")

    monkeypatch.setattr(shutil, "rmtree", slowly)

    assert remove_folder(folder)
    assert not folder.exists()
    assert len(tries) == 3


def test_folder_that_cannot_be_removed_is_told_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.setattr(private_files, "LAST_WRITES_S", 0.1)

    assert remove_folder(tmp_path / "absent")
    assert not remove_folder(tmp_path / "link")
    assert (tmp_path / "there").is_dir()
    monkeypatch.setattr(shutil, "rmtree", lambda path, *, ignore_errors: None)
    assert not remove_folder(tmp_path / "there")
