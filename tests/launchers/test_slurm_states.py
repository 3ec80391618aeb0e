from __future__ import annotations

import pytest

from clusterenv.launchers import WorkerState
from clusterenv.launchers.slurm_states import (
    LIMITS,
    SQUEUE_FIELDS,
    STATES,
    JobId,
    JobInfo,
    expand_cpus,
    expand_hosts,
    explain_pending,
    parse_facts,
    parse_job_id,
    parse_squeue,
    shell_status,
)


@pytest.mark.parametrize(
    ("printed", "job"),
    [
        ("7\n", JobId("7")),
        ("12;x\n", JobId("12", "x")),
        ("Submitted batch job 12\n", JobId("12")),
        ("Submitted batch job 12 on cluster x\n", JobId("12", "x")),
        ("Welcome to the cluster!\nquota: 3 of 5\n 42 \n", JobId("42")),
        ("", None),
        ("job 12 is great\n", None),
        ("sbatch: error: 12\n", None),
    ],
)
def test_job_id_is_read_in_every_form(printed: str, job: JobId | None) -> None:
    assert parse_job_id(printed) == job


def line(**values: object) -> str:
    fields = {"State": "RUNNING", "exit_code": "0", "RestartCnt": "0", "BatchHost": "n/a", **values}
    return "|".join(str(fields.get(name, "")) for name in SQUEUE_FIELDS) + "|\n"


@pytest.mark.parametrize("word", STATES)
def test_every_state_is_told_in_the_words_of_all_launchers(word: str) -> None:
    (info,) = parse_squeue(line(JobArrayID="5", State=word)).values()
    assert info.state is STATES[word]
    assert info.ended == (STATES[word] in (WorkerState.EXITED, WorkerState.FAILED))


def test_preempted_and_requeued_jobs_are_no_failures_of_the_worker() -> None:
    assert STATES["PREEMPTED"] is WorkerState.FAILED  # it has ended, and `detail` says why
    assert str(JobInfo("PREEMPTED")) == "PREEMPTED"
    assert STATES["REQUEUED"] is WorkerState.PENDING


def test_unknown_state_is_taken_for_running() -> None:
    (info,) = parse_squeue(line(JobArrayID="5", State="DREAMING")).values()
    assert info.state is WorkerState.RUNNING
    assert not info.ended


@pytest.mark.parametrize("word", ["CANCELLED by 0", "CANCELLED+", "cancelled"])
def test_state_is_the_first_word(word: str) -> None:
    (info,) = parse_squeue(line(JobArrayID="5", State=word)).values()
    assert info.word == "CANCELLED"


def test_squeue_lines_of_jobs_and_array_elements_are_read() -> None:
    printed = (
        "CLUSTER: lab\n"
        + line(JobArrayID="7", Reason="None", NodeList="node[1-2]", BatchHost="node1", Partition="main")
        + line(JobArrayID="8_2", State="PENDING", Reason="JobArrayTaskLimit")
        + line(JobArrayID="9", State="FAILED", Reason="NonZeroExitCode", exit_code=768, RestartCnt=2)
        + line(JobArrayID="10", State="CANCELLED", exit_code=15)
        + line(JobArrayID="11", State="FAILED", exit_code=137 << 8)
    )
    jobs = parse_squeue(printed)
    assert jobs["7"] == JobInfo("RUNNING", hosts=("node1", "node2"), batch_host="node1", partition="main")
    assert jobs["8_2"] == JobInfo("PENDING", "JobArrayTaskLimit")
    assert str(jobs["8_2"]) == "PENDING (JobArrayTaskLimit)"
    assert jobs["9"] == JobInfo("FAILED", "NonZeroExitCode", exit_code=3, restarts=2)
    assert (jobs["10"].exit_code, jobs["10"].signal) == (None, 15)
    assert (jobs["11"].exit_code, jobs["11"].signal) == (None, 9)
    assert len(jobs) == 5


@pytest.mark.parametrize(
    ("old", "new", "pair"),
    [
        ("0", "0:0", (0, None)),
        ("768", "3:0", (3, None)),
        ("15", "0:15", (None, 15)),
        ("35072", "137:0", (None, 9)),
        ("", "x:y", (None, None)),
    ],
)
def test_exit_codes_are_read_as_old_and_new_releases_print_them(
    old: str, new: str, pair: tuple[int | None, int | None]
) -> None:
    for text in (old, new):
        (info,) = parse_squeue(line(JobArrayID="5", State="FAILED", exit_code=text)).values()
        assert (info.exit_code, info.signal) == pair


@pytest.mark.parametrize("printed", ["", "\n", "slurm_load_jobs error\n", "a|b|c\n"])
def test_what_is_no_line_of_squeue_is_left_out(printed: str) -> None:
    assert parse_squeue(printed) == {}


@pytest.mark.parametrize(
    ("code", "pair"), [(0, (0, None)), (3, (3, None)), (137, (None, 9)), (255, (255, None))]
)
def test_shell_status_above_128_is_a_signal(code: int, pair: tuple[int | None, int | None]) -> None:
    assert shell_status(code) == pair


def test_job_that_runs_on_without_the_node_of_its_script_is_told_apart() -> None:
    assert JobInfo("RUNNING", hosts=("node2", "node3"), batch_host="node1").lost_its_script
    for info in (
        JobInfo("RUNNING", hosts=("node1", "node3"), batch_host="node1"),
        JobInfo("COMPLETING", hosts=("node2",), batch_host="node1"),
        JobInfo("RUNNING"),
        JobInfo("PENDING", batch_host=None),
    ):
        assert not info.lost_its_script


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3,07],gpu2", ["node1", "node2", "node3", "node07", "gpu2"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("a,b-c.d[1]x", ["a", "b-c.d1x"]),
        ("", []),
        ("(null)", []),
    ],
)
def test_host_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_cores_of_an_allocation_are_expanded() -> None:
    assert expand_cpus("16(x2),8") == [16, 16, 8]
    assert expand_cpus("") == []


def test_waits_that_may_last_for_ever_are_explained_with_the_limit() -> None:
    facts = parse_facts(
        "PartitionName=short MaxNodes=UNLIMITED MaxTime=00:01:00 TotalNodes=4 JobDefaults=(null)"
    )
    assert explain_pending("PartitionTimeLimit", "short", facts) == (
        "its time limit is above that of the partition (partition short: MaxTime=00:01:00)"
    )
    assert "MaxNodes=UNLIMITED, TotalNodes=4" in str(explain_pending("PartitionNodeLimit", "short", facts))
    assert explain_pending("PartitionTimeLimit", None, {}) == LIMITS["PartitionTimeLimit"][0]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "BeginTime", "JobArrayTaskLimit", ""])
def test_ordinary_waits_are_not_explained(reason: str) -> None:
    assert explain_pending(reason, "main", {}) is None
