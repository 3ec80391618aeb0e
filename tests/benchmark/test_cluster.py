"""The benchmark of training in one process and over workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterenv.benchmark.cluster import ClusterBenchmark, LayoutRun, speeds
from clusterenv.benchmark.commands import run_command
from clusterenv.errors import ConfigError
from tests.learners.run_folders import run_folder

OPTIONS = ["--config", "None", "--algorithms", "a2c", "--options", "num_steps=8", "num_envs=4"]


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_runs_are_made_once_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster", "--results", str(tmp_path), "--tasks", "CartPole-v1=1s", "--episodes", "2", *OPTIONS]

    assert run_command(words) == 0

    said = capsys.readouterr().out
    assert "[3/3] CartPole-v1-a2c-parallel-seed1: done" in said
    page = (tmp_path / "comparison.md").read_text()
    assert "| CartPole-v1 | a2c | " in page
    assert "| evaluated |" in page.splitlines()[6]
    assert (tmp_path / "comparison.png").exists()
    config = (tmp_path / "CartPole-v1-a2c-sequential-seed1" / "config.yaml").read_text()
    assert "serial: true" in config
    assert "num_threads: 1" in config

    assert run_command(words) == 0
    assert "[3/3] CartPole-v1-a2c-parallel-seed1: is there" in capsys.readouterr().out


def test_plan_is_what_the_benchmark_asks_for() -> None:
    runs = ClusterBenchmark(seeds=(1, 2)).runs()

    assert len(runs) == 2 * 3 * 2 * 3
    assert sum(run.seconds for run in runs) == 2 * 2 * 3 * 16 * 60
    assert runs[2].folder == Path("cluster/procgen_coinrun-ppo-parallel-seed1")
    assert runs[2].argv == (
        *("--config", "procgen-laptop", "--env-id", "procgen:coinrun", "--duration", "600s", "--seed", "1"),
        *("--workers", "2"),
    )


def test_ratios_are_those_of_equal_seeds(tmp_path: Path) -> None:
    def made(layout: str, seed: int, updates: int) -> LayoutRun:
        folder = run_folder(tmp_path / f"{layout}-{seed}", updates)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [json.dumps(line | {"seconds": 10.0}) for line in lines]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return LayoutRun(folder, "procgen:coinrun", "ppo", layout, 10.0, ())  # type: ignore[arg-type]

    numbers = {"sequential": (10, 20), "sequential-threads": (16, 16), "parallel": (20, 30)}
    runs = [made(name, seed, of[seed]) for name, of in numbers.items() for seed in range(2)]

    row = speeds(runs).splitlines()[2]

    assert row == "| procgen:coinrun | ppo | 15 | 16 | 25 | 1.75 | 1.38 |"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tasks": ("CartPole-v1",)}, "tasks is 'CartPole-v1'; expected ENVIRONMENT=TIME, such as"),
        ({"tasks": ("CartPole-v1=soon",)}, "tasks is 'CartPole-v1=soon'; expected ENVIRONMENT=TIME"),
        ({"options": ("num envs",)}, "options is 'num envs'; expected NAME=VALUE"),
        ({"workers": 0}, "workers is 0; expected a whole number from 1"),
        ({"episodes": -1}, "episodes is -1; expected a whole number from 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ClusterBenchmark(**options)


def test_wrong_option_is_refused_before_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster", "--results", str(tmp_path / "r"), "--config", "None", "--tasks", "CartPole-v1=1s"]

    assert run_command([*words, "--options", "gamma=2"]) == 2

    assert "gamma is 2.0; expected a number from 0 to 1" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_runs_that_fail_are_told_with_their_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster", "--results", str(tmp_path), "--config", "None", "--tasks", "NoSuchEnv-v0=1s"]

    assert run_command([*words, "--algorithms", "ppo", "--layouts", "sequential"]) == 2

    said = capsys.readouterr()
    assert "[1/1] NoSuchEnv-v0-ppo-sequential-seed1: failed: exit code 2; clusterenv: " in said.out
    assert "expected a run that has ended well; see train.log in each" in said.err
