"""Runs on a cluster looked after from outside, and workers that choose from where they connect."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterenv import ClusterEnv, cli
from clusterenv.errors import ClusterEnvError
from clusterenv.monitor.finding import FoundRun, RunState, find_runs
from tests.envs import Count
from tests.slurm.conftest import MakeConfig
from tests.slurm.lab import Lab, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]

HEAD = """
import sys
from clusterenv import ClusterEnv, SlurmConfig
from tests.envs import Count
config = SlurmConfig(nodes=2, mode=sys.argv[1], shared_folder=sys.argv[2])
env = ClusterEnv([Count] * 2, config, head_grace_s=200.0)
env.reset(seed=1)
print("up", flush=True)
while True:
    env.step(env.action_space.sample())
"""


class Heads:
    """Heads in processes of their own, whose workers outlive them for minutes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, mode: str) -> subprocess.Popen[str]:
        """A head whose run is up."""
        head = subprocess.Popen(
            [sys.executable, "-c", HEAD, mode, str(self.folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.processes.append(head)
        assert head.stdout is not None
        assert head.stdout.readline() == "up\n"
        return head


@pytest.fixture
def heads(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heads]:
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    heads = Heads(tmp_path / "run folders")
    yield heads
    for head in heads.processes:
        head.kill()
        head.communicate()


def the_run() -> FoundRun:
    (run,) = find_runs([])
    return run


def test_status_tells_the_jobs_and_hosts_of_workers_and_stop_ends_them_in_good_order(
    lab: Lab, heads: Heads, capsys: pytest.CaptureFixture[str]
) -> None:
    head = heads.start("array")
    until(lambda: all(w.steps_per_s > 0 and w.job_id for w in the_run().status.workers), 20, "it is reported")

    assert cli.main(["status", the_run().short_id]) == 0
    told = capsys.readouterr().out
    for worker in the_run().status.workers:
        assert (worker.present, worker.state) == (True, "ready")
        assert f"{worker.host}  {worker.job_id}" in told

    assert cli.main(["logs", the_run().short_id, "1", "-n", "50"]) == 0
    assert "== rank 1, Slurm job" in capsys.readouterr().out
    assert cli.main(["stop", the_run().short_id]) == 0
    assert "by SIGINT" in capsys.readouterr().out
    assert head.wait(20) != 0
    assert lab.active() == []
    assert list(heads.folder.iterdir()) == []
    assert find_runs([]) == []


@pytest.mark.parametrize("mode", ["sbatch", "array"])
def test_jobs_workers_and_folder_of_a_killed_head_are_cleared_away(
    lab: Lab, heads: Heads, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = heads.start(mode)
    other = lab.submit("sleep 100")
    head.kill()
    head.wait(20)
    assert the_run().state is RunState.DEAD
    job = next(each for each in lab.active() if each != other).split("_")[0]

    assert cli.main(["stop", "--all"]) == 0

    said = capsys.readouterr().out
    assert f"cancelled Slurm job {job}\n" in said
    until(lambda: lab.active() == [other], 40, "its jobs have ended, and no other")
    until(lambda: not lab.worker_pids(), 40, "its workers have ended")
    assert list(heads.folder.iterdir()) == []
    assert find_runs([]) == []


def test_workers_connect_from_the_interface_that_they_are_told(lab: Lab, slurm_config: MakeConfig) -> None:
    network = str(ipaddress.ip_network(f"{lab.head_address}/24", strict=False))
    config = slurm_config(nodes=2, interface=lab.head_address, worker_interface=network)

    with ClusterEnv([Count] * 2, config) as env:
        env.reset(seed=1)
        assert {worker["state"] for worker in env.stats()["workers"]} == {"ready"}


def test_interface_that_no_node_has_is_named_with_those_there_are(lab: Lab, slurm_config: MakeConfig) -> None:
    env = ClusterEnv([Count], slurm_config(worker_interface="ib77", mode="sbatch"), max_restarts=0)

    with pytest.raises(ClusterEnvError, match=r"of node1 fits worker_interface 'ib77'; they are: .*lo 127"):
        env.reset(seed=1)
