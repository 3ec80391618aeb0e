"""Tables of runs and workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterenv.identity import ProcessIdentity
from clusterenv.monitor.finding import find_runs
from clusterenv.monitor.tables import RUN_TITLES, WORKER_TITLES, run_table, worker_table
from tests.monitor.runs import DEAD, OWN, made_run, worker


def cells(line: str) -> list[str]:
    return line.split()


def test_run_is_a_line_under_its_titles(place: Path) -> None:
    made_run(place / "clusterenv-a", workers=[worker(0), worker(1, present=False, steps_per_s=0.0)])

    titles, line = run_table(find_runs()).splitlines()

    assert cells(titles) == list(RUN_TITLES)
    run_id, state, head, script, _, _, env, launcher, workers, rate = cells(line)
    assert (run_id, state, head) == ("00000000", "running", f"{OWN.host}:{OWN.pid}")
    assert (script, env, launcher, workers, rate) == ("train.py", "CartPole-v1", "local", "1/2", "50")


def test_workers_of_a_dead_run_do_not_count(place: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)

    assert cells(run_table(find_runs()).splitlines()[1])[-2:] == ["0/2", "-"]


def test_worker_is_a_line_with_all_that_is_known(place: Path) -> None:
    well = worker(0, job_id="12_3", steps=12345, steps_per_s=1500.4)
    lost = worker(1, state="away", host=None, kl=None, restarts=4, note="was killed by signal 9")
    made_run(place / "clusterenv-a", workers=[well, lost])

    titles, first, second = worker_table(find_runs()[0]).splitlines()

    assert titles.split("  ")[0] == WORKER_TITLES[0]
    assert cells(first) == ["0", "ready", "n1", "12_3", "2", "12,345", "1,500", "0.0100", "3", "0", "-"]
    assert cells(second)[:9] == ["1", "away", "-", "-", "2", "1,000", "50", "-", "3"]
    assert second.endswith("  4         was killed by signal 9")


@pytest.mark.parametrize("head", [DEAD, OWN], ids=["dead", "alive"])
def test_old_report_says_how_old_it_is(place: Path, head: ProcessIdentity) -> None:
    made_run(place / "clusterenv-a", head=head, updated=time.time() - 7100)

    assert worker_table(find_runs()[0]).startswith("as last reported, 118 min ago:\nRANK")


def test_nothing_reaches_the_terminal_but_text(place: Path) -> None:
    made_run(place / "clusterenv-a", script="a\x1b[31m", workers=[worker(0, note="b\a\nc")])

    (run,) = find_runs()

    assert "a?[31m" in run_table([run])
    assert worker_table(run).splitlines()[1].endswith("b??c")
