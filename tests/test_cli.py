from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from clusterenv import __version__, cli
from clusterenv.errors import ConfigError
from clusterenv_registry import UnknownEnvironment


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A subcommand `try` that does what the test sets as `run`."""
    setting = types.SimpleNamespace(run=lambda words: 0)
    monkeypatch.setitem(cli._COMMANDS, "try", cli._Command("try", "", lambda words: setting.run(words)))
    return setting


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"clusterenv {__version__}\n"


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 0), (["help"], 0)])
def test_help_lists_every_command(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == status

    output = capsys.readouterr().out
    for name in (
        "train",
        "evaluate",
        "plot",
        "compare",
        "bench",
        "quicktest",
        "doctor",
        "status",
        "logs",
        "stop",
        "register",
    ):
        assert f"\n  clusterenv {name} " in output


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("workers", "did you mean 'worker'?"),
        (
            "xyz",
            "there are: train, evaluate, plot, compare, bench, quicktest, doctor, status, logs, stop, "
            "register, envs, worker",
        ),
    ],
)
def test_unknown_command_is_answered_with_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == 2
    assert capsys.readouterr().err == f"clusterenv: there is no command {word!r}; {hint}\n"


def test_command_gets_the_words_after_its_name_and_gives_the_status(command: types.SimpleNamespace) -> None:
    seen = []
    command.run = lambda words: seen.append(words) or 7

    assert cli.main(["try", "ppo", "--seed", "1"]) == 7
    assert seen == [["ppo", "--seed", "1"]]


@pytest.mark.parametrize(
    "error",
    [ConfigError("nodes", 0, "a whole number from 1"), UnknownEnvironment("there is no environment 'X'")],
)
def test_expected_error_is_one_sentence_and_status_2(
    command: types.SimpleNamespace, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(words: list[str]) -> int:
        raise error

    command.run = refuse

    assert cli.main(["try"]) == 2
    assert capsys.readouterr().err == f"clusterenv: {error}\n"


def test_unexpected_error_keeps_its_traceback(command: types.SimpleNamespace) -> None:
    command.run = lambda words: {}["missing"]

    with pytest.raises(KeyError):
        cli.main(["try"])


def test_interrupt_is_quiet_and_status_130(
    command: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    command.run = interrupted

    assert cli.main(["try"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_after_a_command_that_one_ended_are_ignored(
    command: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    command.run = lambda words: 128 + number
    all_three = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in all_three}

    assert cli.main(["try"]) == 128 + number
    assert {each: signal.getsignal(each) for each in all_three} == before
    monkeypatch.setattr(sys, "argv", ["clusterenv", "try"])
    try:
        assert cli.main() == 128 + number
        assert {signal.getsignal(each) for each in all_three} == {signal.SIG_IGN}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null", "/dev/null/run"])
def test_train_into_an_impossible_folder_is_one_sentence(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ppo", "--env-id", "CartPole-v1", "--workers", "1", "--serial", "--run-dir", place]

    assert cli.main(["train", *words]) == 2
    assert re.fullmatch(rf"clusterenv: run_dir is '{place}'; expected .*\n", capsys.readouterr().err)


@pytest.mark.process
@pytest.mark.parametrize("launcher", [["--serial"], []], ids=["serial", "a worker"])
def test_an_argument_that_the_environment_does_not_know_is_one_sentence(
    launcher: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ppo", "--env-id", "CartPole-v1", "--env-kwargs", '{"nope": 1}', "--workers", "1", *launcher]

    assert cli.main(["train", *words, "--run-dir", str(tmp_path / "run")]) == 2
    said = r"clusterenv: building an environment failed: .*unexpected keyword argument 'nope'.*\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_train_without_an_algorithm_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train"]) == 2
    assert "usage: clusterenv train ALGO" in capsys.readouterr().err


def test_envs_lists_names_with_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "home"))
    (tmp_path / "maze.py").write_text("")
    assert cli.main(["register", "--name", "Maze", "--path", str(tmp_path / "maze.py"), "--no-check"]) == 0
    pole = "gymnasium.envs.classic_control:CartPoleEnv"
    assert cli.main(["register", "--name", "Pole", "--path", pole]) == 0
    capsys.readouterr()

    assert cli.main(["envs"]) == 0

    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["Maze", f"file {tmp_path}/home/environments.json: {tmp_path}/maze.py"] in lines
    assert ["LunarLander-v3", "Gymnasium"] in lines
    [told] = [text for name, text in lines if name == "Pole"]
    assert f"{pole}; Box(" in told
    assert told.endswith("-> Discrete(2)")


def test_envs_are_listed_for_programs_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mujoco" else real(name))

    assert cli.main(["envs", "--json"]) == 0

    listed = {env["name"]: env for env in json.loads(capsys.readouterr().out)}
    assert listed["MujocoAnt"]["source"] == "Ant-v5"
    assert listed["MujocoAnt"]["missing"] == 'pip install "clusterenv-rl[mujoco]"'
    assert listed["CartPole-v1"]["missing"] is None


def test_worker_passes_its_three_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterenv import service

    calls = []
    monkeypatch.setattr(service, "main", lambda *arguments: calls.append(arguments) or 0)

    assert cli.main(["worker", "--connection", "a/file", "--rank", "3", "--incarnation", "2"]) == 0
    assert cli.main(["worker", "--rank", "3"]) == 0
    assert calls == [(Path("a/file"), 3, 2), (None, 3, None)]


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["envs"], ["--help"], ["train", "sac", "--help"]])
def test_module_form_stops_without_complaint_when_its_reader_goes(words: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "clusterenv", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert errors == b""


def test_pipe_other_than_standard_output_that_breaks_is_an_error(command: types.SimpleNamespace) -> None:
    def broken(words: list[str]) -> int:
        raise BrokenPipeError(32, "of a child")

    command.run = broken
    with pytest.raises(BrokenPipeError, match="of a child"):
        cli.main(["try"])


@pytest.mark.process
def test_worker_starts_without_the_libraries_of_a_learner() -> None:
    code = (
        "import sys, clusterenv.cli, clusterenv.service, clusterenv.transport.client\n"
        "heavy = {'torch', 'tyro', 'matplotlib', 'tensorboard', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "words", [["--rank", "-1"], ["--rank", "0", "--incarnation", "-4"], ["--rank", "9" * 12]]
)
def test_worker_has_a_rank_and_an_incarnation_from_0(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["worker", *words])

    assert "is not a number from 0 to 2147483647" in capsys.readouterr().err
