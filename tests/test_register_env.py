from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import clusterenv
from clusterenv import register_env
from clusterenv_registry import resolve

MAZE = """
import gymnasium as gym
class Maze(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {}
    def step(self, action):
        return 1, 0.0, False, False, {}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / "maze.py"
    path.write_text(MAZE)
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
            "/no/such/maze.py is missing; expected a .py file",
        ),
        (["--name", "a maze", "--path", "FILE"], "an environment cannot be called 'a maze'"),
        (
            ["--name", "Maze", "--path", "FILE:Other"],
            "'Maze' is already registered as FILE; --replace makes it",
        ),
        (["--remove", "Other"], "'Other' is not registered; there are: Maze"),
        (["--name", "CartPole-v1", "--path", "FILE"], "'CartPole-v1' is a name of Gymnasium; choose another"),
        (["--name", "MujocoAnt", "--path", "FILE", "--no-check"], "'MujocoAnt' is a name of ClusterEnv"),
        (["--name", "envpool", "--path", "FILE"], "'envpool' is a name of clusterenv-envpool"),
        (["--name", "Two", "--path", "FILE:Other"], "FILE has no 'Other'; environments in it: Maze"),
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
    assert "expected --name with --path, or one of --list, --show, --remove" in capsys.readouterr().err


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


def test_show_tells_all_that_is_known_and_whether_the_code_has_changed(
    env_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env.main(["--name", "Maze", "--path", str(env_file)])
    capsys.readouterr()

    assert register_env.main(["--show", "Maze", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    env_file.write_text(MAZE + "# more")
    assert register_env.main(["--show", "Maze"]) == 0
    shown = capsys.readouterr().out

    assert facts.pop("sha256")
    assert facts == {
        "name": "Maze",
        "path": str(env_file),
        "attribute": None,
        "observation_space": "Discrete(2)",
        "action_space": "Discrete(2)",
        "state": "as it was registered",
    }
    assert "state              changed since it was registered" in shown
    assert register_env.main(["--show", "Other"]) == 2


def test_list_can_be_read_by_programs(env_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register_env.main(["--list", "--json"])
    register_env.main(
        ["--name", "Pole", "--path", "gymnasium.envs.classic_control:CartPoleEnv", "--no-check"]
    )
    register_env.main(["--list", "--json"])

    first, told, rest = capsys.readouterr().out.split("\n", 2)
    assert json.loads(first) == []
    assert told == "Pole is registered as gymnasium.envs.classic_control:CartPoleEnv"
    assert json.loads(rest) == [{"name": "Pole", "target": "gymnasium.envs.classic_control:CartPoleEnv"}]
    assert resolve("Pole", None, {}, ())().reset(seed=0)[0].shape == (4,)


def test_every_answer_can_be_read_by_programs(env_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (["--name", "Maze", "--path", str(env_file)], ["--show", "Maze"], ["--remove", "Maze"])
    answers = []
    for arguments in asked:
        assert register_env.main([*arguments, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))

    assert answers[0] == answers[1]
    assert answers[0]["path"] == str(env_file)
    assert answers[2] == {"name": "Maze", "removed": True}


def test_name_of_gymnasiums_that_was_replaced_is_the_users(env_file: Path) -> None:
    add = ["--name", "CartPole-v1", "--path", str(env_file)]

    assert register_env.main([*add, "--replace"]) == 0
    assert register_env.main(add) == 0
    assert resolve("gymnasium", "CartPole-v1", {}, ())().reset(seed=0)[0] == 1


def test_environment_that_fails_its_check_is_not_registered(
    env_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_file.write_text(MAZE.replace("return 1, 0.0", "raise KeyError(action)  #"))

    assert register_env.main(["--name", "Maze", "--path", str(env_file)]) == 2
    told = capsys.readouterr().err
    assert "register_env: " in told.splitlines()[-1]
    assert "fails in reset and step: KeyError" in told.splitlines()[-1]
    assert "maze.py" in told

    assert register_env.main(["--name", "Maze", "--path", str(env_file), "--no-check"]) == 0


def test_environment_is_checked_with_its_arguments(
    env_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_file.write_text(
        MAZE.replace("    def reset", "    def __init__(self, size): self.size = size\n    def reset")
    )
    add = ["--name", "Maze", "--path", str(env_file)]

    assert register_env.main(add) == 2
    assert "missing 1 required positional argument: 'size'" in capsys.readouterr().err
    assert register_env.main([*add, "--env-kwargs", '{"size": 3}']) == 0
    with pytest.raises(SystemExit):
        register_env.main([*add, "--env-kwargs", "[3]"])
    assert "[3] is no JSON object" in capsys.readouterr().err


@pytest.mark.process
def test_file_of_a_checkout_runs_as_a_script(home: Path) -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(root / "clusterenv" / "register_env.py"), "--list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=home.parent,
    )
    assert done.stdout.startswith("nothing is registered yet")


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
