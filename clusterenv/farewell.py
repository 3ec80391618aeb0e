"""A process that SIGTERM ends closes its runs first, where nobody else handles that signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

CLOSED_WITHIN_S: Final = 10.0
"""Then the process ends all the same; workers leave once they miss it."""

_closers: dict[int, Callable[[], None]] = {}
"""What closes each run, by a number."""


def close_on_sigterm(close: Callable[[], None]) -> Callable[[], None]:
    """`close` is called before SIGTERM ends this process; what is returned takes that back.

    A handler that somebody else has set, before or later, is left alone, and so is every thread but the main.
    """
    number = id(close)
    _closers[number] = close
    if _is_free(signal.SIG_DFL):
        signal.signal(signal.SIGTERM, _end)

    def forget() -> None:
        _closers.pop(number, None)
        if not _closers and _is_free(_end):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return forget


def _is_free(handler: object) -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGTERM) == handler


def _end(number: int, _: object) -> None:
    """Close all runs, and end as the signal would have ended this process.

    On a thread of their own, since this one may have been interrupted while it held what closing needs.
    """
    closing = [threading.Thread(target=close, daemon=True) for close in list(_closers.values())]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(CLOSED_WITHIN_S)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
