from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from clusterenv.errors import LaunchError
from clusterenv.launchers.command import CommandError, run

from .contract import wait_until


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_run_gives_the_output_of_a_command() -> None:
    result = run(
        python("import sys; print(sys.stdin.read()); print('e', file=sys.stderr)"), timeout_s=20, stdin="héy"
    )
    assert (result.stdout, result.stderr) == ("héy\n", "e\n")


def test_run_passes_odd_arguments_as_they_are() -> None:
    odd = 'it\'s; "$HOME" `id`\n'
    assert run([*python("import sys; print(sys.argv[1], end='')"), odd], timeout_s=20).stdout == odd


def test_run_uses_the_given_environment_alone() -> None:
    result = run(
        python("import os; print('HOME' in os.environ, os.environ['A'])"), timeout_s=20, env={"A": "b"}
    )
    assert result.stdout == "False b\n"


def test_failed_command_is_an_error_with_everything_it_said() -> None:
    with pytest.raises(CommandError) as caught:
        run(python("import sys; print('some output'); sys.exit('invalid partition')"), timeout_s=20)
    error = caught.value
    assert isinstance(error, LaunchError)
    assert (error.exit_code, error.stdout, error.stderr) == (1, "some output\n", "invalid partition\n")
    assert "failed with exit code 1\nstdout:\nsome output\nstderr:\ninvalid partition" in str(error)


def test_command_ended_by_a_signal_is_an_error_that_names_it() -> None:
    with pytest.raises(CommandError, match="was ended by signal 9"):
        run(python("import os; os.kill(os.getpid(), 9)"), timeout_s=20)


def test_command_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(CommandError, match="`no-such-sbatch --parsable` could not be started: No such file"):
        run(["no-such-sbatch", "--parsable"], timeout_s=20)


def test_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    started = time.monotonic()
    with pytest.raises(CommandError, match=r"did not end within 1\.5 s\nstdout:\n\d+") as caught:
        run(python(script), timeout_s=1.5)
    assert time.monotonic() - started < 20
    child = int(caught.value.stdout)
    wait_until(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
        5,
        "the child is gone",
    )
