from __future__ import annotations

import json
from pathlib import Path

from clusterenv.benchmark.report import Report, Spread

REPORT = Report(
    title="CartPole-v1: 2 x 32",
    settings={"workers": 2},
    machine={"processor": "Some CPU", "torch": "2.13.0"},
    rates={
        "clusterenv": [300_000.0, 100_000.0, 260_000.0],
        "hand_written": [200_000.0, 100_000.0, 200_000.0],
    },
    compared=[("clusterenv", "hand_written")],
)


def test_ratio_is_paired_within_repeats() -> None:
    assert REPORT.ratio("clusterenv", "hand_written") == Spread(median=1.3, min=1.0, max=1.5)


def test_text_shows_both_rates_and_the_ratio() -> None:
    assert REPORT.text() == (
        "CartPole-v1: 2 x 32\n"
        "\n"
        "env steps/s                    median         min         max\n"
        "clusterenv                    260,000     100,000     300,000\n"
        "hand_written                  200,000     100,000     200,000\n"
        "\n"
        "ratio, paired                  median         min         max\n"
        "clusterenv / hand_written       1.300       1.000       1.500\n"
        "\n"
        "processor: Some CPU\n"
        "torch: 2.13.0\n"
    )


def test_file_holds_the_samples_spreads_ratios_and_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "out put.json"
    REPORT.write(path)
    written = json.loads(path.read_text())
    assert written["steps_per_s"]["hand_written"] == {
        "samples": [200_000.0, 100_000.0, 200_000.0],
        "median": 200_000.0,
        "min": 100_000.0,
        "max": 200_000.0,
    }
    assert written["ratios"] == {"clusterenv / hand_written": {"median": 1.3, "min": 1.0, "max": 1.5}}
    assert (written["settings"], written["machine"]["torch"]) == ({"workers": 2}, "2.13.0")
