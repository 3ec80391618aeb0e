"""The short form of the chaos suite, and what its checker must see."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.chaos import __main__ as long_form
from tests.chaos.calls import Taken
from tests.chaos.driver import planned, run_chaos
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import Checker, WrongRow, length_of, reward_of
from tests.chaos.report import Outcome, Part, described, part_path


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nothing_left")
def test_faults_leave_no_wrong_row_no_call_that_hangs_and_nothing_behind() -> None:
    part = Part()
    run_chaos(1, dict(enumerate(planned(1, 12))), part, seconds=150)

    assert not part.failures
    assert len(part.outcomes) >= 5
    assert part.rows > 1000
    assert {each.outcome for each in part.outcomes} <= {"rows", "error", "unharmed"}


def test_plan_has_every_kind_and_follows_from_the_seed() -> None:
    plan = planned(1, 1000)

    assert plan == planned(1, 1000)
    assert plan != planned(2, 1000)
    kinds = [kind for batch in plan for kind in batch]
    assert len(kinds) == 1000
    assert {*FAULTS, "head_killed"} <= set(kinds)
    assert min(map(kinds.count, kinds)) >= 1000 // 16


def test_report_is_read_as_it_was_written_and_tells_what_grew(tmp_path: Path) -> None:
    part = Part(
        batches=[0, 1, 2],
        seconds=90.0,
        outcomes=[
            Outcome("env_raises", "step", "error", 1.25, 0.5),
            Outcome("env_raises", "step", "rows", 3.0, 2),
        ],
        rows=7,
        rss_mb=[100.0, 110.0, 122.0],
        descriptors=[6, 7, 7],
        threads=[1, 1, 2],
    )
    part.write(tmp_path / "chaos.part0.json")

    assert Part.read(tmp_path / "chaos.part0.json") == part
    assert part.grown() == [
        "RSS in MB of the head grew from 110.0 to 122.0",
        "threads of the head grew from 1 to 2",
    ]
    assert "| env_raises | 2 | 1 | 1 | 0 | 2.1, 3.0 | 2.0 |" in described([part], seed=1)


ONE = (0, 7, 2, 1)
"""Environment 0, life 7, episode 2, step 1."""


def step_to(row: tuple[int, ...], reward: float, **info: Any) -> tuple[Any, ...]:
    arrays = {name: np.array([value]) for name, value in info.items()}
    return np.array([row], float), np.array([reward]), np.array([False]), np.array([False]), arrays


def followed() -> Checker:
    checker = Checker(1)
    checker.reset(np.array([[0, 7, 2, 0]], float))
    checker.step(step_to(ONE, reward_of(ONE)))
    return checker


@pytest.mark.parametrize(
    "step",
    [
        step_to((0, 7, 2, 3), reward_of((0, 7, 2, 3))),  # a step is missing
        step_to(ONE, reward_of(ONE)),  # one came twice
        step_to((0, 7, 2, 2), 0.5),  # a reward of another step
        step_to((0, 8, 2, 2), reward_of((0, 8, 2, 2))),  # of an environment that was built again
        step_to((1, 7, 2, 2), reward_of((1, 7, 2, 2))),  # of another environment
        step_to(ONE, 0.0, valid=False, worker_lost=True),  # a loss without truncation
        step_to((0, 8, 0, 1), 0.0, valid=False, worker_lost=False),  # back, but not at a beginning
    ],
)
def test_checker_refuses_a_row_that_cannot_come_next(step: tuple[Any, ...]) -> None:
    with pytest.raises(WrongRow, match="environment 0"):
        followed().step(step)


def test_checker_takes_a_loss_and_a_return() -> None:
    checker = followed()
    lost = step_to(ONE, 0.0, valid=False, worker_lost=True)
    lost[3][0] = True

    assert not checker.step(lost)
    assert not checker.step(step_to(ONE, 0.0, valid=False, worker_lost=False))
    assert not checker.step(step_to((0, 8, 0, 0), 0.0, valid=False, worker_lost=False))
    assert checker.step(step_to((0, 8, 0, 1), reward_of((0, 8, 0, 1))))
    assert length_of(0, 0) > 1


def arrival(number: int, incarnation: int = 0) -> Any:
    return SimpleNamespace(
        peer=SimpleNamespace(rank=1), incarnation=incarnation, message=SimpleNamespace(fragment=number)
    )


@pytest.mark.parametrize(
    "next_one",
    [arrival(8), arrival(10), arrival(6), arrival(8, incarnation=1)],
    ids=["twice", "with a gap", "late", "of a worker that was replaced"],
)
def test_fragments_that_come_twice_late_or_with_a_gap_are_refused(next_one: Any) -> None:
    taken = Taken()
    for number in (7, 8):
        taken.take(arrival(number))
    if next_one.incarnation:
        taken.take(next_one)
        next_one = arrival(9)
    with pytest.raises(WrongRow, match="came after"):
        taken.take(next_one)
    assert taken.fragments >= 2


def test_part_that_breaks_off_is_a_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "chaos.json"
    monkeypatch.setattr("sys.argv", ["chaos", "--heads", "1", "--resume", "--report", str(report)])
    monkeypatch.setattr(long_form, "_all_parts", lambda _: [1])  # as Python ends after an exception
    part = Part(outcomes=[Outcome("env_raises", "step", "error", 1.0, 1.0)])
    part.rss_mb, part.descriptors, part.threads = [250.0], [4], [1]
    part.write(part_path(report, 0))

    assert long_form.main() == 1
    assert "part 0 ended with exit code 1" in capsys.readouterr().out
