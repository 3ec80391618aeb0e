from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterenv.errors import ConfigError, LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers import WorkerCommand, make_launcher
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_allocation import Allocation, StepsRequest, uses_steps
from clusterenv.launchers.slurm_steps import StepsLauncher

RUN_DIR = Path("/home/ada/runs/x 1")
FOUR = Allocation("77", 4, (16, 16, 8, 8), ("n1", "n2", "n3", "n7"))
IN_FOUR = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_CPUS_PER_NODE": "16(x2),8(x2)",
    "SLURM_JOB_NODELIST": "n[1-3,7]",
    "SLURM_CPU_BIND": "mask_cpu:0x1",
}


def command(rank: int) -> WorkerCommand:
    return WorkerCommand(
        ("/py", "-m", "clusterenv", "worker", "--rank", str(rank)), {"A": "b c"}, {"K": "hidden"}
    )


def steps(nodes: int, allocation: Allocation | None = FOUR, **options: Any) -> StepsRequest:
    config = SlurmConfig(nodes=nodes, **options)
    return StepsRequest.make(config, tuple(map(command, range(nodes))), RUN_DIR, allocation)


def test_allocation_is_read_from_the_environment() -> None:
    assert Allocation.of(IN_FOUR) == FOUR
    assert Allocation.of({"SLURM_JOB_ID": "5", "SLURM_NNODES": "2"}) == Allocation("5", 2)
    assert Allocation.of({"SLURM_CONF": "/etc/slurm.conf"}) is None


@pytest.mark.parametrize(
    ("options", "allocation", "expected"),
    [
        ({"nodes": 4}, FOUR, True),
        ({"nodes": 2}, FOUR, True),
        ({"nodes": 5}, FOUR, False),
        ({"nodes": 2}, None, False),
        ({"nodes": 2, "mode": "sbatch"}, FOUR, False),
        ({"nodes": 2, "mode": "array"}, FOUR, False),
        ({"nodes": 9, "mode": "srun"}, None, True),
        *(
            ({"nodes": 2, name: value}, FOUR, False)
            for name, value in {
                "partition": "gpu",
                "account": "a",
                "qos": "high",
                "constraint": "ib",
                "reservation": "r",
                "time_limit": "10",
                "exclusive": True,
                "setup": "module load cuda",
                "directives": {"nice": 1},
            }.items()
        ),
        ({"nodes": 2, "cpus_per_node": 4, "gpus_per_node": 1, "job_name": "x", "mem": "4G"}, FOUR, True),
    ],
)
def test_auto_takes_steps_only_where_the_present_allocation_can_serve(
    options: dict[str, Any], allocation: Allocation | None, expected: bool
) -> None:
    assert uses_steps(SlurmConfig(**options), allocation) is expected


@pytest.mark.parametrize("inside", [True, False])
def test_make_launcher_follows_the_rule(
    inside: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in IN_FOUR.items():
        if inside:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    launcher = make_launcher(SlurmConfig(nodes=2), command, run_dir=tmp_path)
    assert isinstance(launcher, StepsLauncher if inside else SlurmLauncher)


def test_steps_outside_of_an_allocation_are_an_error() -> None:
    with pytest.raises(LaunchError, match=r"SLURM_JOB_ID is not set; start the head by sbatch"):
        steps(2, None, mode="srun")


def test_steps_on_more_nodes_than_there_are_are_an_error() -> None:
    with pytest.raises(LaunchError, match=r"nodes is 5, but the allocation \(job 77\) has 4"):
        steps(5, mode="srun")


@pytest.mark.parametrize("name", ["partition", "account", "qos", "time_limit"])
def test_options_of_a_job_are_refused_for_steps(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '5'; expected nothing with mode=\"srun\""):
        SlurmConfig(mode="srun", **{name: "5"})


def test_workers_take_the_last_nodes_and_leave_the_first_to_the_head() -> None:
    assert [steps(4).node(rank) for rank in range(4)] == [0, 1, 2, 3]
    assert [steps(3).node(rank) for rank in range(3)] == [1, 2, 3]


def test_worker_of_a_lost_node_moves_on_to_the_next() -> None:
    assert [steps(3).node(2, moves) for moves in range(4)] == [3, 1, 2, 3]


def test_argv_repeats_the_resources_and_names_the_allocation() -> None:
    made = steps(2, cpus_per_node=4, gpus_per_node=1, mem="2G", srun_args=["--cpu-bind=none"])
    argv = made.argv(1)
    assert argv[:6] == ("srun", "--jobid=77", "--nodes=1", "--ntasks=1", "--nodelist=n7", "--overlap")
    for word in ("--cpus-per-task=4", "--gres=gpu:1", "--mem=2G", "--cpu-bind=none", "--no-kill"):
        assert word in argv
    assert argv[-6:] == ("/py", "-m", "clusterenv", "worker", "--rank", "1")


def test_node_without_a_known_name_is_told_by_its_number() -> None:
    assert "--relative=2" in steps(2, Allocation("77", 4)).argv(0)


def test_worker_gets_all_granted_cores_of_its_node_unless_told() -> None:
    assert "--cpus-per-task=16" in steps(4).argv(0)
    assert "--cpus-per-task=8" in steps(4).argv(3)
    assert not [word for word in steps(1, Allocation("7", 1)).argv(0) if word.startswith("--cpus")]


def test_environment_of_a_step_is_clean_but_for_what_the_worker_needs() -> None:
    env = steps(2).environment(1, 3, {**IN_FOUR, "HOME": "/home/ada", "OMP_NUM_THREADS": "4"})
    assert not [name for name in env if name.startswith("SLURM_")]
    assert (env["HOME"], env["A"], env["K"], env["OMP_NUM_THREADS"]) == ("/home/ada", "b c", "hidden", "4")
    assert env["CLUSTERENV_INCARNATION"] == "3"


def test_script_is_shell_and_shows_no_secret() -> None:
    text = steps(2).script()
    assert "hidden" not in text
    assert "K='<secret>'" in text
    assert text.count("srun ") == 2
    assert ">> '/home/ada/runs/x 1/worker-1.log' 2>&1 &\n" in text
    subprocess.run(["bash", "-n", "-c", text], check=True, timeout=20)
