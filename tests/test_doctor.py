"""The doctor where there is no cluster: Slurm's commands are programs that answer badly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterenv import cli, doctor
from clusterenv.launchers.slurm_states import SQUEUE_FIELDS
from tests.processes import wait_until

GOOD = {
    "sbatch": "echo slurm 24.11.0",
    "scontrol": "echo Slurmctld is UP",
    "sinfo": "echo 'a|up|1|2|3|4|gpu'",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in doctor.COMMANDS:
        program(tmp_path, name, GOOD.get(name, "exit 1"))
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o700)


def table(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    status = cli.main(["doctor", "--no-job", *words])
    output = capsys.readouterr().out
    assert status == ("FAIL" in output)
    return output


def test_commands_that_answer_well_are_believed(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = table(capsys)

    assert "ok    commands                slurm 24.11.0\n" in output
    assert "ok    controller              Slurmctld is UP\n" in output
    assert "-     partition a             up, time limit 1, 2 nodes of 3 cores and 4 MB, gres gpu\n" in output


@pytest.mark.parametrize(
    ("name", "what"), [("sbatch", "commands"), ("scontrol", "controller"), ("sinfo", "partitions")]
)
@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ("", "nothing was printed"),
        (r"printf '\033]0;title\007 \377 %s\n' a b c", "?]0;title? \ufffd a"),
        ("head -c 100000 /dev/zero | tr '\\0' y", "y" * 200),
        ("echo 'fatal: no configuration' >&2; exit 1", "fatal: no configuration"),
    ],
)
def test_nonsense_of_a_command_is_a_failed_check_of_one_line(
    programs: Path, capsys: pytest.CaptureFixture[str], name: str, what: str, answer: str, seen: str
) -> None:
    program(programs, name, answer)

    (line,) = [line for line in table(capsys).splitlines() if line[6:].startswith(f"{what} ")]

    assert line.startswith("FAIL")
    assert line.endswith(seen)


@pytest.mark.parametrize("wait_s", ["nan", "-1", "0"])
def test_wait_is_a_number_of_seconds(wait_s: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", f"--wait-s={wait_s}"]) == 2
    assert "wait_s is" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_doctor_that_a_signal_ends_leaves_no_job(
    programs: Path, tmp_path: Path, number: signal.Signals
) -> None:
    cancelled, runs = tmp_path / "cancelled", tmp_path / "runs"
    facts = {"JobArrayID": "77", "State": "PENDING", "Reason": "Priority"}
    line = "|".join(facts.get(name, "") for name in SQUEUE_FIELDS)
    program(programs, "sbatch", f'[ "$1" = --version ] && echo slurm || {{ touch {tmp_path}/job; echo 77; }}')
    program(programs, "squeue", f"[ -e {cancelled} ] || echo '{line}|'")
    program(programs, "scancel", f"touch {cancelled}")

    argv = [sys.executable, "-m", "clusterenv", "doctor", "--shared-folder", str(runs)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "job").exists())
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number

    assert cancelled.exists()
    assert list(runs.iterdir()) == []
