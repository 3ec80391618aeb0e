"""The sweep itself, with real runs in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clusterenv.benchmark import aaps_results as results
from clusterenv.benchmark.aaps import AapsSweep, SweepRun
from clusterenv.errors import ConfigError

SMALL = ("workers=1", "envs_per_worker=8", "num_steps=16")


def sweep(path: Path, *, rules: tuple[str, ...] = ("0.05",), env_id: str = "CartPole-v1") -> AapsSweep:
    return AapsSweep(
        results=path, env_id=env_id, rules=rules, seeds=(1,), total_steps=256, options=(*SMALL, "max_lag=64")
    )


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_sweep_makes_only_the_runs_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    sweep(path, rules=("0.05",)).run()
    sweep(path, rules=("0.05", "never")).run()

    first, second = results.load(path)
    assert (first["rule"], first["seed"], first["status"]) == ("0.05", 1, results.DONE)
    assert first["settings"]["max_lag"] == 64
    assert first["updates"] == 2
    assert first["curves"]["steps"] == [128, 256]
    assert second["rule"] == "never"
    assert second["syncs_by_worker"] == [{"first": 1}]
    assert "2 runs, 1 of them are in" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_run_that_fails_is_a_line_with_its_error_and_the_sweep_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    sweep(path, rules=("0", "0.05"), env_id="NoSuchEnv-v0").run()

    lines = results.load(path)
    assert [line["status"] for line in lines] == [results.FAILED] * 2
    assert lines[0]["error"] == "exit code 2"
    assert "there is no environment 'NoSuchEnv-v0'" in lines[0]["log_tail"]
    assert not SweepRun.of(sweep(path, env_id="NoSuchEnv-v0"), "0", 1).is_in(lines[0])


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_interrupted_sweep_leaves_no_line_of_the_run_in_work(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "clusterenv", "bench", "aaps", "--results", str(path)]
    options = ["--env-id", "CartPole-v1", "--rules", "0", "--options", *SMALL]
    process = subprocess.Popen([*command, *options], start_new_session=True, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not psutil.Process(process.pid).children(recursive=True):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()
    assert results.load(path) == []


def test_two_sweeps_cannot_write_to_one_file(tmp_path: Path) -> None:
    from clusterenv.benchmark import aaps

    path = tmp_path / "results.jsonl"
    with aaps._alone(path), pytest.raises(ConfigError, match="that no other sweep is writing to"):
        sweep(path).run()


@pytest.mark.parametrize(
    ("rule", "threshold", "sync"),
    [
        ("0.2", 0.2, "adaptive"),
        ("inf", "inf", "adaptive"),
        ("auto", "auto", "adaptive"),
        ("interval:4", 0.05, "interval:4"),
        ("prototype:0.05", 0.05, "prototype:0.05"),
    ],
)
def test_rule_becomes_options_of_train(rule: str, threshold: object, sync: str, tmp_path: Path) -> None:
    run = SweepRun.of(sweep(tmp_path / "r"), rule, 3)

    assert run.settings["kl_threshold"] == threshold
    assert run.settings["sync"] == sync
    assert (run.settings["seed"], run.settings["max_lag"]) == (3, 64)


def test_no_milestone_forces_a_sync_in_a_sweep(tmp_path: Path) -> None:
    run = SweepRun.of(sweep(tmp_path / "r"), "0.05", 1)

    assert run.settings["checkpoint_every"] > 1e6 * run.settings["total_steps"]


@pytest.mark.parametrize("option", ["max_lag", "--max-lag=64", "=3"])
def test_option_without_name_or_value_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        AapsSweep(results=tmp_path / "r", options=(option,))


def test_option_that_cannot_work_is_refused_before_any_run(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(ConfigError, match="num_steps"):
        AapsSweep(results=path, env_id="CartPole-v1", options=("num_steps=0",)).run()
    assert not path.exists()
