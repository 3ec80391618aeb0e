"""What the launcher makes of Slurm's answers, in situations that take a real cluster minutes or good luck."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import WorkerCommand, WorkerState, WorkerStatus
from clusterenv.launchers import slurm as slurm_module
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_request import SlurmRequest
from clusterenv.launchers.slurm_states import JobId, JobInfo
from tests.processes import wait_until

RUNNING = JobInfo("RUNNING", hosts=("n1", "n2"), batch_host="n1", partition="p")
Make = Callable[..., SlurmLauncher]


class Cluster:
    """Slurm's commands, answered from a table of jobs."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobInfo] = {}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.first = RUNNING
        self.slow_s = 0.0
        self.asked = 0
        self.refuses = False

    def submit(self, script: Path, arguments: Sequence[str], secret_env: Mapping[str, str]) -> JobId:
        self.asked += 1
        time.sleep(self.slow_s)
        if self.refuses:
            raise LaunchError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        self.submitted.append(script.name)
        number = str(len(self.submitted))
        self.jobs[number] = self.first
        return JobId(number)

    def query(self, jobs: Iterable[JobId], timeout_s: float = 1.0) -> dict[str, JobInfo]:
        return dict(self.jobs)

    def cancel(self, jobs: Iterable[JobId], *, timeout_s: float = 1.0) -> None:
        for job in jobs:
            self.cancelled.append(str(job))
            self.jobs[str(job)] = replace(self.jobs.get(str(job), RUNNING), word="CANCELLED", signal=15)

    def partition(self, name: str) -> dict[str, str]:
        return {}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def make(cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    made: list[SlurmLauncher] = []

    def make(nodes: int = 2, **options: object) -> SlurmLauncher:
        config = SlurmConfig(nodes=nodes, **{"mode": "sbatch", **options})  # type: ignore[arg-type]
        commands = tuple(WorkerCommand(("/bin/true", str(rank))) for rank in range(nodes))
        made.append(SlurmLauncher(SlurmRequest(config, commands, tmp_path), cluster))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for launcher in made:
        launcher.cancel(timeout_s=0.0)


def known(launcher: SlurmLauncher, rank: int = 0) -> WorkerStatus:
    assert launcher._watch.refresh()
    return launcher.poll()[rank]


def ends(tmp_path: Path, rank: int, code: int, *, incarnation: int = 0, restarts: int = 0) -> None:
    (tmp_path / f"worker-{rank}.{incarnation}.exit").write_text(f"{code} {restarts}\n")


def test_worker_is_told_by_its_own_exit_code_and_the_others_by_their_job(
    make: Make, cluster: Cluster, tmp_path: Path
) -> None:
    launcher = make()
    launcher.submit()
    ends(tmp_path, 1, 137)
    launcher._records.read(now=True)
    status = known(launcher, 1)
    assert (status.state, status.exit_code, status.signal) == (WorkerState.FAILED, None, 9)
    assert known(launcher, 0).state is WorkerState.RUNNING
    assert (status.host, status.job_id, status.detail) == ("n2", "1", "Slurm job 1 is RUNNING")


def test_hosts_are_those_of_the_start_although_slurm_strikes_lost_ones(make: Make, cluster: Cluster) -> None:
    launcher = make(3)
    cluster.first = replace(RUNNING, hosts=("n1", "n2", "n3"))
    launcher.submit()
    assert [known(launcher, rank).host for rank in range(3)] == ["n1", "n2", "n3"]
    cluster.jobs["1"] = replace(RUNNING, hosts=("n1", "n3"))
    assert [known(launcher, rank).host for rank in range(3)] == ["n1", "n2", "n3"]


def test_requeued_job_is_waited_for_and_not_replaced(make: Make, cluster: Cluster, tmp_path: Path) -> None:
    launcher = make()
    launcher.submit()
    ends(tmp_path, 0, 0)
    cluster.jobs["1"] = JobInfo("PENDING", "BeginTime", restarts=1)
    launcher._records.read(now=True)
    assert known(launcher).state is WorkerState.PENDING
    launcher.respawn(0, 1)
    wait_until(lambda: launcher.poll()[0].detail == "Slurm job 1 is PENDING (BeginTime)")
    cluster.jobs["1"] = replace(RUNNING, restarts=1)
    assert known(launcher).state is WorkerState.RUNNING  # the exit code is that of its first run
    assert cluster.submitted == ["job.sh"]
    assert cluster.cancelled == []


def test_job_that_is_ending_is_given_the_time_to_go_back_into_the_queue(make: Make, cluster: Cluster) -> None:
    launcher = make(1)
    launcher.submit()
    cluster.jobs["1"] = replace(RUNNING, word="COMPLETING")
    launcher.respawn(0, 1)
    time.sleep(0.2)
    assert launcher.poll()[0].detail == "is being submitted"
    cluster.jobs["1"] = JobInfo("PENDING", "BeginTime", restarts=1)
    wait_until(lambda: "BeginTime" in launcher.poll()[0].detail)
    assert cluster.cancelled == []


def test_replacement_of_a_silent_worker_ends_its_old_job_if_that_holds_no_other(
    make: Make, cluster: Cluster
) -> None:
    launcher = make(2)
    launcher.submit()
    launcher.respawn(1, 1)
    wait_until(lambda: cluster.submitted == ["job.sh", "job-1.1.sh"])
    launcher.respawn(1, 2)
    wait_until(lambda: cluster.submitted[-1] == "job-1.2.sh")
    assert cluster.cancelled == ["2"]
    wait_until(lambda: known(launcher, 1).job_id == "3")
    assert known(launcher, 0).job_id == "1"


def test_replacement_that_slurm_refuses_is_a_failed_worker_with_the_reason(
    make: Make, cluster: Cluster
) -> None:
    launcher = make()
    launcher.submit()
    cluster.refuses = True
    launcher.respawn(1, 1)
    wait_until(lambda: launcher.poll()[1].state is WorkerState.FAILED)
    assert "QOSMaxSubmitJobPerUserLimit" in launcher.poll()[1].detail
    cluster.refuses = False
    launcher.respawn(1, 2)
    wait_until(lambda: known(launcher, 1).state is WorkerState.RUNNING)


def test_job_without_its_script_is_cancelled_and_its_workers_have_failed(
    make: Make, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = make()
    launcher.submit()
    assert known(launcher).state is WorkerState.RUNNING
    cluster.jobs["1"] = replace(RUNNING, hosts=("n2",))
    assert {known(launcher, rank).state for rank in range(2)} == {WorkerState.FAILED}
    assert cluster.cancelled == ["1"]
    assert "Slurm job 1 has lost n1, where its script ran" in caplog.text


def test_job_that_could_not_open_its_log_says_what_to_set(
    make: Make, cluster: Cluster, tmp_path: Path
) -> None:
    launcher = make(1)
    cluster.first = JobInfo("FAILED", "JobLaunchFailure", signal=53)
    launcher.submit()
    status = known(launcher)
    assert (status.state, status.exit_code, status.signal) == (WorkerState.FAILED, None, None)
    assert f"perhaps because {tmp_path} is not there on its node; set shared_folder to" in status.ending


@pytest.mark.parametrize("word", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_end_of_a_job_is_told_in_slurms_word(make: Make, cluster: Cluster, word: str) -> None:
    launcher = make(1)
    cluster.first = JobInfo(word)
    launcher.submit()
    assert known(launcher).state is WorkerState.FAILED
    assert known(launcher).ending == f"is failed: Slurm job 1 is {word}"


def test_long_wait_is_told_once_for_each_reason(
    make: Make, cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_module, "PATIENCE_S", 0.0)
    launcher = make(6, mode="array")
    cluster.jobs |= {f"1_{rank}": JobInfo("PENDING", "Priority") for rank in range(6)}
    launcher.submit()
    for _ in range(3):
        known(launcher)
    assert (
        caplog.text.count("Slurm jobs wait in the queue: 1_0, 1_1, 1_2, and 3 more: PENDING (Priority)") == 1
    )
    cluster.jobs["1_0"] = RUNNING
    known(launcher)
    assert "1_1, 1_2, 1_3, and 2 more: PENDING (Priority)" in caplog.text
    cluster.jobs |= {f"1_{rank}": RUNNING for rank in range(6)}
    known(launcher)
    assert caplog.text.count("no Slurm job waits any more") == 1


def test_interrupt_during_submission_does_not_lose_the_job(make: Make, cluster: Cluster) -> None:
    launcher = make()
    cluster.slow_s = 0.5
    timer = threading.Timer(
        0.1, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    )
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launcher.submit()
    launcher.cancel(timeout_s=2.0)
    assert cluster.submitted == ["job.sh"]
    assert cluster.cancelled == ["1"]


@pytest.mark.parametrize("replacement", [False, True], ids=["first", "replacement"])
def test_job_that_is_accepted_after_the_end_is_cancelled_then(
    make: Make,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replacement: bool,
) -> None:
    monkeypatch.setattr(slurm_module, "AT_LEAST_S", 0.05)
    launcher = make(1)
    if replacement:
        launcher.submit()
        cluster.jobs["1"] = JobInfo("FAILED", exit_code=1)
    cluster.slow_s = 1.0
    if replacement:
        launcher.respawn(0, 1)
        wait_until(lambda: cluster.asked == 2)
    else:
        threading.Timer(0.1, lambda: launcher.cancel(timeout_s=0.0)).start()
        launcher.submit()
    launcher.cancel(timeout_s=0.0)
    wait_until(lambda: bool(cluster.cancelled), 5.0)
    assert cluster.cancelled == ["2" if replacement else "1"]
    assert "sbatch has not answered yet" in caplog.text


def test_cancel_leaves_a_job_alone_that_ends_by_itself(
    make: Make, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = make(1)
    launcher.submit()
    known(launcher)
    ends(tmp_path, 0, 0)
    cluster.jobs["1"] = JobInfo("COMPLETED")
    with caplog.at_level(logging.WARNING):
        launcher.cancel(timeout_s=2.0)
    assert cluster.cancelled == []
    assert caplog.text == ""


def test_nothing_is_started_again_after_cancel(make: Make, cluster: Cluster) -> None:
    launcher = make()
    launcher.submit()
    launcher.cancel(timeout_s=1.0)
    with pytest.raises(LaunchError, match="cancelled"):
        launcher.respawn(0, 1)
    assert cluster.cancelled == ["1"]
