"""Run one command of the system within a time limit; when it fails, say everything that it said."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterenv.errors import LaunchError


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command that succeeded has written."""

    argv: tuple[str, ...]
    stdout: str
    stderr: str


class CommandError(LaunchError):
    """A command was not found, failed, or took too long: names it, its exit code and its output."""

    def __init__(
        self,
        argv: Sequence[str],
        what: str,
        *,
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        """Say that the command `argv` did `what`, then what it wrote."""
        streams = (("stdout", stdout), ("stderr", stderr))
        written = [f"\n{name}:\n{text.rstrip()}" for name, text in streams if text.strip()]
        super().__init__(f"`{shlex.join(argv)}` {what}" + "".join(written))
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


def run(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, stdin: str = ""
) -> CommandResult:
    """The output of the command `argv`, which has ended with exit code 0.

    Args:
        argv: the program and its arguments, passed as they are; no shell reads them.
        timeout_s: after this long the command and its children are killed.
        env: its whole environment; None: that of this process.
        stdin: text that it can read.

    Raises:
        CommandError: if there is no such program, or it fails, or it takes longer than `timeout_s`.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # so that its children can be killed with it
        )
    except OSError as error:
        raise CommandError(argv, f"could not be started: {error.strerror or error}") from error
    with process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            stdout, stderr = _kill(process)
            late = f"did not end within {timeout_s:g} s"
            raise CommandError(argv, late, stdout=stdout, stderr=stderr) from None
        except BaseException:
            _kill(process)
            raise
    code = process.returncode
    if code:
        ending = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise CommandError(argv, ending, exit_code=code, stdout=stdout, stderr=stderr)
    return CommandResult(tuple(argv), stdout, stderr)


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End the process and its session; what it had written until then."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:  # a child that left the session holds the pipes
        return "", ""
