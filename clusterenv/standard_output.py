"""Standard output whose reader may go at any time, as `| head` does."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def to_nobody_if_gone() -> Iterator[None]:
    """If standard output cannot be written, as after `| head` or a hangup, what is written goes nowhere."""
    try:
        yield
    except OSError:
        _to_nobody()


def reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more; what is still written goes nowhere."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    if not any(events & select.POLLERR for _, events in pipe.poll(0)):
        return False
    _to_nobody()
    return True


def _to_nobody() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # also what Python still holds back and writes when it exits
    os.close(nowhere)
