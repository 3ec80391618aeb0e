"""When Slurm is asked, and what is known in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launchers.slurm_states import GONE, JobId, JobInfo
from clusterenv.launchers.slurm_watch import QUICK_S, SLOWEST_S, STEADY_S, JobWatch, Pace
from tests.processes import wait_until

MakeWatch = Callable[..., JobWatch]
WAITING, RUNNING = JobInfo("PENDING", "Priority"), JobInfo("RUNNING")


class Cluster:
    """Answers queries from a table, or not at all."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobInfo] = {}
        self.asked: list[list[str]] = []
        self.away = False
        self.hangs = threading.Event()
        self.changes: list[tuple[str, JobInfo]] = []

    def query(self, jobs: list[JobId], timeout_s: float) -> dict[str, JobInfo]:
        self.asked.append([job.number for job in jobs])
        if self.away:
            raise LaunchError("Unable to contact slurm controller")
        if self.hangs.is_set():
            time.sleep(timeout_s)
        return dict(self.jobs)

    def on_change(self, key: str, info: JobInfo) -> None:
        self.changes.append((key, info))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[JobWatch]:
    watch = JobWatch(cluster.query, cluster.on_change)
    yield watch
    watch.stop()


def test_number_that_slurm_gives_out_again_is_a_new_job(cluster: Cluster, watch: JobWatch) -> None:
    watch.add(JobId("7"), 0)
    assert watch.refresh()
    assert watch.info("7") == GONE
    cluster.jobs["7"] = RUNNING
    watch.add(JobId("7"), 0)
    assert watch.running() == [JobId("7")]
    assert watch.refresh()
    assert watch.info("7") == RUNNING


def test_pace_is_quick_at_first_then_steady_then_slow() -> None:
    pace = Pace()
    assert [pace.next_s(waiting=False) for _ in QUICK_S] == list(QUICK_S)
    assert [pace.next_s(waiting=False) for _ in range(5)] == [30.0, 60.0, 120.0, 240.0, 240.0]
    assert SLOWEST_S < 300  # for so long Slurm remembers a job that has ended


def test_pace_stays_steady_while_a_job_waits_and_never_asks_more_often() -> None:
    pace = Pace()
    waits = [pace.next_s(waiting=True) for _ in range(20)]
    assert waits[len(QUICK_S) :] == [STEADY_S] * (20 - len(QUICK_S))


def test_pace_is_quick_again_after_a_change() -> None:
    pace = Pace()
    for _ in range(10):
        pace.next_s(waiting=False)
    pace.restart()
    assert pace.next_s(waiting=False) == QUICK_S[0]


def test_reading_never_waits_for_slurm(cluster: Cluster, watch: JobWatch) -> None:
    cluster.hangs.set()
    watch.add(JobId("1"), 0)
    wait_until(lambda: cluster.asked)
    began = time.monotonic()
    assert watch.info("1") is None
    assert watch.running() == [JobId("1")]
    assert not watch.refresh(0.1)
    assert time.monotonic() - began < 1.0
    cluster.hangs.clear()


def test_changes_are_seen_soon_and_told_once(cluster: Cluster, watch: JobWatch) -> None:
    cluster.jobs["1"] = WAITING
    watch.add(JobId("1"), 0)
    wait_until(lambda: watch.info("1") == WAITING)
    cluster.jobs["1"] = RUNNING
    wait_until(lambda: watch.info("1") == RUNNING)
    watch.refresh()
    assert cluster.changes == [("1", WAITING), ("1", RUNNING)]


def test_all_jobs_and_elements_share_a_query_and_ended_ones_are_not_asked_after(
    cluster: Cluster, watch: JobWatch
) -> None:
    cluster.jobs |= {"1": JobInfo("COMPLETED"), "2_0": RUNNING, "2_1": JobInfo("FAILED", exit_code=1)}
    watch.add(JobId("1"), 0)
    watch.add(JobId("2"), 2)
    watch.refresh()
    watch.refresh()
    assert cluster.asked[-1] == ["2"]
    assert watch.running() == [JobId("2")]
    assert (watch.info("2_1") or RUNNING).exit_code == 1


def test_job_that_slurm_has_forgotten_has_ended(cluster: Cluster, watch: JobWatch) -> None:
    watch.add(JobId("1"), 0)
    assert watch.refresh()
    assert watch.info("1") == GONE
    assert watch.running() == []


def test_silence_of_slurm_is_told_once_and_what_is_known_stays(
    cluster: Cluster, watch: JobWatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.jobs["1"] = RUNNING
    watch.add(JobId("1"), 0)
    assert watch.refresh()
    cluster.away = True
    assert not watch.refresh()
    assert not watch.refresh()
    assert watch.info("1") == RUNNING
    assert watch.silent_s > 0
    cluster.away = False
    assert watch.refresh()
    assert watch.silent_s == 0
    assert caplog.text.count("Slurm does not answer; the workers run on") == 1
    assert caplog.text.count("Slurm answers again") == 1


def test_look_soon_asks_again_although_the_next_look_is_far(cluster: Cluster, watch: JobWatch) -> None:
    cluster.jobs["1"] = RUNNING
    watch._pace._looks = 100
    watch._pace.restart = lambda: None  # type: ignore[method-assign]
    watch.add(JobId("1"), 0)
    count = len(cluster.asked)
    watch.look_soon()
    wait_until(lambda: len(cluster.asked) > count, within_s=5.0)


def test_nothing_is_asked_after_stop(cluster: Cluster, watch: JobWatch) -> None:
    cluster.jobs["1"] = RUNNING
    watch.add(JobId("1"), 0)
    wait_until(lambda: cluster.asked)
    watch.stop()
    thread = watch._thread
    assert thread is not None
    thread.join(timeout=5.0)
    assert not thread.is_alive()
