"""Learning curves from run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners import plot as plotting
from clusterenv.learners.reading import read_run
from tests.learners.run_folders import run_folder


def test_plot_writes_a_picture_of_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_folder(tmp_path / name) for name in ("a", "b")]
    out = tmp_path / "pictures" / "curves.png"

    assert plotting.main([*map(str, runs), "--out", str(out)]) == 0

    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {out}\n"


def test_any_metric_is_drawn_against_time(tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    words = ["--metrics", "seconds", "--against", "seconds", "--out", str(out)]

    assert plotting.main([str(run_folder(tmp_path / "a")), *words]) == 0

    assert out.read_text().startswith("<?xml")


def test_unknown_metric_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics is 'episode_retrun'; .* such as 'episode_return'"):
        plotting.main([str(run_folder(tmp_path / "a")), "--metrics", "episode_retrun"])


def test_folder_that_cannot_be_drawn_is_named_and_the_others_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = run_folder(tmp_path / "begun", updates=0)
    words = [str(tmp_path / "none"), str(run_folder(tmp_path / "a")), str(begun)]

    assert plotting.main([*words, "--out", str(tmp_path / "x.png")]) == 0

    told = capsys.readouterr().err.splitlines()
    assert [line.endswith("it is left out") for line in told] == [True, True]
    assert "expected the folder of a run" in told[0]
    assert str(begun) in told[1]


@pytest.mark.parametrize("place", ["file/x.png", "folder.png", "/proc/curves/x.png"])
def test_picture_that_cannot_be_written_is_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()

    with pytest.raises(ConfigError, match=r"out is '.*'; expected a file that can be written \("):
        plotting.plot([read_run(run_folder(tmp_path / "a"))], tmp_path / place)


def test_unknown_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out is '.*x\.xyz'; expected a file name that ends in"):
        plotting.plot([read_run(run_folder(tmp_path / "a"))], tmp_path / "x.xyz")


def test_command_without_runs_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least one folder of a run"):
        plotting.main([])
