"""What runs have left in their folders, whole or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.reading import read_json, read_run, read_runs
from tests.learners.run_folders import run_folder


def test_run_tells_its_options_and_its_metrics(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path / "a", env_id="Ant-v5"))

    assert (run.name, run.algorithm, run.env_id, run.finished) == ("a", "ppo", "Ant-v5", True)
    np.testing.assert_array_equal(run.column("steps"), [10, 20, 30])
    np.testing.assert_array_equal(run.column("episode_return"), [np.nan, 2, 3])
    assert np.isnan(run.column("of another version")).all()


def test_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run is '.*'; expected the folder of a run"):
        read_run(tmp_path)


@pytest.mark.parametrize("metrics", ["", '{"steps'])
def test_run_without_a_whole_update_is_named(tmp_path: Path, metrics: str) -> None:
    folder = run_folder(tmp_path / "a", updates=0)
    (folder / "metrics.jsonl").write_text(metrics)

    with pytest.raises(ConfigError, match="expected a run with at least one update"):
        read_run(folder)


def test_line_that_a_killed_run_has_not_finished_is_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 40, "upd')

    run = read_run(folder)

    np.testing.assert_array_equal(run.column("steps"), [10, 20, 30])
    assert not run.finished


@pytest.mark.parametrize(("line", "expected"), [("{oops", "is JSON"), ("[1]", "tells steps")])
def test_line_that_is_damaged_elsewhere_is_named(tmp_path: Path, line: str, expected: str) -> None:
    folder = run_folder(tmp_path / "a")
    metrics = folder / "metrics.jsonl"
    metrics.write_text(f"{line}\n{metrics.read_text()}")

    with pytest.raises(ConfigError, match=rf"expected a run whose metrics\.jsonl {expected} in line 1"):
        read_run(folder)


def test_options_that_are_none_are_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    (folder / "config.yaml").write_text("- 1\n")

    with pytest.raises(ConfigError, match=r"expected a run whose config\.yaml holds its options"):
        read_run(folder)


def test_what_cannot_be_read_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    runs, problems = read_runs([tmp_path / "none", run_folder(tmp_path / "a")])

    assert [run.name for run in runs] == ["a"]
    assert len(problems) == 1
    assert str(tmp_path / "none") in problems[0]
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        read_runs([tmp_path / "none"])


@pytest.mark.parametrize("content", [None, "{half", "[]"])
def test_json_that_cannot_be_read_is_empty(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)

    assert read_json(path) == {}
