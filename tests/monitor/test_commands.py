"""`clusterenv status`, `logs` and `stop`, from their words to what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterenv import cli
from tests.monitor.runs import DEAD, made_run, worker


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """What the command prints."""
    assert cli.main(words) == status
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_no_runs_are_told_as_such(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "status") == "no runs\n"
    assert told(capsys, "stop", "--all") == "no runs\n"
    assert "there are: none" in told(capsys, "logs", status=2)


def test_status_of_several_runs_is_a_table_and_of_one_also_its_workers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(place / "clusterenv-a", "a" * 16)
    only = told(capsys, "status")
    made_run(place / "clusterenv-b", "b" * 16)

    both = told(capsys, "status")

    assert "RANK" in only
    assert "RANK" not in both
    assert len(both.splitlines()) == 3
    assert told(capsys, "status", "aaaa") == only
    assert "no run goes by 'c'" in told(capsys, "status", "c", status=2)


def test_status_says_how_to_clear_away_what_is_left(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(place / "clusterenv-a", "a" * 16)
    made_run(place / "clusterenv-b", "b" * 16, head=DEAD)
    made_run(place / "clusterenv-c", "c" * 16, ended=True)

    assert told(capsys, "status").endswith(
        "\nto clear away what is left: clusterenv stop bbbbbbbb cccccccc\n"
    )


def test_logs_are_those_of_the_run_and_rank(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "log").write_text("one\ntwo\n")
    made_run(place / "clusterenv-a", "a" * 16, workers=[worker(0), worker(1, log_path=str(place / "log"))])

    assert told(capsys, "logs", "a", "1", "-n", "1") == "two\n"
    assert "==> worker 0" in told(capsys, "logs")
    assert "rank is 2; expected a number from 0 to 1" in told(capsys, "logs", "a", "2", status=2)
    assert "lines is -1" in told(capsys, "logs", "-n", "-1", status=2)


def test_following_the_logs_of_a_run_that_is_over_ends(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "log").write_text("one\n")
    made_run(place / "clusterenv-a", head=DEAD, workers=[worker(0, log_path=str(place / "log"))])

    assert told(capsys, "logs", "--follow") == "one\n"


def test_stop_ends_the_runs_that_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for letter in "abc":
        made_run(place / f"clusterenv-{letter}", letter * 16, head=DEAD)

    told(capsys, "stop", "a", "b", "a")
    assert [path.name for path in place.iterdir()] == ["clusterenv-c"]

    told(capsys, "stop", "--all")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["a", "--all"]])
def test_stop_needs_runs_or_all(place: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["stop", *words])

    assert "name the runs to stop, or give --all" in capsys.readouterr().err


def test_stop_has_status_1_when_a_run_goes_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.monitor.runs import ELSEWHERE

    made_run(place / "clusterenv-a", head=ELSEWHERE)

    assert "cannot be reached from here" in told(capsys, "stop", "--all", status=1)
    assert "timeout_s is nan" in told(capsys, "stop", "--all", "--timeout-s", "nan", status=2)
