"""What Slurm's commands are given and how their answers are read, by programs on PATH that record both."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import WorkerCommand
from clusterenv.launchers.command import CommandError
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_commands import Slurm, clean_environment
from clusterenv.launchers.slurm_request import SlurmRequest
from clusterenv.launchers.slurm_states import SQUEUE_FORMAT, JobId

pytestmark = pytest.mark.process
Fake = Callable[..., Path]

LEAKY = {
    "SLURM_JOB_ID": "77",
    "SLURM_CPU_BIND": "mask_cpu:0x1",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_MEM_PER_NODE": "100",
    "SLURM_NTASKS": "4",
    "SLURMD_NODENAME": "node1",
    "SBATCH_PARTITION": "gpu",
    "SRUN_DEBUG": "3",
    "PMI_RANK": "0",
    "PMI2_SIZE": "2",
    "PMIX_RANK": "0",
    "SQUEUE_FORMAT": "%i",
    "CUDA_VISIBLE_DEVICES": "0",
}
MINE = {"HOME": "/home/ada", "MY_SETTING": "a b", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """A program on PATH that records how it was called and answers as told; returns the record."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(name: str, stdout: str = "", stderr: str = "", code: int = 0) -> Path:
        record = tmp_path / f"{name}.json"
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"json.dump({{'argv': sys.argv[1:], 'env': dict(os.environ)}}, open({str(record)!r}, 'w'))\n"
            f"sys.stdout.write({stdout!r}); sys.stderr.write({stderr!r}); sys.exit({code})\n"
        )
        program.chmod(0o700)
        return record

    return make


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, value in LEAKY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_CONF", MINE["SLURM_CONF"])
    monkeypatch.setenv("MY_SETTING", MINE["MY_SETTING"])
    return Slurm(clean_environment(os.environ))


def seen(record: Path) -> tuple[list[str], dict[str, str]]:
    found = json.loads(record.read_text())
    return found["argv"], found["env"]


def launcher(slurm: Slurm, run_dir: Path, *, nodes: int = 1) -> SlurmLauncher:
    run_dir.mkdir(exist_ok=True)
    commands = tuple(WorkerCommand(("/bin/true",), secret_env={"KEY": "s3cr3t"}) for _ in range(nodes))
    return SlurmLauncher(SlurmRequest(SlurmConfig(nodes=nodes, mode="sbatch"), commands, run_dir), slurm)


def test_environment_of_the_own_allocation_does_not_leak() -> None:
    assert clean_environment({**LEAKY, **MINE}) == MINE


def test_gpus_that_the_user_has_chosen_are_kept_outside_of_an_allocation() -> None:
    assert clean_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_sbatch_sees_the_users_environment_and_the_secret_but_no_allocation(
    fake: Fake, slurm: Slurm, tmp_path: Path
) -> None:
    record = fake("sbatch", "12\n")
    assert slurm.submit(Path("/run/job.sh"), (), {"KEY": "s3cr3t"}) == JobId("12")
    argv, env = seen(record)
    assert argv == ["--parsable", "/run/job.sh"]
    assert not set(LEAKY) & set(env)
    assert env["KEY"] == "s3cr3t"
    assert env["MY_SETTING"] == "a b"
    assert env["SLURM_CONF"] == MINE["SLURM_CONF"]
    assert env["HOME"] == os.environ["HOME"]
    assert "s3cr3t" not in os.environ.values()


@pytest.mark.parametrize("printed", ["12;x\n", "Submitted batch job 12 on cluster x\n"])
def test_job_of_another_cluster_is_asked_after_and_cancelled_there(
    fake: Fake, slurm: Slurm, printed: str
) -> None:
    fake("sbatch", printed)
    job = slurm.submit(Path("/run/job.sh"), (), {})
    assert job == JobId("12", "x")
    squeue, scancel = fake("squeue", "CLUSTER: x\n12|RUNNING|None|0|0|n1|n1|p|\n"), fake("scancel")
    assert slurm.query([job])["12"].word == "RUNNING"
    slurm.cancel([job])
    assert "--clusters=x" in seen(squeue)[0]
    assert seen(scancel)[0] == ["--clusters=x", "12"]


