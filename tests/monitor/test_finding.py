"""Which runs there are, and what has become of them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from clusterenv.monitor.finding import NoSuchRun, RunState, again, find_runs, select
from clusterenv.run_records import STATUS_FILE, read_index
from tests.monitor.runs import DEAD, ELSEWHERE, made_run


def states() -> list[RunState]:
    return [run.state for run in find_runs()]


def test_no_runs(place: Path) -> None:
    assert find_runs() == []


def test_run_of_a_living_head_is_running(place: Path) -> None:
    status = made_run(place / "clusterenv-a")

    (run,) = find_runs()

    assert (run.status, run.state, run.reported) == (status, RunState.RUNNING, True)


def test_runs_come_once_the_oldest_first_from_index_and_folders(place: Path, tmp_path: Path) -> None:
    made_run(place / "clusterenv-a", "0" * 15 + "1", since=3.0)
    made_run(place / "clusterenv-b", "0" * 15 + "2", since=2.0, listed=False)
    made_run(tmp_path / "home/.clusterenv/runs/clusterenv-c", "0" * 15 + "3", since=1.0, listed=False)
    made_run(tmp_path / "elsewhere/clusterenv-d", "0" * 15 + "4", since=0.0)

    assert [run.status.run_id[-1] for run in find_runs()] == ["4", "3", "2", "1"]


def test_other_folders_are_no_runs(place: Path) -> None:
    (place / "clusterenv-empty").mkdir(mode=0o700)
    (place / "clusterenv-file").touch()
    (place / "other").mkdir()

    assert find_runs() == []


def test_run_of_a_killed_head_is_dead(place: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)

    assert states() == [RunState.DEAD]


@pytest.mark.parametrize("over", [{"head": DEAD}, {"ended": True}])
def test_entry_of_a_run_that_is_over_and_has_no_folder_is_cleared_away(
    place: Path, over: dict[str, Any]
) -> None:
    made_run(place / "clusterenv-a", **over)
    shutil.rmtree(place / "clusterenv-a")

    assert find_runs() == []
    assert list(read_index()) == []


def test_living_head_whose_folder_is_gone_is_still_listed(place: Path) -> None:
    made_run(place / "clusterenv-a")
    shutil.rmtree(place / "clusterenv-a")

    (run,) = find_runs()

    assert (run.state, run.reported) == (RunState.RUNNING, False)
    assert again(run) is None


def test_index_stands_in_for_a_report_that_a_full_disk_prevented(place: Path) -> None:
    status = made_run(place / "clusterenv-a")
    (place / "clusterenv-a" / STATUS_FILE).unlink()

    (run,) = find_runs()

    assert (run.status, run.reported) == (status, False)


def test_head_that_cannot_be_looked_at_runs_while_it_reports(place: Path) -> None:
    made_run(place / "clusterenv-a", "0" * 15 + "1", since=1.0, head=ELSEWHERE)
    made_run(place / "clusterenv-b", "0" * 15 + "2", since=2.0, head=ELSEWHERE, updated=time.time() - 1e4)

    assert states() == [RunState.RUNNING, RunState.SILENT]


def test_run_whose_head_and_folder_are_on_another_host_is_known_by_its_entry_alone(place: Path) -> None:
    made_run(place / "clusterenv-a", head=ELSEWHERE, updated=0.0)
    shutil.rmtree(place / "clusterenv-a")

    assert states() == [RunState.ELSEWHERE]


def test_user_without_a_home_has_runs_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # which is how an unknown user is told
    made_run(place / "clusterenv-a", listed=False)

    assert states() == [RunState.RUNNING]


def test_run_whose_logs_are_kept_has_ended_whatever_its_head_does(place: Path) -> None:
    made_run(place / "clusterenv-a", "0" * 15 + "1", ended=True)
    made_run(place / "clusterenv-b", "0" * 15 + "2", ended=True, head=DEAD)

    assert states() == [RunState.ENDED, RunState.ENDED]


def test_folder_that_this_user_may_not_look_at_hides_no_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(place / "clusterenv-a", head=DEAD)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(Path, "lstat", refuse)

    (run,) = find_runs()
    assert (run.state, run.reported) == (RunState.DEAD, False)
    assert again(run) is not None


def test_run_goes_by_its_id_its_beginning_or_its_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(place / "clusterenv-a", "ab00000000000001")
    made_run(place / "clusterenv-b", "ab00000000000002")
    runs = find_runs()

    for word in ("ab00000000000002", "AB00000000000002", "clusterenv-b", str(place / "clusterenv-b")):
        assert select(runs, word).folder == place / "clusterenv-b"
    monkeypatch.chdir(place)
    for word in (f"{place}/clusterenv-b/", "./clusterenv-b/"):
        assert select(runs, word).folder == place / "clusterenv-b"
    with pytest.raises(NoSuchRun, match=r"2 runs go by 'ab'; there are: ab000000 \(train.py, pid"):
        select(runs, "ab")
    with pytest.raises(NoSuchRun, match="no run goes by 'x'; there are: ab000000"):
        select(runs, "x")
    with pytest.raises(NoSuchRun, match="no run goes by ''"):
        select(runs, "")
    with pytest.raises(NoSuchRun, match="say which run"):
        select(runs, None)


def test_only_run_needs_no_name(place: Path) -> None:
    made_run(place / "clusterenv-a")

    assert select(find_runs(), None).folder == place / "clusterenv-a"
    with pytest.raises(NoSuchRun, match="there are: none"):
        select([], None)
