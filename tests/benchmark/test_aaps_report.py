from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterenv.benchmark import aaps_results as results
from clusterenv.benchmark.aaps_report import AapsReport, ordered, table, tasks_of
from clusterenv.errors import ConfigError
from tests.benchmark.test_aaps_results import row


def run(rule: str, seed: int, end: float, status: str = results.DONE, **settings: Any) -> results.Line:
    rows = [row(update, [update, update], [0.01 * update] * 2) for update in range(1, 6)]
    measured = results.measured(rows) | {"episode_return": end}
    known = {"algorithm": "ppo", "env_id": "LunarLander-v3", "total_steps": 500, "seed": seed}
    line = {"rule": rule, "seed": seed, "options": ["max_lag=64"], "settings": known | settings}
    return line | {"status": status, "wall_s": 1.0, "version": "1"} | measured


LINES = [run(rule, seed, end + seed) for rule, end in (("0", 200), ("0.05", 190)) for seed in range(1, 6)]


def test_runs_are_compared_within_their_task_by_rule_and_seed() -> None:
    again, other = run("0", 1, 250.0), run("0", 1, 9.0, env_id="CartPole-v1")
    failed = run("0.05", 6, 9.0, status=results.FAILED)

    tasks = tasks_of([*LINES, again, other, failed])

    first, second = tasks
    assert first.title == "ppo LunarLander-v3 500 steps max_lag=64"
    assert second.env_id == "CartPole-v1"
    assert [line["seed"] for line in tasks[first]["0.05"]] == [1, 2, 3, 4, 5]
    assert tasks[first]["0"][0]["episode_return"] == 250.0  # the newest of that seed
    assert first.file_name == "aaps-ppo-lunarlander-v3-max-lag-64"


def test_table_gives_differences_in_percent_and_bytes_against_a_broadcast() -> None:
    runs = tasks_of(LINES)[next(iter(tasks_of(LINES)))]

    head, _, zero, other = table(runs, runs["0"]).splitlines()

    assert head.startswith("| rule | seeds | return at the end | difference |")
    assert "| 0 | 5 | 203 [202, 204] | +0 % [" in zero
    assert "| 0.05 | 5 | 193 [192, 194] | -5 % [" in other
    assert "| 6.0 of 5 | 0.01 MB | 2.0 x | 2.0 x |" in other


def test_two_seeds_have_no_interval() -> None:
    runs = next(iter(tasks_of([line for line in LINES if line["seed"] < 3]).values()))

    assert "| 0.05 | 2 | 192 | -5 % |" in table(runs, runs["0"])


def test_rules_are_ordered_by_threshold_then_by_name() -> None:
    assert ordered(dict.fromkeys(["never", "inf", "auto", "0.5", "0", "1.0", "interval:4"])) == [
        *("0", "0.5", "1.0", "inf"),
        *("auto", "interval:4", "never"),
    ]


def test_report_prints_a_table_and_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    for line in LINES:
        results.append(path, line)

    AapsReport(results=(path,), out=tmp_path / "plots").run()

    printed = capsys.readouterr().out
    assert "## ppo LunarLander-v3 500 steps max_lag=64" in printed
    assert "| 0.05 | 5 |" in printed
    figure = tmp_path / "plots" / "aaps-ppo-lunarlander-v3-max-lag-64.png"
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_report_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected files with finished runs"):
        AapsReport(results=(tmp_path / "none.jsonl",)).run()
