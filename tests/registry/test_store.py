from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clusterenv_registry import RegistrationError, StoreError, store
from clusterenv_registry.entry import FileSource

ONE = FileSource("/envs/one.py", None)
TWO = FileSource("/envs/two.py", "Two")


def test_store_gives_back_what_was_added() -> None:
    store.add("One", ONE)
    store.add("Two", TWO)

    stored = store.read()

    assert {name: entry.source for name, entry in stored.entries.items()} == {"One": ONE, "Two": TWO}
    assert stored.broken == ()


def test_store_lies_in_the_data_folder_of_the_user_without_clusterenv_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLUSTERENV_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    assert store.location() == tmp_path / "clusterenv" / "environments.json"


def test_user_without_a_home_has_nothing_stored_and_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CLUSTERENV_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # which is how an unknown user is told
    monkeypatch.chdir(tmp_path)

    assert store.read() == store.Stored({}, ())
    with pytest.raises(StoreError, match="this user has no home; CLUSTERENV_HOME names a folder"):
        store.add("One", ONE)
    assert list(tmp_path.iterdir()) == []


def test_store_is_readable_by_its_user_alone() -> None:
    old = os.umask(0)
    try:
        store.add("One", ONE)
    finally:
        os.umask(old)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.location().parent.iterdir()}
    assert modes == {"environments.json": 0o600, "environments.lock": 0o600}
    assert stat.S_IMODE(store.location().parent.stat().st_mode) == 0o700


def test_add_is_idempotent_and_refuses_another_source_unless_told_to_replace() -> None:
    store.add("One", ONE)
    store.add("One", ONE)

    with pytest.raises(
        RegistrationError, match=r"'One' is already registered as /envs/one.py; --replace makes"
    ):
        store.add("One", TWO)
    store.add("One", TWO, replace=True)

    assert store.read().entries["One"].source == TWO


def test_remove_forgets_one_name_and_refuses_an_unknown_one() -> None:
    store.add("One", ONE)
    store.add("Two", TWO)

    store.remove("One")

    assert list(store.read().entries) == ["Two"]
    with pytest.raises(RegistrationError, match="'One' is not registered; there are: Two"):
        store.remove("One")


def test_damaged_entry_is_reported_and_hides_no_other() -> None:
    store.add("One", ONE)
    document = json.loads(store.location().read_text())
    document["environments"]["Bad"] = {"path": 7}
    store.location().write_text(json.dumps(document))

    stored = store.read()

    assert list(stored.entries) == ["One"]
    assert [broken.name for broken in stored.broken] == ["Bad"]
    assert "a damaged entry, {'path': 7}" in stored.broken[0].problem


def test_change_keeps_a_damaged_entry_and_can_remove_it() -> None:
    store.add("One", ONE)
    document = json.loads(store.location().read_text())
    document["environments"]["Bad"] = 7
    store.location().write_text(json.dumps(document))

    store.add("Two", TWO)
    assert [broken.name for broken in store.read().broken] == ["Bad"]
    with pytest.raises(RegistrationError, match="'Bad' is already registered as a damaged entry, 7"):
        store.add("Bad", TWO)
    store.remove("Bad")

    assert store.read().broken == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read: .*; mend it or delete it"),
        ("[]", "holds no registered environments"),
        ('{"format": 2, "environments": {}}', "has format 2 and this ClusterEnv reads format 1"),
    ],
)
def test_damaged_file_is_reported_and_never_overwritten(text: str, problem: str) -> None:
    store.location().parent.mkdir()
    store.location().write_text(text)

    [broken] = store.read().broken

    with pytest.raises(StoreError, match=problem) as caught:
        store.add("One", ONE)
    assert f"{broken.owner.removeprefix('file ')} {broken.problem}" == str(caught.value)
    assert store.location().read_text() == text


def test_failed_change_leaves_the_file_and_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("One", ONE)
    before = store.location().read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot be changed: .*No space left on device"):
        store.add("Two", TWO)

    assert store.location().read_text() == before
    assert sorted(path.name for path in store.location().parent.iterdir()) == [
        "environments.json",
        "environments.lock",
    ]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_processes_that_add_at_once_lose_nothing() -> None:
    script = (
        "import sys\n"
        "from clusterenv_registry import store\n"
        "from clusterenv_registry.entry import FileSource\n"
        "for i in range(3): store.add(f'Env{sys.argv[1]}-{i}', FileSource('/envs/e.py'))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(number)]) for number in range(100)]
    assert [process.wait(timeout=250) for process in processes] == [0] * 100

    assert set(store.read().entries) == {f"Env{number}-{i}" for number in range(100) for i in range(3)}