def test_all_jobs_are_asked_after_in_one_query(fake: Fake, slurm: Slurm) -> None:
    record = fake("squeue", "7|RUNNING|None|0|0|n1|n1|p|\n9_0|PENDING|Resources|0|0||n/a|p|\n")
    jobs = slurm.query([JobId("7"), JobId("8"), JobId("9")])
    assert sorted(jobs) == ["7", "9_0"]
    assert seen(record)[0] == [
        "--noheader",
        "--array",
        "--states=all",
        "--jobs=7,8,9,7",
        f"--Format={SQUEUE_FORMAT}",
    ]


def test_refusal_is_an_error_with_all_that_was_said_and_leaves_nothing(
    fake: Fake, slurm: Slurm, tmp_path: Path
) -> None:
    fake("sbatch", "hello\n", "sbatch: error: Batch job submission failed: Invalid qos\n", code=1)
    scancel = fake("scancel")
    made = launcher(slurm, tmp_path / "run")
    with pytest.raises(CommandError) as caught:
        made.submit()
    for part in ("failed with exit code 1", "hello", "Invalid qos", str(tmp_path / "run" / "job.sh")):
        assert part in str(caught.value)
    made.cancel(timeout_s=0.1)
    assert not scancel.exists()


def test_answer_without_a_number_is_an_error(fake: Fake, slurm: Slurm) -> None:
    fake("sbatch", "all fine\n", "and a warning\n")
    with pytest.raises(LaunchError, match=r"named no job for /run/job\.sh[\s\S]*all fine\nand a warning"):
        slurm.submit(Path("/run/job.sh"), (), {})


def test_what_sbatch_says_beside_the_number_is_logged(
    fake: Fake, slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    fake("sbatch", "12\n", "sbatch: warning: your quota is nearly used\n")
    slurm.submit(Path("/run/job.sh"), (), {})
    assert "sbatch said of job 12: sbatch: warning: your quota is nearly used" in caplog.text


def test_missing_slurm_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="start on a login node, or use LocalConfig"):
        Slurm({"PATH": str(tmp_path)}).submit(Path("/run/job.sh"), (), {})


def test_steps_are_signalled_and_the_false_error_of_slurm_22_is_no_error(fake: Fake, slurm: Slurm) -> None:
    record = fake(
        "scancel",
        stderr="scancel: error: Kill job error on job step id 7: Invalid job id specified\n",
        code=225,
    )
    slurm.signal(["7.0", "7.1"], "TERM")
    assert seen(record)[0] == ["--signal=TERM", "7.0", "7.1"]
    fake("scancel", stderr="scancel: error: Access/permission denied\n", code=210)
    with pytest.raises(CommandError, match="permission denied"):
        slurm.signal(["7.0"], "TERM")


def test_facts_of_a_partition_are_none_when_slurm_does_not_answer(fake: Fake, slurm: Slurm) -> None:
    fake("scontrol", "PartitionName=p MaxTime=1:00 State=UP\n")
    assert slurm.partition("p")["MaxTime"] == "1:00"
    fake("scontrol", stderr="slurm_load_partitions error", code=1)
    assert slurm.partition("p") == {}


def test_script_is_written_for_the_user_alone(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("sbatch", "12\n")
    fake("squeue", "12|COMPLETED|None|0|0|n1|n1|p|\n")
    made = launcher(slurm, tmp_path / "run")
    made.submit()
    made.cancel(timeout_s=1.0)
    script = tmp_path / "run" / "job.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert script.read_text() == made.request().script()
    assert "s3cr3t" not in script.read_text()


def test_cancel_is_bounded_and_names_the_jobs_when_slurm_does_not_answer(
    fake: Fake, slurm: Slurm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake("sbatch", "12\n")
    for name in ("squeue", "scancel"):
        fake(name, stderr="Unable to contact slurm controller (connect failure)\n", code=1)
    made = launcher(slurm, tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        made.submit()
        made.cancel(timeout_s=0.5)
    assert "Slurm jobs could not be cancelled" in caplog.text
    assert "end them by: scancel 12" in caplog.text
