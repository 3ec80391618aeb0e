"""The head's reports: what they tell, and that nothing about them reaches the run."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from clusterenv import ClusterEnv, LocalConfig, reporting
from clusterenv.identity import ProcessIdentity
from clusterenv.launchers.base import WorkerState, WorkerStatus
from clusterenv.peers import Peer, State
from clusterenv.reporting import Reporter, describe_worker, script_name
from clusterenv.run_records import RunStatus, read_folder, read_index
from clusterenv.session import LocalSession
from clusterenv.transport import messages as m
from tests.envs import Count
from tests.monitor.runs import made_run
from tests.processes import wait_until
from tests.test_head import HELLO, welcome

LAUNCHED = WorkerStatus(
    rank=0,
    state=WorkerState.PENDING,
    pid=None,
    host="n7",
    job_id="12_3",
    exit_code=None,
    signal=None,
    log_path=Path("/logs/worker-0.log"),
)
POLICY = m.PolicyInfo(
    policy_version=3,
    kl=0.02,
    sync_count=2,
    syncs_by_reason={"first": 1},
    checks=4,
    check_s=0.1,
    kl_threshold=0.05,
)


def test_worker_is_described_by_what_head_and_launcher_know() -> None:
    peer = Peer(0, 0, 2, welcome(0, 0, 2), [], hello=HELLO, policy=POLICY, steps=10, earlier_steps=5)
    peer.state, peer.rate, peer.incarnation = State.READY, 40.0, 2
    peer.last_error = "was killed\nwith a traceback"

    told = describe_worker(peer, 5, "", [LAUNCHED])

    assert (told.state, told.present, told.host, told.job_id) == ("ready", True, "here", "12_3")
    assert (told.policy_lag, told.steps, told.steps_per_s, told.kl) == (2, 15, 40.0, 0.02)
    assert (told.sync_count, told.restarts, told.note) == (2, 2, "was killed")
    assert told.log_path == "/logs/worker-0.log"


def test_worker_that_waits_tells_why_and_has_no_kl() -> None:
    peer = Peer(0, 0, 2, welcome(0, 0, 2), [])

    told = describe_worker(peer, 0, "Slurm job 12 is PENDING (Resources)", [LAUNCHED])

    assert (told.state, told.present, told.host, told.kl) == ("starting", False, "n7", None)
    assert told.note == "Slurm job 12 is PENDING (Resources)"


def test_kl_that_is_no_number_is_left_out() -> None:
    peer = Peer(0, 0, 2, welcome(0, 0, 2), [], policy=msgspec.structs.replace(POLICY, kl=math.nan))

    assert describe_worker(peer, 5, "", [LAUNCHED]).kl is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/a/b/train.py", "--key", "secret"], "train.py"),
        (["/v/bin/clusterenv", "train", "ppo", "--seed", "1"], "clusterenv train ppo"),
        (["/v/clusterenv/__main__.py", "train", "ppo"], "clusterenv train ppo"),
        (["/v/module/__main__.py", "x"], "module"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_script_is_told_without_its_arguments(argv: list[str], expected: str) -> None:
    assert script_name(argv) == expected


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStatus:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(reporting, "REPORT_EVERY_S", 0.01)
    return made_run(tmp_path / "clusterenv-a", listed=False)


def test_reports_are_renewed_and_the_run_is_listed_until_it_ends(reported: RunStatus) -> None:
    folder, counts = Path(reported.folder), [0]

    def describe() -> RunStatus:
        counts[0] += 1
        return msgspec.structs.replace(reported, env=f"report {counts[0]}")

    reporter = Reporter(folder, describe)
    reporter.begin()
    wait_until(lambda: read_folder(folder).env == "report 5")
    assert [status.run_id for status in read_index()] == [reported.run_id]
    reporter.end(keep=False)

    count = counts[0]
    assert list(read_index()) == []
    assert not reporter._thread.is_alive()
    assert counts[0] == count


def test_last_report_says_that_the_run_has_ended_where_its_logs_are_kept(reported: RunStatus) -> None:
    reporter = Reporter(Path(reported.folder), lambda: reported)
    reporter.begin()
    assert not read_folder(Path(reported.folder)).ended

    reporter.end(keep=True)

    assert read_folder(Path(reported.folder)).ended
    assert [status.run_id for status in read_index()] == [reported.run_id]


def test_folder_that_vanishes_and_an_index_that_cannot_be_made_are_survived(
    reported: RunStatus, tmp_path: Path
) -> None:
    shutil.rmtree(reported.folder)
    (tmp_path / "state").write_text("in the way")
    reporter = Reporter(Path(reported.folder), lambda: reported)

    reporter.begin()
    reporter.report()
    reporter.end(keep=True)

    assert not Path(reported.folder).exists()


def test_description_that_fails_is_survived(reported: RunStatus) -> None:
    calls = [reported]
    reporter = Reporter(Path(reported.folder), calls.pop)
    reporter.begin()
    reporter.report()
    assert reporter._thread.is_alive()
    reporter.end(keep=False)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_run_reports_itself_from_launch_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/my script.py", "--lr", "1"])
    env = ClusterEnv([Count] * 3, LocalConfig(nodes=2, cpus_per_node=1))
    env.launch()

    (listed,) = read_index()
    (folder,) = Path(tempfile.gettempdir()).glob("clusterenv-*")
    assert env._run is not None
    assert isinstance(env._run.session, LocalSession)
    assert env._run.session._reporter is not None
    env._run.session._reporter.report()
    status = read_folder(folder)

    assert status is not None
    assert (listed.run_id, listed.folder) == (status.run_id, str(folder))
    assert status.head == ProcessIdentity.own()
    assert (status.script, status.env, status.launcher) == ("my script.py", "gymnasium", "local")
    assert [(worker.rank, worker.present) for worker in status.workers] == [(0, True), (1, True)]
    assert all(Path(worker.log_path).parent == folder for worker in status.workers)
    env.close()
    assert not folder.exists()


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_run_whose_folder_vanishes_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "REPORT_EVERY_S", 0.01)
    with ClusterEnv([Count], LocalConfig(cpus_per_node=1)) as env:
        env.reset(seed=1)
        (folder,) = Path(tempfile.gettempdir()).glob("clusterenv-*")
        folder.rename(folder.with_name("gone"))  # in one move, since reports go on
        for _ in range(20):
            env.step(env.action_space.sample())
        assert env.stats()["workers"][0]["state"] == "ready"


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_run_whose_folder_was_replaced_by_a_link_touches_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reporting, "REPORT_EVERY_S", 0.01)
    other = tmp_path / "other"
    other.mkdir()
    (other / "connection.json").write_text("of somebody else")
    with ClusterEnv([Count], LocalConfig(cpus_per_node=1)) as env:
        env.reset(seed=1)
        (folder,) = Path(tempfile.gettempdir()).glob("clusterenv-*")
        folder.rename(folder.with_name("gone"))
        folder.symlink_to(other)
        for _ in range(20):
            env.step(env.action_space.sample())

    assert [path.name for path in other.iterdir()] == ["connection.json"]
    folder.unlink()
