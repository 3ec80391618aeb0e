from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from clusterenv.errors import ConnectError, LaunchError
from clusterenv.transport import Connection, RunKeys
from clusterenv.worker_start import CONNECTION_VARIABLE


@pytest.fixture
def connection() -> Connection:
    return Connection.for_worker(
        RunKeys.generate(), 2**64 - 1, ["tcp://10.0.0.1:5000", "tcp://[fd00::1]:5000"]
    )


def test_keys_of_two_runs_differ() -> None:
    first, second = RunKeys.generate(), RunKeys.generate()

    assert first.server_public_key != first.client_public_key
    assert not set(secrets_of(first)) & set(secrets_of(second))


def secrets_of(keys: RunKeys) -> tuple[str, str]:
    return (keys.server_secret_key, keys.client_secret_key)


def test_secret_keys_are_not_shown() -> None:
    keys = RunKeys.generate()
    connection = Connection.for_worker(keys, 1, ["tcp://10.0.0.1:5000"])

    shown = repr(keys) + repr(connection)

    assert not any(secret in shown for secret in secrets_of(keys))


def test_worker_is_not_given_the_secret_key_of_the_head() -> None:
    keys = RunKeys.generate()

    text = Connection.for_worker(keys, 1, ["tcp://10.0.0.1:5000"]).to_env()[CONNECTION_VARIABLE]

    assert keys.client_secret_key in text
    assert keys.server_secret_key not in text


def test_keys_are_refused_by_a_build_that_cannot_encrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)

    with pytest.raises(LaunchError, match=r"has no CURVE encryption.*pip install"):
        RunKeys.generate()


def test_connection_file_comes_back_as_it_was(connection: Connection, tmp_path: Path) -> None:
    connection.write(tmp_path / "connection.json")

    assert Connection.read(tmp_path / "connection.json") == connection
    assert list(tmp_path.iterdir()) == [tmp_path / "connection.json"]


def test_connection_file_is_private_at_every_moment(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    write = os.fdopen

    def watched(handle: int, mode: str) -> object:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return write(handle, mode)

    monkeypatch.setattr(os, "fdopen", watched)
    before = os.umask(0)
    try:
        connection.write(tmp_path / "connection.json")
    finally:
        os.umask(before)

    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "connection.json").stat().st_mode) == 0o600


def test_connection_file_replaces_an_older_one(connection: Connection, tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    connection.write(path)
    path.chmod(0o644)

    newer = replace(connection, run_id=5)
    newer.write(path)

    assert Connection.read(path) == newer


def test_connection_file_does_not_follow_a_link(connection: Connection, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "connection.json").symlink_to(target)

    connection.write(tmp_path / "connection.json")

    assert target.read_text() == "mine"
    assert Connection.read(tmp_path / "connection.json") == connection


def test_nothing_is_left_when_writing_fails(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(LaunchError, match=r"cannot write the connection file .*No space left"):
        connection.write(tmp_path / "connection.json")

    assert list(tmp_path.iterdir()) == []


def test_connection_file_in_a_missing_folder_is_an_error(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot write the connection file .*No such file"):
        connection.write(tmp_path / "absent" / "connection.json")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_connection_file_that_others_may_use_is_refused(
    connection: Connection, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "connection.json"
    connection.write(path)
    path.chmod(mode)

    with pytest.raises(ConnectError, match=f"holds keys: .* its mode is {mode:04o}.*0600"):
        Connection.read(path)


def test_missing_connection_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match=r"cannot read the connection file .*absent.*No such file"):
        Connection.read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"run_id"', '"run"', "missing required field `run_id`"),
        ("tcp://10.0.0.1:5000", "ipc://10.0.0.1:5000", r"`\$.endpoints\[0\]`"),
        ('"server_public_key":"', '"server_public_key":"x', r"`\$.server_public_key`"),
        ('"endpoints"', "", "malformed"),
    ],
)
def test_damaged_connection_file_is_refused_without_showing_keys(
    connection: Connection, tmp_path: Path, old: str, new: str, told: str
) -> None:
    path = tmp_path / "connection.json"
    connection.write(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))

    with pytest.raises(ConnectError, match=f"does not hold a connection: .*{told}") as caught:
        Connection.read(path)

    assert connection.client_secret_key not in str(caught.value)


def test_connection_travels_in_one_variable(connection: Connection) -> None:
    variables = connection.to_env()

    assert list(variables) == [CONNECTION_VARIABLE]
    assert Connection.from_env(variables) == connection


def test_absent_variable_is_named() -> None:
    with pytest.raises(ConnectError, match=f"{CONNECTION_VARIABLE} is not set"):
        Connection.from_env({})
