from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from clusterenv.benchmark import aaps_results as results
from clusterenv.errors import ConfigError

SETTINGS: dict[str, Any] = {"algorithm": "ppo", "seed": 1, "learning_rate": 1e-3, "hidden": [64, 64]}


def line(status: str = results.DONE, version: str = "1", **changed: Any) -> results.Line:
    return {"status": status, "version": version, "settings": SETTINGS | changed}


def test_lines_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    assert results.load(path) == []
    results.append(path, line())
    results.append(path, line(seed=2))

    assert results.load(path) == [line(), line(seed=2)]


@pytest.mark.parametrize("begun", ['{"status": "do', '{"status": "done"}'], ids=["broken", "whole"])
def test_line_that_a_killed_sweep_has_begun_is_left_out_and_then_taken_away(
    tmp_path: Path, begun: str
) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, line())
    with path.open("a") as file:
        file.write(begun)
    assert results.load(path) == [line()]

    results.append(path, line(seed=2))

    assert [json.loads(text) for text in path.read_text().splitlines()] == [line(), line(seed=2)]


def test_file_that_holds_something_else_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("{}\nno JSON\n{}\n")

    with pytest.raises(ConfigError, match="expected JSON in line 2"):
        results.load(path)


def test_run_is_there_only_if_it_ended_well_with_the_same_settings_and_version() -> None:
    def there(of: results.Line, **settings: Any) -> bool:
        return results.has(of, SETTINGS | settings, SETTINGS, "1")

    assert there(line())
    assert there(json.loads(json.dumps(line())))
    assert not there(line(seed=2))
    assert not there(line(), learning_rate=2e-3)
    assert not there(line(status=results.FAILED))
    assert not there(line(version="2"))
    assert not there(line(option_of_old=1))


def test_option_that_came_later_counts_as_having_had_its_default() -> None:
    defaults = SETTINGS | {"clip_around": "target"}

    assert results.has(line(), SETTINGS | {"clip_around": "target"}, defaults, "1")
    assert not results.has(line(), SETTINGS | {"clip_around": "behaviour"}, defaults, "1")


def row(update: int, checks: list[int], kl: list[float | None]) -> dict[str, Any]:
    return {
        "steps": 100 * update,
        "updates": update,
        "seconds": 0.5 * update,
        "episode_return": None if update == 1 else float(update),
        "rows_by_lag": {"0": 60, str(update): 40},
        "weight_bytes_sent": 1000 * update,
        "check_bytes_sent": 10 * update,
        "broadcast_bytes": 2000 * update,
        "kl_k3": 0.01 * update,
        "workers": [
            {"kl": k, "checks": c, "kl_threshold": 0.05, "syncs_by_reason": {"first": 1, "divergence": c}}
            for c, k in zip(checks, kl, strict=True)
        ],
    }


def test_line_holds_what_tables_and_plots_need() -> None:
    rows = [row(1, [0, 0], [0.0, 0.0]), row(2, [1, 0], [0.02, 0.0]), row(10, [1, 1], [0.02, None])]

    found = results.measured(rows)

    assert found["steps"] == 1000
    assert found["episode_return"] == 10.0
    assert found["syncs_by_worker"] == [{"first": 1, "divergence": 1}] * 2
    assert found["bytes"] == {"weight": 10_000, "check": 100, "broadcast": 20_000}
    assert found["curves"]["steps"] == [100, 200, 1000]
    assert found["curves"]["episode_return"] == [None, 2.0, 10.0]
    assert found["curves"]["syncs_by_worker"] == [[1, 1], [2, 1], [2, 2]]
    assert found["rows_by_lag"] == {"0": 180, "1": 40, "2": 40, "10": 40}
    assert found["update_kl"]["quartiles"][1] == pytest.approx(0.02)
    json.dumps(found, allow_nan=False)


def test_each_comparison_is_counted_once_with_the_divergence_it_found() -> None:
    rows = [row(1, [1, 0], [0.02, 0.0]), row(2, [1, 1], [0.02, None]), row(3, [2, 1], [2e-9, None])]

    counts = results.measured(rows)["kl_at_checks"]["counts"]

    bins = dict(enumerate(counts))
    found = {results.KL_EDGES[i]: bins[i] for i in bins if bins[i]}
    assert sum(counts) == 3
    assert found.pop(0.0) == 1
    assert found.pop(max(found)) == 1  # not finite
    assert [0.01 < edge * 1.001 < 0.02 for edge in found] == [True]


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    curves = results.measured([row(n, [0], [0.0]) for n in range(1, 3001)])["curves"]

    assert len(curves["steps"]) == results.LONGEST_CURVE
    assert curves["steps"][-1] == 300_000
    assert math.isclose(curves["weight_bytes"][-1], 3e6)
