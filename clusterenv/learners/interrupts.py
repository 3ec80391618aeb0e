"""Signals that end a training run: the first ends it in good order, no other disturbs that."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; the end of a job, which batch systems announce; the end of a terminal."""


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS has arrived; like Ctrl-C it passes by whatever handles errors."""


class Interrupts:
    """As a context: the first signal raises `Interrupted` in the main thread, which leaves the block quietly.

    Further ones do nothing while the first unwinds, so that saving and closing go on to their end. Signals
    that the process ignores, as under `nohup`, stay ignored; handlers are put back at the end of the block.
    """

    def __init__(self) -> None:
        """Nothing has arrived."""
        self._first: signal.Signals | None = None
        self._held = False
        self._before: dict[signal.Signals, object] = {}

    @property
    def status(self) -> int:
        """The exit status, as a shell puts it: 0 without a signal, else 128 and its number."""
        return 0 if self._first is None else 128 + self._first

    def hold(self) -> None:
        """No signal raises from now on; `status` tells of it all the same."""
        self._held = True

    def __enter__(self) -> Interrupts:
        """Take the signals over; not in another thread than the main one, which gets none."""
        global _present
        _present = self
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """Give the signals back; True, which ends it, for what a signal raised."""
        global _present
        self._held = True
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        _present = None
        return isinstance(error, Interrupted)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._first is None:
            self._first = signal.Signals(number)
        if not (self._held or _is_unwinding()):
            raise Interrupted


_present: Interrupts | None = None  # the process has one set of handlers


def hold() -> None:
    """What is left of the run is its ending: no signal interrupts that any more."""
    if _present is not None:
        _present.hold()


def _is_unwinding() -> bool:
    """Whether the code that runs now is cleaning up after an `Interrupted`."""
    error = sys.exception()
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error is not None
