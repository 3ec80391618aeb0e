"""Learning curves in the form that TensorBoard reads."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]  # it has no types
    Event,
    SessionLog,
)
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]


class Board:
    """One file of events, written by the caller's thread, so that it is the caller who meets a full disk.

    TensorBoard's own writer has a thread, which would leave a traceback and let training go on.
    """

    def __init__(self, folder: Path) -> None:
        """Make the file in `folder`, with nothing to show in it yet."""
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=now, file_version="brain.Event:2"))

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Add one point to each of the curves."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def go_on_from(self, step: int) -> None:
        """What other files of the folder show at later steps is no longer shown."""
        self._write(
            Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START))
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()
