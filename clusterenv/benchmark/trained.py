"""A training run in a process of its own, for benchmarks that make many of them one after the other."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterenv.lifetime import describe_exit, end_with_parent, kill_tree

STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_WITHIN_S = 60.0
"""How long a run may need to save its checkpoint after Ctrl-C."""


def train(algorithm: str, argv: Sequence[str], folder: Path, log: Path, timeout_s: float) -> str | None:
    """Run `clusterenv train` to its end; None if it has ended well, else what happened.

    Args:
        algorithm: that trains.
        argv: the options of the run, but for its folder.
        folder: of the run.
        log: file for what it prints.
        timeout_s: after which it is ended.

    Raises:
        KeyboardInterrupt: if the run was interrupted: it is neither done nor failed.
    """
    command = [sys.executable, "-m", "clusterenv", "train", algorithm, *argv]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--run-dir", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches it through us, once
            preexec_fn=end_with_parent,  # no other thread runs here
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"not finished after {timeout_s:g} s"
        except KeyboardInterrupt:
            _await(process)
            raise
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()
    if code in {-number for number in STOPPED_BY} | {128 + number for number in STOPPED_BY}:
        raise KeyboardInterrupt
    return None if code == 0 else describe_exit(code)


def _await(process: subprocess.Popen[bytes]) -> None:
    """The run has been told of a Ctrl-C, and has ended or had its time to."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_WITHIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        return
