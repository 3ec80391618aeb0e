"""The exact text of job scripts: golden files, and what must never be in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterenv.errors import ConfigError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import WorkerCommand, make_launcher
from clusterenv.launchers.slurm_request import SlurmRequest, gres, option, seconds_of

GOLDEN = Path(__file__).parents[1] / "slurm" / "golden"
RUN_DIR = Path("/home/ada/.clusterenv/runs/clusterenv-x1")
PYTHON = "/opt/venv/bin/python"

ALL_OPTIONS: dict[str, Any] = {
    "nodes": 4,
    "mode": "sbatch",
    "job_name": 'ppo "lander" run',
    "cpus_per_node": 16,
    "gpus_per_node": "a100:2",
    "mem": "64G",
    "partition": "gpu",
    "account": "proj-7",
    "qos": "high",
    "constraint": "ib&a100",
    "reservation": "course",
    "time_limit": "1-12:00:00",
    "exclusive": True,
    "warn_s": 120,
    "directives": {"mail-type": "END,FAIL", "nice": 100, "requeue": True, "no-kill": None},
    "setup": ["source /etc/profile", "module load cuda/12.4"],
    "srun_args": ["--cpu-bind=cores", "--comment=two words"],
    "log_folder": "/scratch/ada/100% logs",
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all-options": ALL_OPTIONS,
    "array": {"nodes": 3, "mode": "array", "cpus_per_node": 4, "mem_per_cpu": "2G"},
    "nothing-shared": {"nodes": 2, "mode": "sbatch", "shared_folder": None, "gpus_per_node": 1},
    "without-srun": {"mode": "sbatch", "use_srun": False, "python": "/sw/python3.12/bin/python"},
}


def command(rank: int, *, shared: bool = True) -> WorkerCommand:
    argv = (PYTHON, "-m", "clusterenv", "worker", "--rank", str(rank))
    if shared:
        return WorkerCommand((*argv, "--connection", str(RUN_DIR / "connection.json")))
    return WorkerCommand(argv, secret_env={"CLUSTERENV_CONNECTION": "hidden keys"})


def request(**options: Any) -> SlurmRequest:
    config = SlurmConfig(**options)
    shared = config.shared_folder is not None
    return SlurmRequest(config, tuple(command(r, shared=shared) for r in range(config.nodes)), RUN_DIR)


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_recorded_one(name: str) -> None:
    text = request(**CASES[name]).script()
    path = GOLDEN / f"{name}.sh"
    if "CLUSTERENV_WRITE_GOLDEN" in os.environ:
        path.write_text(text)
    assert text == path.read_text()


def test_replacement_is_the_recorded_one() -> None:
    script = request(nodes=4, mode="sbatch", partition="gpu").replacement(2, 3)
    path = GOLDEN / "replacement.sh"
    if "CLUSTERENV_WRITE_GOLDEN" in os.environ:
        path.write_text(script.text)
    assert script.text == path.read_text()
    assert (script.name, script.ranks, script.incarnation, script.array) == ("job-2.3.sh", (2,), 3, False)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_recorded_scripts_are_bash(path: Path) -> None:
    assert path.read_text().startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)


def test_defaults_ask_slurm_for_nothing() -> None:
    text = request().script()
    for word in ("mem", "exclusive", "gres", "gpus", "partition", "account", "qos", "time", "constraint"):
        assert not [line for line in directives(text) if line.startswith(f"--{word}")]
    assert "module" not in text
    assert "conda" not in text


def test_cores_are_asked_for_in_the_directives_and_on_the_srun_line() -> None:
    text = request(cpus_per_node=4, gpus_per_node=2).script()
    (srun,) = [line for line in text.splitlines() if line.startswith("srun ")]
    for word in ("--cpus-per-task=4", "--gres=gpu:2"):
        assert word in directives(text)
        assert word in srun.split()


@pytest.mark.parametrize("name", ["mem", "mem_per_cpu", "mem_per_gpu"])
def test_only_the_memory_option_asked_for_is_in_the_script(name: str) -> None:
    lines = [line for line in directives(request(**{name: "2G"}).script()) if line.startswith("--mem")]
    assert lines == [f"--{name.replace('_', '-')}=2G"]


def test_two_memory_options_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"mem_per_cpu is '2G'; expected None when mem is set"):
        SlurmConfig(mem="4G", mem_per_cpu="2G")


def test_interpreter_is_an_absolute_path() -> None:
    assert f'\n{PYTHON} -m clusterenv worker --rank "$rank"' in request().script()
    own = request(python="/sw/bin/python").script()
    assert "\n/sw/bin/python -m clusterenv worker" in own
    assert PYTHON not in own


@pytest.mark.parametrize("value", [None, False])
def test_any_directive_can_be_dropped(value: object) -> None:
    for name in ("job-name", "nodes", "ntasks-per-node", "no-kill", "signal"):
        before = directives(request(nodes=2).script())
        after = directives(request(nodes=2, directives={name: value}).script())
        assert [line for line in before if not line.startswith(f"--{name}")] == after


def test_a_directive_can_be_replaced_and_added() -> None:
    lines = directives(request(nodes=2, directives={"gpus-per-node": "h100:4", "nodes": "2-3"}).script())
    assert "--gpus-per-node=h100:4" in lines
    assert [line for line in lines if line.startswith("--nodes")] == ["--nodes=2-3"]


@pytest.mark.parametrize("name", ["array", "output", "export", "parsable", "wrap", "Mem", "--mem", "a b", 3])
def test_directives_that_would_break_the_job_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="directives key is"):
        SlurmConfig(directives={name: "x"})


@pytest.mark.parametrize("value", ["a\nb", "", ["x"], 1.5])
def test_values_of_directives_are_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"directives\['nice'\] is"):
        SlurmConfig(directives={"nice": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gpu", "--x=gpu"),
        (3, "--x=3"),
        (True, "--x"),
        ("two words", '--x="two words"'),
        ('say "hi" \\o/', r'--x="say \"hi\" \\o/"'),
        ("it's $HOME `id` #1", '--x="it\'s $HOME `id` #1"'),
        ("übung", '--x="übung"'),
    ],
)
def test_option_is_quoted_as_slurm_reads_it(value: Any, text: str) -> None:
    assert option("x", value) == text


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (None, None),
        (0, None),
        (2, "gpu:2"),
        ("a100:2", "gpu:a100:2"),
        ("gpu:v100:1", "gpu:v100:1"),
        ("4", "gpu:4"),
    ],
)
def test_gres_is_what_slurm_calls_gpus(gpus: Any, expected: str | None) -> None:
    assert gres(gpus) == expected


def test_survivors_of_a_lost_node_run_on_by_flags_on_both_commands() -> None:
    text = request(nodes=2).script()
    assert "--no-kill" in directives(text)
    assert " --no-kill " in text.split("srun ")[-1]
    for alone in (request(nodes=1).script(), request(nodes=2, mode="array").script()):
        assert "no-kill" not in alone


def test_ranks_with_different_commands_get_a_case_each() -> None:
    commands = (WorkerCommand(("/a", "x y")), WorkerCommand(("/b",), {"N": "1 2"}))
    text = SlurmRequest(SlurmConfig(nodes=2), commands, RUN_DIR).script()
    assert "case \"$rank\" in\n0) /a 'x y' ;;\n1) N='1 2' /b ;;\nesac\n" in text


def test_secrets_are_named_but_not_shown() -> None:
    made = request(nodes=2, shared_folder=None)
    for text in (made.script(), repr(made), repr(made.first())):
        assert "hidden keys" not in text
    assert "CLUSTERENV_CONNECTION, whose value is not shown" in made.script()
    assert made.first().secret_env == {"CLUSTERENV_CONNECTION": "hidden keys"}
    assert "--export=ALL" in directives(made.script())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("UNLIMITED", None),
        ("90", 5400),
        ("2:30", 150),
        ("01:30:15", 5415),
        ("1-12", 129600),
        ("2-00:30", 174600),
        ("1-00:00:05", 86405),
    ],
)
def test_time_limit_is_read_in_every_form_of_slurm(text: str | None, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["--signal=USR1@90"]),
        ({"time_limit": "10", "warn_s": 30}, ["--signal=USR1@30"]),
        ({"time_limit": "5"}, []),  # it could come at once, since Slurm is up to 60 s early
        ({"warn_s": 0}, []),
        ({"use_srun": False}, []),
    ],
)
def test_warning_is_asked_for_where_it_is_of_use(options: dict[str, Any], expected: list[str]) -> None:
    lines = directives(request(**options).script())
    assert [line for line in lines if line.startswith("--signal")] == expected


def test_setup_comes_before_the_defaults_so_that_it_can_choose_them() -> None:
    text = request(setup="export OMP_NUM_THREADS=4").script()
    assert text.index("export OMP_NUM_THREADS=4") < text.index(
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"'
    )


def test_script_needs_no_cluster_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    launcher = make_launcher(SlurmConfig(nodes=2, mode="sbatch"), command, run_dir=tmp_path)
    assert "#SBATCH --nodes=2" in launcher.request().script()
    assert list(tmp_path.iterdir()) == []
