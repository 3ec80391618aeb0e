"""Logs: their ends, and what is added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusterenv.monitor.finding import find_runs
from clusterenv.monitor.logs import Log, follow, logs_of, show
from tests.monitor.runs import made_run, worker


def made_logs(place: Path) -> list[Log]:
    workers = [worker(rank, log_path=str(place / f"worker-{rank}.log")) for rank in range(2)]
    made_run(place / "clusterenv-a", workers=workers)
    for rank in range(2):
        (place / f"worker-{rank}.log").write_text(f"{rank}: one\n{rank}: two\n{rank}: three\n")
    return logs_of(find_runs()[0], None)


def after(*steps: Callable[[], object]) -> Callable[[], bool]:
    """Goes on for as long as there are steps, and takes one each time that it is asked."""
    left = list(steps)

    def goes_on() -> bool:
        if left:
            left.pop(0)()
        return bool(left)

    return goes_on


def test_last_lines_of_every_worker_are_shown_under_a_title(place: Path) -> None:
    said: list[str] = []

    show(made_logs(place), 2, said.append)

    assert "".join(said) == (
        f"==> worker 0: {place}/worker-0.log <==\n0: two\n0: three\n"
        f"==> worker 1: {place}/worker-1.log <==\n1: two\n1: three\n"
    )


def test_no_lines_are_shown_where_none_are_asked_for(place: Path) -> None:
    said: list[str] = []

    show(made_logs(place)[:1], 0, said.append)

    assert said == []


def test_many_lines_are_shown_where_many_are_asked_for(place: Path) -> None:
    (log, _) = made_logs(place)
    log.path.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 999)
    said: list[str] = []

    show([log], 1000, said.append)

    assert said == [log.path.read_text()]


def test_one_log_needs_no_title(place: Path) -> None:
    made_logs(place)
    said: list[str] = []

    show(logs_of(find_runs()[0], 1), 1, said.append)

    assert said == ["1: three\n"]
    assert logs_of(find_runs()[0], 2) == []


def test_log_that_is_not_here_is_named(place: Path) -> None:
    made_run(place / "clusterenv-a", workers=[worker(0)])
    said: list[str] = []

    show(logs_of(find_runs()[0], None), 5, said.append)

    assert said == ["(nothing is in /nowhere/worker-0.log on this host)\n"]


def test_log_of_the_job_stands_in_for_a_worker_that_has_not_begun_one(place: Path) -> None:
    made_run(place / "clusterenv-a", workers=[worker(0, job_id="12", log_path=str(place / "worker-0.log"))])
    (place / "job-12.log").write_text("slurmstepd: error\n")

    assert [log.path.name for log in logs_of(find_runs()[0], None)] == ["job-12.log"]
    (place / "worker-0.log").touch()
    assert [log.path.name for log in logs_of(find_runs()[0], None)] == ["worker-0.log"]


def test_what_is_added_is_shown_until_the_end_with_a_title_where_the_log_changes(place: Path) -> None:
    logs = made_logs(place)
    said: list[str] = []
    show(logs, 0, lambda _: None)

    def add(rank: int, text: str) -> Callable[[], object]:
        path = logs[rank].path
        return lambda: path.write_text(path.read_text() + text)

    follow(logs, said.append, after(add(1, "1: four\n"), add(0, "0: four\n"), add(0, "0: five\n")))

    assert "".join(said) == f"1: four\n==> worker 0: {place}/worker-0.log <==\n0: four\n0: five\n"


def test_letter_that_is_written_in_two_parts_is_shown_whole(place: Path) -> None:
    logs = made_logs(place)[:1]
    said: list[str] = []
    show(logs, 0, lambda _: None)

    def add(part: bytes) -> Callable[[], object]:
        return lambda: logs[0].path.write_bytes(logs[0].path.read_bytes() + part)

    follow(logs, said.append, after(add(b"caf\xc3"), add(b"\xa9 \xff\n")))

    assert "".join(said) == "caf\u00e9 \ufffd\n"


def test_longer_log_in_the_place_of_the_old_is_shown_from_its_beginning(place: Path) -> None:
    logs = made_logs(place)[:1]
    said: list[str] = []
    show(logs, 0, lambda _: None)

    def rotate() -> None:
        logs[0].path.rename(place / "worker-0.log.1")
        logs[0].path.write_text("new " * 100)

    follow(logs, said.append, after(rotate))

    assert said == ["new " * 100]


def test_log_that_cannot_be_read_is_told_like_one_that_is_not_here(place: Path) -> None:
    made_run(place / "clusterenv-a", workers=[worker(log_path=str(place))])
    said: list[str] = []

    show(logs_of(find_runs()[0], None), 2, said.append)

    assert said == [f"(nothing is in {place} on this host)\n"]


def test_log_that_was_written_anew_is_shown_from_its_beginning(place: Path) -> None:
    logs = made_logs(place)[:1]
    said: list[str] = []
    show(logs, 0, lambda _: None)

    follow(logs, said.append, after(lambda: logs[0].path.write_text("new\n")))

    assert said == ["new\n"]
