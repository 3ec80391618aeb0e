"""`clusterenv doctor` on a real cluster, and where there is none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from clusterenv import doctor
from tests.slurm.lab import NODES, Lab

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def lines(output: str, what: str) -> list[str]:
    return [line for line in output.splitlines() if line[6:].startswith(what)]


def test_doctor_finds_all_well_and_prints_the_settings(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = doctor.main(["--cpus-per-node", "2", "--partition", "main", "--shared-folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert code == 0, output
    assert "FAIL" not in output
    assert lines(output, "test job")[0].startswith("ok")
    assert "ran on node1" in output
    assert f"tcp://{lab.head_address}:" in lines(output, "way to this host")[0]
    assert lines(output, "cores granted")[0].split()[3] == "2"
    assert sys.executable in lines(output, "Python")[1]
    assert len(lines(output, "partition ")) == 7
    assert f"partition='main', cpus_per_node=2, interface='{lab.head_address}'" in output
    assert lab.active() == []
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_that_no_folder_is_shared(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in NODES:
        lab.on(node, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        code = doctor.main(["--shared-folder", str(tmp_path / "runs")])
    finally:
        for node in NODES:
            lab.on(node, "umount", "--lazy", str(tmp_path))
    output = capsys.readouterr().out
    assert code == 0, output
    assert "is not there on the node: shared_folder=None" in lines(output, "shared folder")[0]
    assert "shared_folder=None" in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--partition", "nosuch"], "invalid partition specified: nosuch"),
        (["--gpus-per-node", "1"], "gres"),
        (["--setup", "echo broken set-up; exit 9"], "broken set-up"),
        (["--partition", "short", "--time-limit", "30", "--wait-s", "4"], "PartitionTimeLimit"),
    ],
)
def test_doctor_tells_why_the_test_job_does_not_run(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    code = doctor.main([*argv, "--shared-folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert code == 1
    assert lines(output, "test job")[0].startswith("FAIL")
    assert words in output
    assert "1 of these checks failed: test job" in output
    assert lab.active() == []


def test_doctor_without_slurm_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("sbatch") is None
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "not found: sbatch, squeue, scancel, scontrol, srun, sinfo" in output
    assert "run this on a login node" in output
    assert "test job" not in output


def test_doctor_with_a_broken_cluster_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in doctor.COMMANDS:
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'no configuration source' >&2; exit 1\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert lines(output, "controller") == ["FAIL  controller              no configuration source"]
    assert "partition" not in output
