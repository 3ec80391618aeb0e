from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clusterenv.benchmark import contenders, main, subject_process
from clusterenv.benchmark.contenders import Advancing, Shape
from clusterenv.benchmark.paired import median_interval
from clusterenv.benchmark.subject_process import TOKEN_VARIABLE, SubjectFailed, SubjectProcess
from clusterenv.benchmark.subjects import SUBJECTS
from tests.processes import wait_until

TINY = ["--workers", "1", "--num-envs", "4", "--num-steps", "8", "--seconds", "0.2"]
RUNNING = ("bare", "stream", "gymnasium-async")


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not [p for p in psutil.process_iter() if TOKEN_VARIABLE in _environ(p)], within_s=5)


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_what_was_made_ahead_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made_ahead = iter([1000, 1000])
    now_s = 0.0

    def advance() -> int:
        nonlocal now_s
        now_s += 1.0
        return next(made_ahead, 3)

    monkeypatch.setattr(contenders.time, "monotonic", lambda: now_s)
    assert Advancing(advance, lambda: None, ahead=2).measure(10.0) == 3.0


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
def test_throughput_measures_what_is_installed_and_says_what_is_not_and_what_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figure = tmp_path / "result.json", tmp_path / "result.png"
    python = _program(tmp_path, "echo it has no legs >&2\nexit 1")
    words = ["throughput", "--tasks", "CartPole-v1", *TINY, "--repeats", "2", "--baselines", "bare"]
    words += ["--subjects", *RUNNING, "sample-factory", "rllib", "--pythons", f"rllib={python}"]
    assert main([*words, "--json", str(path), "--plot", str(figure)]) == 0
    printed = capsys.readouterr().out
    result = json.loads(path.read_text())["tasks"]["CartPole-v1"]
    for name in RUNNING:
        assert min(result[name]["steps_per_s"]["samples"]) > 0
        ratio = result[name]["ratios"]["bare"]
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
        assert result[name]["cpu_us_per_step"] > 0
        assert result[name]["versions"]["gymnasium"]
        assert f"| {name} " in printed
    assert result["bare"]["ratios"]["bare"]["median"] == 1
    assert result["sample-factory"] == {"missing": SUBJECTS["sample-factory"].install}
    assert "\nsample-factory: not installed: pip install sample-factory\n" in printed
    assert "\nrllib: failed: its process died; its last words: it has no legs\n" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def _program(folder: Path, lines: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{lines}\n")
    script.chmod(0o755)
    return script


@pytest.mark.process
def test_subject_that_hangs_is_given_up_and_all_its_processes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_process, "LEAVE_S", 0.2)
    python = _program(tmp_path, "setsid sleep 600 &\necho it thinks\nexec sleep 600")
    with pytest.raises(SubjectFailed, match=r"no answer within 1 s; its last words: it thinks"):
        SubjectProcess("bare", "Busy", Shape(4, 1, 8), python=str(python), patience_s=1.0)


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_that_ends_the_benchmark_ends_what_it_has_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    python = _program(tmp_path, f"setsid sleep 600 &\ntouch {begun}\nexec sleep 600")
    command = [sys.executable, "-m", "clusterenv", "bench", "throughput", "--tasks", "CartPole-v1", *TINY]
    command += ["--subjects", "rllib", "--baselines", "rllib", "--pythons", f"rllib={python}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait_until(begun.exists, 60)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
        process.wait()


def test_interpreter_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("no program")
    python.chmod(0o755)
    with pytest.raises(SubjectFailed, match=r"python cannot be run: Exec format error"):
        SubjectProcess("bare", "Busy", Shape(4, 1, 8), python=str(python), patience_s=1.0)


@pytest.mark.process
def test_error_of_a_subject_is_its_reason() -> None:
    with pytest.raises(SubjectFailed, match=r"^IndexError: "):
        SubjectProcess("gymnasium-sync", "Busy", Shape(0, 1, 8), python=sys.executable, patience_s=100.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "Chess"], "tasks is 'Chess'; expected one or more of CartPole-v1, "),
        (
            ["--subjects", "bare", "bare"],
            "subjects is 'bare bare'; expected at least one name, and none twice",
        ),
        (["--subjects", "bare"], "baselines is 'hand-written'; expected one of `subjects`"),
        (["--num-envs", "3", "--workers", "2"], "num_envs is 3; expected a multiple of workers = 2"),
        (["--pythons", "rllib=/no/python"], "pythons is 'rllib=/no/python'; expected SUBJECT=INTERPRETER"),
        (["--plot", "/no/such/folder/x.png"], "plot is '/no/such/folder/x.png'; expected a file in a folder"),
    ],
)
def test_option_that_cannot_work_is_answered_with_one_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    try:
        status = main(["throughput", *options])
    except SystemExit as stop:
        status = int(stop.code or 0)
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())  # it may come in a frame
    assert status == 2
    assert words in told


def test_interval_of_a_median_covers_what_the_sign_test_says() -> None:
    five = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (five.median, five.low, five.high, five.coverage) == (3, 1, 5, 0.9375)
    eight = median_interval([float(number) for number in range(1, 9)])
    assert (eight.median, eight.low, eight.high) == (4.5, 2, 7)
    assert eight.coverage == pytest.approx(1 - 18 / 256)
    assert median_interval([7.0]).coverage == 0
