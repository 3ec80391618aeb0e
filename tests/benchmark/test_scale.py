from __future__ import annotations

import json
import resource
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from clusterenv.benchmark import main
from clusterenv.benchmark.descriptors import allow_descriptors
from clusterenv.benchmark.scale_model import Line
from clusterenv.errors import LaunchError


@pytest.fixture
def _resource_tracker() -> None:
    """What Python starts beside its first process, and keeps, is there before."""
    resource_tracker.ensure_running()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_resource_tracker", "nothing_left")
def test_scale_measures_a_head_with_simulated_workers_and_says_what_many_would_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figure = tmp_path / "result.json", tmp_path / "result.png"
    words = ["scale", "--workers", "3", "--seconds", "0.5", "--fragment-s", "0.1", "--num-steps", "16"]
    assert main([*words, "--json", str(path), "--plot", str(figure)]) == 0
    printed = capsys.readouterr().out
    result = json.loads(path.read_text())
    (point,) = result["points"]
    assert point["workers"] == 3
    assert point["register_s"] > 0
    assert point["step_ms"] > 0
    assert 0 < point["fragments_per_s"] <= 1.5 * point["offered_per_s"] == 45
    assert point["fragment_bytes"] > 16 * 4 * (16 + 8 + 4 + 1 + 1 + 4 + 4 + 1)  # its rows, and a little more
    parameters = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2 + 4 * 64 + 64 + 64 * 64 + 64 + 64 + 1
    assert point["weight_bytes"] >= 3 * 4 * parameters
    assert "10,000 workers, each with a fragment of " in printed
    assert "up to " in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_more_open_files_than_the_system_allows_are_an_error_that_says_what_to_raise() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(
        LaunchError, match=rf"a head needs about {hard + 1} open files, .* have {hard}; raise"
    ):
        allow_descriptors(hard + 1, "a head")


def test_line_goes_through_the_points_and_has_no_negative_part() -> None:
    line = Line.through([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])
    assert (line.fixed, line.each) == (pytest.approx(1), pytest.approx(2))
    assert line.at(10) == pytest.approx(21)
    assert Line.through([5.0], [10.0]) == Line(0.0, 2.0)
    assert Line.through([1.0, 2.0], [1.0, 3.0]).fixed == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "8", "4"], "workers is (8, 4); expected numbers from 1, each greater than the one"),
        (["--fragment-s", "0"], "fragment_s is 0.0; expected a number above 0"),
        (["--processes", "0"], "processes is 0; expected a whole number from 1"),
    ],
)
def test_option_that_cannot_work_is_answered_with_one_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    try:
        status = main(["scale", *options])
    except SystemExit as stop:
        status = int(stop.code or 0)
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())  # it may come in a frame
    assert status == 2
    assert words in told
