from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

import clusterenv
from clusterenv import register_env
from clusterenv_registry import resolve


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / "maze.py"
    path.write_text(
        "import gymnasium as gym\n"
        "class Maze(gym.Env):\n"
        "    observation_space = action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return 1, {}\n"
    )
    return path


def test_command_registers_lists_and_removes(env_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = [
        register_env.main(arguments)
        for arguments in (
            ["--list"],
            ["--name", "Maze", "--path", f"{env_file}:Maze"],
            ["--list"],
            ["--remove", "Maze"],
            ["--list"],
        )
    ]

    assert statuses == [0] * 5
    nothing = "nothing is registered yet; add an environment with --name and --path"
    assert capsys.readouterr().out.splitlines() == [
        nothing,
        f"Maze is registered as {env_file}:Maze",
        f"Maze  {env_file}:Maze",
        "Maze is no longer registered",
        nothing,
    ]


def test_registered_file_can_be_asked_for_by_name(env_file: Path) -> None:
    register_env.main(["--name", "Maze", "--path", str(env_file)])

    assert resolve("Maze", None, {}, ())().reset(seed=0)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--name", "Maze", "--path", "/no/such/maze.py"],
            "/no/such/maze.py is missing; expected the path of",
        ),
        (["--name", "a maze", "--path", "FILE"], "an environment cannot be called 'a maze'"),
        (
            ["--name", "Maze", "--path", "FILE:Other"],
            "'Maze' is already registered as FILE; --replace makes it",
        ),
        (["--remove", "Other"], "'Other' is not registered; there are: Maze"),
    ],
)
def test_refusal_is_one_sentence_and_status_2(
    env_file: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env.main(["--name", "Maze", "--path", str(env_file)])

    status = register_env.main([word.replace("FILE", str(env_file)) for word in arguments])

    [line] = capsys.readouterr().err.splitlines()
    assert status == 2
    assert line.startswith(f"register_env: {problem.replace('FILE', str(env_file))}")


def test_replace_lets_a_name_stand_for_another_file(
    env_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env.main(["--name", "Maze", "--path", str(env_file)])

    assert register_env.main(["--name", "Maze", "--path", f"{env_file}:Maze", "--replace"]) == 0
    register_env.main(["--list"])

    assert capsys.readouterr().out.splitlines()[-1] == f"Maze  {env_file}:Maze"


@pytest.mark.parametrize(
    "arguments", [[], ["--name", "Maze"], ["--list", "--remove", "Maze"], ["--path", "a.py"]]
)
def test_command_line_that_asks_for_nothing_or_two_things_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        register_env.main(arguments)

    assert caught.value.code == 2
    assert "expected --name with --path, or --list, or --remove" in capsys.readouterr().err


def test_list_reports_a_damaged_entry_after_the_good_ones(
    env_file: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env.main(["--name", "Maze", "--path", str(env_file)])
    stored = home / "environments.json"
    stored.write_text(stored.read_text().replace('"Maze": {', '"Bad": 7, "Maze": {'))
    capsys.readouterr()

    status = register_env.main(["--list"])

    output = capsys.readouterr()
    assert status == 2
    assert output.out == f"Maze  {env_file}\n"
    assert output.err.startswith("register_env: Bad: a damaged entry, 7; remove it with --remove")


def test_module_and_package_offer_one_function() -> None:
    from clusterenv.register_env import register_env as function

    assert clusterenv.register is register_env.register is function
    assert clusterenv.register_env is register_env


@pytest.mark.parametrize(
    "imports",
    [
        "import clusterenv.register_env; from clusterenv import register",
        "from clusterenv import register, register_env",
    ],
)
@pytest.mark.process
def test_function_and_module_never_shadow_each_other(imports: str) -> None:
    check = (
        "import clusterenv; assert callable(register) and clusterenv.register_env.register_env is register"
    )

    subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True, timeout=60)


@pytest.mark.process
def test_command_starts_fast_and_without_gymnasium() -> None:
    code = (
        "import sys, runpy; sys.argv = ['register_env', '--list']\n"
        "try: runpy.run_module('clusterenv.register_env', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'gymnasium', 'numpy', 'torch', 'zmq'} & set(sys.modules); assert not heavy, heavy"
    )
    # The time this process is given is ours; the time it waits for a busy machine is not.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
