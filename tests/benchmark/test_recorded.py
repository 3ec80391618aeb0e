from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from clusterenv.benchmark import main
from clusterenv.benchmark.report import Report
from clusterenv.benchmark.rollout import RolloutBenchmark


def answered(monkeypatch: pytest.MonkeyPatch, rates: Sequence[Mapping[str, float]]) -> list[str]:
    """The environments that were measured; each measurement gives the next of `rates`."""
    left, measured = list(rates), []

    def measure(self: RolloutBenchmark) -> Report:
        measured.append(self.env_id)
        return Report("", {}, {}, {name: [rate] for name, rate in left.pop(0).items()}, ())

    monkeypatch.setattr(RolloutBenchmark, "measure", measure)
    return measured


def test_ratios_that_hold_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = answered(monkeypatch, [{"clusterenv": 180, "hand_written": 100, "bare": 200}])

    assert main(["recorded", "--tasks", "CartPole-v1"]) == 0
    assert measured == ["CartPole-v1"]
    assert "CartPole-v1: rollout / hand_written 1.80, recorded" in capsys.readouterr().out


def test_best_of_the_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_twin = {"clusterenv": 180, "hand_written": 100, "bare": 1000}
    slow_loop = {"clusterenv": 180, "hand_written": 1000, "bare": 200}
    measured = answered(monkeypatch, [slow_twin, slow_loop])

    assert main(["recorded", "--tasks", "CartPole-v1"]) == 0
    assert len(measured) == 2


def test_lost_speed_is_an_error_that_tells_both_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = answered(monkeypatch, [{"clusterenv": 100, "hand_written": 100, "bare": 100}] * 2)

    assert main(["recorded", "--tasks", "CartPole-v1", "--tries", "2"]) == 2
    assert len(measured) == 2
    error = capsys.readouterr().err
    assert "rollout / hand_written is 1.00; recorded 1." in error
    assert "rollout / bare" not in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "Pong"], "one or more of CartPole-v1"),
        (["--tries", "0"], "tries"),
        (["--least", "0"], "least"),
    ],
)
def test_wrong_options_are_named(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["recorded", *options])
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())  # it comes in a frame
