"""Memory of one process that another one of the same user and machine finds and maps."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from clusterenv.native import Slab

NONCE_BYTES: Final = 8
"""At the beginning of the memory; what follows is its users'."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Where the memory is: a descriptor of a process, its size, and the number at its beginning."""

    pid: int
    descriptor: int
    nbytes: int
    nonce: int


def create(nbytes: int) -> tuple[Slab, Segment]:
    """New memory of `nbytes`, which others can find for as long as its descriptor is open.

    Raises:
        OSError: if there is no room for it.
    """
    slab = Slab.create(nbytes)
    nonce = 1 + secrets.randbits(62)
    np.frombuffer(slab.memory, np.int64, 1)[0] = nonce
    return slab, Segment(pid=os.getpid(), descriptor=slab.descriptor, nbytes=nbytes, nonce=nonce)


def holds(slab: Slab, nonce: int) -> bool:
    """Whether the memory is still the one with this nonce."""
    return int(np.frombuffer(slab.memory, np.int64, 1)[0]) == nonce


def retire(slab: Slab) -> None:
    """Nobody finds this memory any more, and who has mapped it is told by `holds`."""
    np.frombuffer(slab.memory, np.int64, 1)[0] = 0


def attach(segment: Segment) -> Slab:
    """The memory of another process. That it is the one that was meant, its nonce tells, and not a name.

    Raises:
        OSError: if it cannot be reached from here, or is not what `segment` says.
    """
    path = f"/proc/{segment.pid}/fd/{segment.descriptor}"
    facts = Path(path).stat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_nlink:
        raise OSError(f"{path} is no memory of this user")
    if facts.st_size != segment.nbytes or segment.nbytes < NONCE_BYTES:
        raise OSError(f"{path} has {facts.st_size} bytes; expected {segment.nbytes}")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        slab = Slab.attach(descriptor, segment.nbytes)
    finally:
        os.close(descriptor)
    slab.close_descriptor()
    if not holds(slab, segment.nonce):
        raise OSError(f"{path} is not the memory that was announced")
    return slab
