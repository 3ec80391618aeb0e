"""Telling processes apart, and signals that reach the one that is meant or nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from clusterenv import identity
from clusterenv.identity import Life, ProcessIdentity
from tests.processes import wait_until

CHILD = """
import os, sys
sys.path[:0] = {path!r}
import msgspec, signal
from clusterenv.identity import ProcessIdentity
{handlers}
print(msgspec.json.encode(ProcessIdentity.own()).decode(), flush=True)
signal.pause()
"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


def start(children: list[subprocess.Popen[str]], handlers: str = "") -> ProcessIdentity:
    """A process that waits for a signal, and what it says that it is."""
    code = CHILD.format(path=sys.path, handlers=handlers)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    children.append(child)
    assert child.stdout is not None
    return msgspec.json.decode(child.stdout.readline(), type=ProcessIdentity)


def test_own_process_is_alive_and_travels() -> None:
    own = ProcessIdentity.own()

    assert own.pid == os.getpid()
    assert msgspec.json.decode(msgspec.json.encode(own), type=ProcessIdentity) == own
    assert own.life is Life.ALIVE


@pytest.mark.process
def test_process_that_has_ended_is_dead_even_before_its_parent_has_asked(
    children: list[subprocess.Popen[str]],
) -> None:
    child = start(children)
    assert child.life is Life.ALIVE

    assert child.send(signal.SIGKILL)

    wait_until(lambda: child.life is Life.DEAD, 10)
    assert not child.send(signal.SIGKILL)


@pytest.mark.process
def test_another_process_with_the_same_id_is_neither_believed_nor_signalled(
    children: list[subprocess.Popen[str]],
) -> None:
    child = start(children)
    earlier = msgspec.structs.replace(child, started=child.started - 1)

    assert earlier.life is Life.DEAD
    assert not earlier.send(signal.SIGKILL)
    assert child.life is Life.ALIVE


@pytest.mark.process
def test_process_of_another_user_is_not_signalled(
    children: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(children)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert not child.send(signal.SIGKILL)

    assert child.life is Life.ALIVE


def test_other_hosts_and_containers_are_elsewhere_and_a_host_started_again_has_none_of_its_processes() -> (
    None
):
    own = ProcessIdentity.own()
    other_host = msgspec.structs.replace(own, host="other", boot_id="other")
    container = msgspec.structs.replace(own, pid_namespace="pid:[1]")
    restarted = msgspec.structs.replace(own, boot_id="before")

    assert other_host.life is Life.ELSEWHERE
    assert container.life is Life.ELSEWHERE
    assert restarted.life is Life.DEAD
    assert not container.send(signal.SIGKILL)


def test_host_that_tells_nothing_of_itself_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_place", lambda: ("", ""))

    assert ProcessIdentity.own().life is Life.ELSEWHERE


@pytest.mark.process
@pytest.mark.parametrize(
    ("handlers", "expected"),
    [
        ("signal.signal(signal.SIGINT, signal.default_int_handler)", signal.SIGINT),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", None),
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, lambda *_: None)",
            signal.SIGTERM,
        ),
    ],
)
def test_first_signal_with_a_handler_is_found(
    children: list[subprocess.Popen[str]], handlers: str, expected: signal.Signals | None
) -> None:
    assert start(children, handlers).first_handled(signal.SIGINT, signal.SIGTERM) is expected
