"""Runs compared: which belong together, the numbers, the page, and the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from clusterenv.benchmark import compare as command
from clusterenv.benchmark.comparison import at, compare, final_return, steps_per_s
from clusterenv.benchmark.comparison_report import report, table
from clusterenv.cli import main
from clusterenv.errors import ConfigError
from clusterenv.learners.reading import read_run
from tests.learners.run_folders import run_folder

PROCGEN = Path(__file__).parents[2] / "plugins" / "clusterenv-procgen" / "src"


def records(folders: list[Path]) -> list:
    return [read_run(folder) for folder in folders]


def test_runs_that_differ_by_their_seeds_are_one_group(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"{n}", seed=n, run_dir=f"{n}") for n in (1, 2)]
    folders.append(run_folder(tmp_path / "3", seed=1, workers=1))
    folders.append(run_folder(tmp_path / "4", algorithm="a2c", num_envs=8, envs_per_worker=8))
    folders.append(run_folder(tmp_path / "5", algorithm="a2c", seed=2, num_envs=8, envs_per_worker=4))

    (task,) = compare(records(folders)).tasks

    assert [(group.label, len(group.runs)) for group in task.groups] == [
        ("ppo workers=2", 2),
        ("ppo workers=1", 1),
        ("a2c", 2),
    ]


def test_numbers_are_those_of_the_curves(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path / "a", updates=5))

    assert final_return(run) == 5.0
    assert at(run, "steps", 25) == 2.5
    assert np.isnan(at(run, "seconds", 15))  # before the first episode had ended
    assert steps_per_s(run) == 1.0


def test_columns_at_equal_steps_end_where_the_shortest_run_does(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / "a", updates=4), run_folder(tmp_path / "b", 6, algorithm="a2c")]

    lines = table(compare(records(folders)).tasks[0]).splitlines()

    assert "| at 40 steps | at 40 s |" in lines[0]
    assert lines[3].startswith("| a2c | 1 | 60 | 60 | 6.0 | 6.0 | 4.0 | 4.0 | 1 |")


def test_intervals_are_shown_from_three_seeds_on(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"{n}", seed=n, gain=n) for n in range(1, 5)]

    assert "| 4 | 30 | 30 | 7.5 [" in table(compare(records(folders)).tasks[0])
    assert "| 2 | 30 | 30 | 4.5 | 4.5 |" in table(compare(records(folders[:2])).tasks[0])


def test_what_a_reader_must_know_of_a_run_is_told_by_name(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "killed", finished=False),
        run_folder(tmp_path / "early", updates=1, seed=2),
        run_folder(tmp_path / "again"),
        run_folder(tmp_path / "foreign", algorithm=None),
    ]

    comparison = compare(records(folders))

    assert [len(group.runs) for group in comparison.tasks[0].groups] == [2]
    text = report(comparison, None)
    for name, told in (
        ("killed", "has no summary: it goes on, or was killed"),
        ("killed", f"has the settings and seed of {tmp_path / 'again'}; it is left out"),
        ("foreign", "does not tell algorithm; it is left out"),
    ):
        assert f"- {tmp_path / name} {told}" in text
    assert f"no episode has ended in {tmp_path / 'early'}" in text
    with pytest.raises(ConfigError, match="expected a run that tells algorithm and steps"):
        compare(records(folders[3:]))


def test_procgen_scores_are_normalised_with_published_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    easy = {"distribution_mode": "easy"}
    folders = [  # 7.5 on a scale from 5 to 10, and 39 on one from 1 to 40
        run_folder(tmp_path / "1", gain=2.5, env_id="procgen:coinrun", env_kwargs=easy),
        run_folder(tmp_path / "2", gain=13, env_id="procgen:procgen-bigfish-v0", env_kwargs=easy),
        run_folder(tmp_path / "3"),
    ]
    for name in {
        "clusterenv_procgen",
        *(name for name in sys.modules if name.startswith("clusterenv_procgen.")),
    }:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    without = report(compare(records(folders)), None)
    assert "normalised scores need Procgen's constants: pip install" in without
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(PROCGEN))

    text = report(compare(records(folders)), None)

    assert text.count("| normalised |") == 2
    assert "| ppo | 2 | 2 | 0.737 |" in text  # of 0.5 and 38 / 39
    assert "arXiv:1912.01588" in text
    assert "procgen:coinrun (distribution_mode=easy) 5 to 10" in text


def test_evaluations_that_were_kept_are_columns(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a")
    kept = {"train": {"returns": [8.0, 6.0]}, "held-out": {"returns": [5.0]}}
    (folder / "evaluation.json").write_text(json.dumps(kept))

    lines = table(compare(records([folder])).tasks[0]).splitlines()

    assert lines[0].endswith("| evaluated, held-out | evaluated, train |")
    assert lines[2].endswith("| 5.0 | 7.0 |")


def test_page_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "out.md").mkdir()
    words = [str(run_folder(tmp_path / "a")), "--out", str(tmp_path / "out")]

    with pytest.raises(ConfigError, match=r"out is '.*out\.md'; expected a file that can be written \("):
        command.main(words)


def test_two_algorithms_are_trained_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for algorithm in ("ppo", "a2c"):
        words = ["--env-id", "CartPole-v1", "--workers", "1", "--serial", "--total-steps", "40000"]
        assert main(["train", algorithm, *words, "--run-dir", str(tmp_path / algorithm)]) == 0
    checkpoint = str(tmp_path / "ppo")
    assert main(["evaluate", "--checkpoint", checkpoint, "--num-episodes", "5", "--save"]) == 0
    runs = [str(tmp_path / name) for name in ("ppo", "a2c", "none")]
    out = tmp_path / "page" / "comparison"

    assert main(["compare", *runs, "--out", str(out)]) == 0

    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    page = out.with_suffix(".md").read_text()
    assert "## CartPole-v1" in page
    assert f"- run is '{tmp_path / 'none'}'; expected the folder of a run; it is left out" in page
    rows = [line for line in page.splitlines() if line.startswith(("| ppo |", "| a2c |"))]
    assert len(rows) == 2
    assert "![Return, steps a second and memory of the runs](comparison.png)" in page
    assert page in capsys.readouterr().out
