"""Learning curves from run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners import plot as plotting


def run_folder(folder: Path, updates: int = 3) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("workers: 2\n")
    rows = [
        {"steps": 10 * i, "updates": i, "syncs": i // 2, "episode_return": None if i < 2 else float(i)}
        for i in range(1, updates + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_plot_writes_a_picture_of_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_folder(tmp_path / name) for name in ("a", "b")]
    out = tmp_path / "pictures" / "curves.png"

    assert plotting.main([*map(str, runs), "--out", str(out)]) == 0

    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {out}\n"


def test_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run is '.*'; expected the folder of a run"):
        plotting.plot([tmp_path], tmp_path / "x.png")


def test_run_without_an_update_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a run with at least one update"):
        plotting.plot([run_folder(tmp_path / "a", updates=0)], tmp_path / "x.png")


def test_line_that_a_killed_run_has_not_finished_is_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 40, "upd')

    rows, _ = plotting.read_run(folder)

    assert [row["steps"] for row in rows] == [10, 20, 30]


def test_line_that_is_damaged_elsewhere_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("{oops\n" + metrics.read_text())

    with pytest.raises(ConfigError, match=r"expected a run whose metrics\.jsonl is JSON in line 1"):
        plotting.read_run(folder)


def test_run_killed_in_its_first_line_has_no_update(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", updates=0)
    (folder / "metrics.jsonl").write_text('{"steps')

    with pytest.raises(ConfigError, match="expected a run with at least one update"):
        plotting.read_run(folder)


@pytest.mark.parametrize("place", ["file/x.png", "folder.png", "/proc/curves/x.png"])
def test_picture_that_cannot_be_written_is_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()

    with pytest.raises(ConfigError, match=r"out is '.*'; expected a file that can be written \("):
        plotting.plot([run_folder(tmp_path / "a")], tmp_path / place)


def test_unknown_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out is '.*x\.xyz'; expected a file name that ends in"):
        plotting.plot([run_folder(tmp_path / "a")], tmp_path / "x.xyz")


def test_command_without_runs_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least one folder of a run"):
        plotting.main([])
