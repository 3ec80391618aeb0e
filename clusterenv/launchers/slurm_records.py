"""What the run's folder tells without asking Slurm: the exit codes that the workers' shells leave there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

READ_EVERY_S: Final = 1.0
"""Seconds between two looks, since the folder may lie on a busy file server."""


class ExitRecords:
    """Exit codes of workers by rank and incarnation, each with the restart of the job in which it ended."""

    def __init__(self, run_dir: Path) -> None:
        """Know nothing yet."""
        self._run_dir = run_dir
        self._read_at = -READ_EVERY_S
        self._found: dict[str, tuple[int, int]] = {}

    @staticmethod
    def name(rank: str, incarnation: int) -> str:
        """Name of a worker's record; `rank` may be a shell variable."""
        return f"worker-{rank}.{incarnation}.exit"

    def read(self, *, now: bool = False) -> bool:
        """Look into the folder if it is time, or `now`; whether something has changed."""
        if not now and time.monotonic() - self._read_at < READ_EVERY_S:
            return False
        self._read_at = time.monotonic()
        before = self._found
        try:
            paths = [path for path in self._run_dir.iterdir() if path.suffix == ".exit"]
            self._found = {path.name: _parse(path.read_text()) for path in paths}
        except (
            OSError,
            ValueError,
        ):  # one was just removed by a worker that starts again; the next look is soon
            return False
        return self._found != before

    def code(self, rank: int, incarnation: int, restarts: int) -> int | None:
        """The exit code, as a shell tells it, in restart `restarts` of its job or later; None: it runs."""
        code, restart = self._found.get(self.name(str(rank), incarnation), (0, -1))
        return code if restart >= restarts else None


def _parse(text: str) -> tuple[int, int]:
    code, restart = text.split()
    return int(code), int(restart)
