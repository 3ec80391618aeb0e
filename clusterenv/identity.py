"""Which process is meant: a process id alone may by now be that of another, or of another host."""

from __future__ import annotations

import enum
import os
import signal as signals
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class Life(enum.StrEnum):
    """What can be told of a process from here."""

    ALIVE = "alive"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"
    """It runs, or ran, where this process cannot look."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one host, told apart from all that have its id before or after it."""

    host: str
    boot_id: str
    """Differs from host to host, and after each start of one."""
    pid_namespace: str
    """Differs between containers of one host."""
    pid: int
    started: int
    """When it began, in the kernel's ticks since the host's start."""

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        boot_id, namespace = _place()
        return cls(
            host=socket.gethostname(),
            boot_id=boot_id,
            pid_namespace=namespace,
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
        )

    @property
    def life(self) -> Life:
        """Whether it is alive, as far as this host can tell."""
        if self.boot_id and (self.boot_id, self.pid_namespace) == _place():
            return Life.ALIVE if _started(self.pid) == self.started else Life.DEAD
        restarted = self.host == socket.gethostname() and self.boot_id != _place()[0]
        return Life.DEAD if restarted else Life.ELSEWHERE

    def first_handled(self, *numbers: signals.Signals) -> signals.Signals | None:
        """The first of the signals for which the process has a handler of its own; None if for none."""
        with suppress(OSError):
            for line in (_PROC / str(self.pid) / "status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    mask = int(line.split()[1], 16)
                    return next((number for number in numbers if mask >> (number - 1) & 1), None)
        return None

    def send(self, number: signals.Signals) -> bool:
        """Whether the signal was sent: to this very process, if it lives here and is this user's."""
        if self.life is not Life.ALIVE:
            return False
        try:
            handle = os.pidfd_open(self.pid)  # from here on nobody else can be met under this id
        except ProcessLookupError:
            return False
        try:
            own = (_PROC / str(self.pid)).stat().st_uid == os.geteuid()
            if not own or _started(self.pid) != self.started:
                return False
            signals.pidfd_send_signal(handle, number)
        except (FileNotFoundError, ProcessLookupError):
            return False
        finally:
            os.close(handle)
        return True


def _place() -> tuple[str, str]:
    """What tells this host, since its start, and this container from others."""
    boot_id = namespace = ""
    with suppress(OSError):
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = str((_PROC / "self/ns/pid").readlink())
    return boot_id, namespace


def _started(pid: int) -> int | None:
    """When a process began; None if there is none, or only what its parent has not asked about yet."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
