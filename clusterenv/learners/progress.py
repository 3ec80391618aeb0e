"""The progress line of a run: rewritten in place on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from clusterenv.standard_output import to_nobody_if_gone

PLAIN_INTERVAL_S = 5.0


class ProgressLine:
    """Shows the newest state of a run on standard output; without a word to nobody if that is gone."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        live = Live(console=Console(), auto_refresh=False, transient=True)
        self._live = live if live.console.is_terminal else None
        self._shown_at: float | None = None

    def show(self, line: str) -> None:
        """Put `line` in place of the one before; where that cannot be, write it if the last is old enough."""
        if self._live is not None:
            with to_nobody_if_gone():
                if not self._live.is_started:
                    self._live.start()
                self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            return
        now = time.monotonic()
        if self._shown_at is None or now - self._shown_at >= PLAIN_INTERVAL_S:
            self._shown_at = now
            self.say(line)

    def close(self) -> None:
        """Take the line away and leave the terminal as it was."""
        if self._live is not None and self._live.is_started:
            with to_nobody_if_gone():
                self._live.stop()

    def say(self, text: str) -> None:
        """Write lines that stay; not while a line is live."""
        if sys.stdout is None:  # the process was started with standard output closed
            return
        with to_nobody_if_gone():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def short_number(number: int) -> str:
    """Such as 950, 12.3k or 2.00M."""
    if number < 1000:
        return str(number)
    return f"{number / 1e3:.1f}k" if number < 1_000_000 else f"{number / 1e6:.2f}M"


def bytes_text(number: float) -> str:
    """Bytes for people, such as 512 B, 34.1 kB or 2.40 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"
