"""How much memory is left to this process: of the machine, or of its container or job if that has less."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the machine, or of a control group."""

    left_bytes: int
    total_bytes: int
    whose: str


def available_memory(own: Path = OWN_CGROUP, root: Path = CGROUPS) -> Memory:
    """That of which least is left, in share, among the machine and the groups that hold this process."""
    machine = psutil.virtual_memory()
    known = [Memory(machine.available, machine.total, "this machine")]
    for group in _groups(own, root):
        try:
            known.append(_of_group(group))
        except (OSError, ValueError):
            continue  # no limit, which is said by a word, or none that this process may read
    return min(known, key=lambda memory: memory.left_bytes / max(memory.total_bytes, 1))


def _groups(own: Path, root: Path) -> list[Path]:
    """The folders of the control groups (version 2) around this process, from the innermost."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::/")), None)
    if path is None:
        return []
    inner = root / path.strip("/")
    return [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]


def _of_group(group: Path) -> Memory:
    total = int((group / "memory.max").read_text())
    used = int((group / "memory.current").read_text())
    rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    given_back = int(rows.get("inactive_file", 0))  # file pages that the kernel drops when it needs room
    return Memory(max(0, total - used + given_back), total, "this container or job")
