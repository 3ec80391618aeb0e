"""What every launcher promises, by jobs, job arrays and steps of a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import Launcher, WorkerCommand, WorkerState
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_allocation import Allocation, StepsRequest
from clusterenv.launchers.slurm_commands import Slurm, clean_environment
from clusterenv.launchers.slurm_request import SlurmRequest
from clusterenv.launchers.slurm_states import parse_job_id
from clusterenv.launchers.slurm_steps import StepsLauncher
from tests.launchers.contract import (
    DIE_AT_BIRTH,
    ODD_NAMES,
    SAY_AND_STAY,
    LauncherContract,
    MakeLauncher,
    python_worker,
    wait_until,
)
from tests.slurm.conftest import Record
from tests.slurm.lab import Lab, until

pytestmark = pytest.mark.process
ONE_LINE = [name for name in ODD_NAMES if "\n" not in name]
LEAVE_SLOWLY = (
    "import signal, sys, time\n"
    "def leave(*_): time.sleep(1); print('bye'); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, leave); print('worker', flush=True); time.sleep(600)"
)


def slurm_launcher(commands: list[WorkerCommand], run_dir: Path, **options: object) -> SlurmLauncher:
    config = SlurmConfig(nodes=len(commands), **options)  # type: ignore[arg-type]
    return SlurmLauncher(SlurmRequest(config, tuple(commands), run_dir), Slurm(clean_environment(os.environ)))


class OverSlurm(LauncherContract):
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {}

    @pytest.fixture
    def make(self, lab: Lab, options: dict[str, object]) -> Iterator[MakeLauncher]:
        made: list[Launcher] = []

        def make(*scripts: str, run_dir: Path, **environment: dict[str, str]) -> Launcher:
            commands = [python_worker(script, **environment) for script in scripts]
            made.append(slurm_launcher(commands, run_dir, **options))
            return made[-1]

        yield make
        for launcher in made:
            launcher.cancel(timeout_s=0.0)

    @pytest.mark.parametrize("name", ONE_LINE)
    def test_odd_paths_arguments_and_values_arrive_as_they_are(
        self, make: MakeLauncher, tmp_path: Path, name: str
    ) -> None:
        if "\\" in name:
            pytest.fail("Slurm reads no path with a backslash; SlurmConfig refuses such folders")
        super().test_odd_paths_arguments_and_values_arrive_as_they_are(make, tmp_path, name)

    def test_odd_value_of_two_lines_arrives_as_it_is(self, make: MakeLauncher, tmp_path: Path) -> None:
        value = "line\nbreak\nEND_OF_WORKER\n"
        script = f"import os; print(os.environ['ODD'] == {value!r}, os.environ['KEY'] == {value!r})"
        launcher = make(script, run_dir=tmp_path, env={"ODD": value}, secret_env={"KEY": value})
        launcher.submit()
        self.wait_for(launcher, WorkerState.EXITED)
        assert launcher.log_tail(0, lines=1) == "True True"


class TestJob(OverSlurm):
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"mode": "sbatch"}


class TestArray(OverSlurm):
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"mode": "array"}


class TestSteps(LauncherContract):
    @pytest.fixture
    def make(self, allocation: Allocation) -> Iterator[MakeLauncher]:
        made: list[Launcher] = []

        def make(*scripts: str, run_dir: Path, **environment: dict[str, str]) -> Launcher:
            commands = tuple(python_worker(script, **environment) for script in scripts)
            config = SlurmConfig(nodes=len(commands), mode="srun")
            made.append(StepsLauncher(StepsRequest.make(config, commands, run_dir, allocation), os.environ))
            return made[-1]

        yield make
        for launcher in made:
            launcher.cancel(timeout_s=0.0)

    def test_worker_gets_the_time_to_leave_by_itself(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(LEAVE_SLOWLY, LEAVE_SLOWLY, run_dir=tmp_path)
        launcher.submit()
        until(lambda: all(launcher.log_tail(r, 1) == "worker" for r in range(2)), WITHIN_S, "both have begun")
        launcher.cancel(timeout_s=10)
        assert all("bye" in launcher.log_tail(rank).splitlines() for rank in range(2))
        assert {status.exit_code for status in launcher.poll()} == {0}

    def test_respawn_starts_the_next_incarnation_and_ends_the_last(
        self, make: MakeLauncher, tmp_path: Path
    ) -> None:
        launcher = make(SAY_AND_STAY, SAY_INCARNATION, run_dir=tmp_path)
        launcher.submit()
        self.wait_for_words(launcher, 1, "incarnation 0")
        launcher.respawn(1, 1)
        self.wait_for_words(launcher, 1, "incarnation 1")
        wait_until(lambda: len(steps_of(launcher)) == 2, self.deadline_s, "two steps")

    def test_step_that_cannot_run_is_told_in_sruns_words(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, run_dir=tmp_path)
        object.__setattr__(launcher.request(), "allocation", Allocation("999999", 1))
        launcher.submit()
        (status,) = self.wait_for(launcher, WorkerState.FAILED)
        assert status.detail == "srun could not start a step"
        assert "Invalid job id specified" in launcher.log_tail(0)


def steps_of(launcher: Launcher) -> list[str]:
    job = launcher.request().allocation.job_id  # type: ignore[attr-defined]
    argv = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]
    listed = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    return [step for step in listed if step.rpartition(".")[2].isdigit()]


SAY_INCARNATION = (
    "import os, time; print('incarnation', os.environ.get('CLUSTERENV_INCARNATION', '0'), flush=True); "
    "time.sleep(600)"
)
WITHIN_S = 20.0


@pytest.fixture(params=["sbatch", "array"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launch(lab: Lab, tmp_path: Path) -> Iterator[MakeLauncher]:
    """A submitted launcher of Python scripts, cancelled afterwards."""
    made: list[SlurmLauncher] = []

    def launch(*scripts: str, **options: object) -> SlurmLauncher:
        made.append(slurm_launcher([python_worker(script) for script in scripts], tmp_path, **options))
        made[-1].submit()
        return made[-1]

    yield launch
    for launcher in made:
        launcher.cancel(timeout_s=0.0)


def test_workers_are_on_nodes_of_their_own_and_know_their_rank(lab: Lab, tmp_path: Path, mode: str) -> None:
    script = (
        "import socket, sys, time; print(*sys.argv[1:], socket.gethostname(), flush=True); time.sleep(600)"
    )
    commands = [WorkerCommand((sys.executable, "-c", script, "--rank", str(rank))) for rank in range(4)]
    launcher = slurm_launcher(commands, tmp_path, mode=mode, cpus_per_node=3)
    launcher.submit()
    try:
        until(lambda: all("--rank" in launcher.log_tail(r, 1) for r in range(4)), WITHIN_S, "all have begun")
        said = [launcher.log_tail(rank, 1).split() for rank in range(4)]
        launcher.look_soon()
        until(lambda: all(status.host for status in launcher.poll()), WITHIN_S, "hosts are known")
        assert [words[:2] for words in said] == [["--rank", str(rank)] for rank in range(4)]
        assert [status.host for status in launcher.poll()] == [words[2] for words in said]
        assert len({words[2] for words in said}) == 4
        assert {status.state for status in launcher.poll()} == {WorkerState.RUNNING}
    finally:
        launcher.cancel(timeout_s=1.0)


@pytest.mark.parametrize(
    "options", [{"mode": "sbatch"}, {"mode": "array"}, {"mode": "array", "use_srun": False}]
)
def test_worker_gets_the_time_to_leave_by_itself(launch: MakeLauncher, options: dict[str, Any]) -> None:
    launcher = launch(LEAVE_SLOWLY, LEAVE_SLOWLY, **options)
    until(lambda: all(launcher.log_tail(r, 1) == "worker" for r in range(2)), WITHIN_S, "both have begun")
    launcher.cancel(timeout_s=10)
    assert all(launcher.log_tail(rank, 1) == "bye" for rank in range(2))


def test_respawned_worker_is_a_job_of_its_own(
    launch: MakeLauncher, mode: str, lab: Lab, record: Record
) -> None:
    launcher = launch(SAY_INCARNATION, SAY_INCARNATION, mode=mode)
    until(lambda: "incarnation 0" in launcher.log_tail(1), WITHIN_S, "it has begun")
    before = launcher.poll()[1].job_id
    launcher.respawn(1, 1)
    assert launcher.poll()[1].state is WorkerState.PENDING
    took_s = until(lambda: "incarnation 1" in launcher.log_tail(1), WITHIN_S, "it is back")
    record("back after", f"{took_s:.1f} s")
    until(lambda: launcher.poll()[1].state is WorkerState.RUNNING, WITHIN_S, "it is seen to run")
    assert launcher.poll()[1].job_id != before
    assert launcher.poll()[0].state is WorkerState.RUNNING
    if mode == "array":  # the old job held no other worker
        until(lambda: lab.jobs()[before] == "CANCELLED", WITHIN_S, "the old job is cancelled")


def test_job_with_failing_setup_is_reported_with_the_end_of_its_log(
    launch: MakeLauncher, record: Record
) -> None:
    launcher = launch(SAY_AND_STAY, setup=["echo no such module; exit 7"])
    took_s = until(lambda: launcher.poll()[0].state is WorkerState.FAILED, WITHIN_S, "the job has failed")
    record("noticed after", f"{took_s:.1f} s")
    (status,) = launcher.poll()
    assert status.exit_code == 7
    assert status.detail.endswith("is FAILED (NonZeroExitCode)")
    assert launcher.log_tail(0) == "no such module"


def test_setup_lines_reach_the_workers(launch: MakeLauncher) -> None:
    names = ("FROM_SETUP", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    script = f"import os; print(*(os.environ[name] for name in {names}))"
    setup = "export FROM_SETUP='a  b'\nexport OMP_NUM_THREADS=3"
    launcher = launch(script, script, setup=setup, mode="sbatch")
    until(lambda: launcher.poll()[1].state is WorkerState.EXITED, WITHIN_S, "it has ended")
    assert launcher.log_tail(1, 1) == "a  b 3 3"


@pytest.mark.parametrize(
    ("options", "reason", "limit"),
    [
        ({"nodes": 2, "partition": "small"}, "PartitionNodeLimit", "MaxNodes=1"),
        ({"partition": "short", "time_limit": "5"}, "PartitionTimeLimit", "MaxTime=00:01:00"),
        ({"directives": {"hold": True}}, "JobHeldUser", "scontrol release"),
    ],
)
def test_impossible_job_is_told_with_the_limit_that_it_hit(
    lab: Lab,
    tmp_path: Path,
    options: dict[str, object],
    reason: str,
    limit: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = int(options.pop("nodes", 1))
    launcher = slurm_launcher([python_worker(SAY_AND_STAY)] * nodes, tmp_path, mode="sbatch", **options)
    launcher.submit()
    try:
        told = f"is PENDING ({reason}) and may never start: "
        until(lambda: told in launcher.poll()[0].detail, WITHIN_S, "the reason is known")
        assert launcher.poll()[0].state is WorkerState.PENDING
        assert limit in launcher.poll()[0].detail
        assert limit in caplog.text
    finally:
        launcher.cancel(timeout_s=5.0)
    assert lab.active() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nosuch"}, "invalid partition specified: nosuch"),
        ({"constraint": "nofeature"}, "Invalid feature specification"),
        ({"mem": "999G"}, "Memory specification can not be satisfied"),
        ({"directives": {"bogus": 3}}, "unrecognized option"),
        ({"gpus_per_node": 1}, "gres"),
    ],
)
def test_refused_job_is_an_error_with_all_that_sbatch_said(
    lab: Lab, tmp_path: Path, options: dict[str, object], words: str
) -> None:
    launcher = slurm_launcher([python_worker(SAY_AND_STAY)], tmp_path, mode="sbatch", **options)
    with pytest.raises(LaunchError) as caught:
        launcher.submit()
    assert words in str(caught.value)
    assert str(tmp_path / "job.sh") in str(caught.value)
    assert lab.active() == []


def test_cancel_ends_pending_jobs_too(launch: MakeLauncher, lab: Lab) -> None:
    launcher = launch(*[SAY_AND_STAY] * 6, mode="array", exclusive=True)
    running = WorkerState.RUNNING
    until(lambda: sum(s.state is running for s in launcher.poll()) == 4, WITHIN_S, "four run")
    assert sum(status.state is WorkerState.PENDING for status in launcher.poll()) == 2
    launcher.cancel(timeout_s=5.0)
    launcher.cancel(timeout_s=5.0)
    assert lab.active() == []


def test_worker_without_srun_is_reported_as_any_other(launch: MakeLauncher) -> None:
    launcher = launch(SAY_AND_STAY, DIE_AT_BIRTH, mode="array", use_srun=False)
    until(lambda: launcher.poll()[1].state is WorkerState.FAILED, WITHIN_S, "one has failed")
    assert (launcher.poll()[1].exit_code, launcher.poll()[0].state) == (3, WorkerState.RUNNING)
    assert launcher.log_tail(1, 1) in ("one", "no such module: two")


def test_one_dead_worker_of_a_job_leaves_its_job_running(launch: MakeLauncher, lab: Lab) -> None:
    launcher = launch(SAY_AND_STAY, DIE_AT_BIRTH, SAY_AND_STAY, mode="sbatch")
    until(lambda: launcher.poll()[1].state is WorkerState.FAILED, WITHIN_S, "one has failed")
    assert launcher.poll()[1].exit_code == 3
    time.sleep(2.0)  # what would end the others takes this long
    assert [launcher.poll()[rank].state for rank in (0, 2)] == [WorkerState.RUNNING] * 2


def test_job_ids_are_read_from_the_real_sbatch(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    for options in ([], ["--parsable"]):
        printed = lab.tell("sbatch", "--output=/dev/null", *options, str(script))
        job = parse_job_id(printed)
        assert job is not None
        assert str(job) in lab.jobs()
