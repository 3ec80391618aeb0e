"""Processor seconds and memory of a process and of what it has started."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from clusterenv.usage import UsageWatch
from tests.processes import wait_until


@pytest.mark.process
def test_descendants_are_counted_while_they_live() -> None:
    code = "import sys; held = b'x' * (64 << 20); sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    alone, together = UsageWatch(descendants=False), UsageWatch(descendants=True)
    others = together.look().memory_bytes - alone.look().memory_bytes  # a forkserver of other tests, say
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        own, all_of_them = alone.look(), together.look()
        child.communicate()

    assert all_of_them.memory_bytes - own.memory_bytes - others > 60 << 20
    assert 0 < own.cpu_s <= all_of_them.cpu_s
    assert own.memory_bytes <= 1.5 * psutil.Process().memory_info().rss
    wait_until(lambda: together.look().memory_bytes - alone.look().memory_bytes - others < 16 << 20, 10)


def test_looks_are_seldom() -> None:
    watch = UsageWatch(descendants=False)
    began = time.monotonic()

    assert watch.look_if_due() is not None
    assert watch.look_if_due() is None or time.monotonic() - began > 5


def test_looks_without_a_descriptor_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = UsageWatch(descendants=True)

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "children", fail)
        assert watch.look_if_due() is None
    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "memory_full_info", fail)
        assert UsageWatch(descendants=False).look_if_due() is None
