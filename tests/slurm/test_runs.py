"""Whole runs over the nodes of a real cluster: in each mode, from each kind of host, files shared or not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusterenv import ClusterEnv, SlurmConfig
from clusterenv.errors import LaunchError, SetupTimeout, WorkerLost
from tests.agents import MLPAgent
from tests.envs import Count
from tests.slurm.conftest import MakeConfig
from tests.slurm.lab import NODES, Lab, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]

HEAD = """
import sys
import numpy as np
from clusterenv import ClusterEnv, SlurmConfig
from tests.envs import Count
from tests.agents import MLPAgent
from functools import partial

nodes, mode, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
config = SlurmConfig(nodes=nodes, mode=mode, shared_folder=folder)
with ClusterEnv([partial(Count, 7) for _ in range(2 * nodes)], config) as env:
    obs, _ = env.reset(seed=0)
    for step in range(1, 4):
        obs = env.step(np.zeros(2 * nodes, np.int64))[0]
    batch = env.rollout(MLPAgent(env), 10)
    print("hosts", *(worker["host"] for worker in env.stats()["workers"]))
    print("obs", obs[:, 0].astype(int).tolist(), "valid", bool(batch.valid.all()), batch.rewards.shape)
"""


@pytest.fixture
def head_script(tmp_path: Path) -> Path:
    script = tmp_path / "head.py"
    script.write_text(HEAD)
    return script


@pytest.fixture
def python_path(monkeypatch: pytest.MonkeyPatch) -> str:
    """Programs on any host find the tests."""
    path = f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    monkeypatch.setenv("PYTHONPATH", path)
    return path


@pytest.mark.parametrize(("nodes", "mode"), [(2, "sbatch"), (4, "sbatch"), (2, "array")])
def test_run_steps_and_rolls_out_on_nodes_and_leaves_nothing(
    lab: Lab, slurm_config: MakeConfig, tmp_path: Path, nodes: int, mode: str
) -> None:
    config = slurm_config(nodes=nodes, mode=mode, cpus_per_node=2)
    with ClusterEnv([partial(Count, 7) for _ in range(2 * nodes)], config) as env:
        obs, _ = env.reset(seed=0)
        for step in range(1, 4):
            obs, reward, *_ = env.step(np.zeros(2 * nodes, np.int64))
            assert obs[:, 0].tolist() == [step] * 2 * nodes
            assert reward.tolist() == [1.0] * 2 * nodes
        batch = env.rollout(MLPAgent(env), 10)
        assert batch.valid.all()
        assert batch.rewards.shape == (10, 2 * nodes)
        hosts = [worker["host"] for worker in env.stats()["workers"]]
        assert set(hosts) <= set(NODES)
        if mode == "sbatch":
            assert hosts == list(NODES[:nodes])
        assert set(lab.jobs()[job] for job in lab.active()) == {"RUNNING"}
    until(lambda: not lab.active(), 10, "the job has ended")
    assert not lab.worker_pids()
    assert list((tmp_path / "runs").iterdir()) == []


def test_runs_give_the_numbers_of_a_local_run(lab: Lab, slurm_config: MakeConfig) -> None:
    from clusterenv import LocalConfig

    seen = []
    for launcher in (slurm_config(nodes=2, mode="sbatch"), LocalConfig(serial=True)):
        with ClusterEnv("CartPole-v1", launcher, envs_per_node=4 // launcher.nodes, seed=5) as env:
            env.reset(seed=3)
            env.action_space.seed(1)
            seen.append([env.step(env.action_space.sample())[0] for _ in range(30)])
    assert np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize(("nodes", "expected"), [(4, NODES), (3, NODES[1:])])
def test_head_inside_an_allocation_starts_steps_in_it(
    lab: Lab, tmp_path: Path, head_script: Path, python_path: str, nodes: int, expected: list[str]
) -> None:
    command = f"{sys.executable} {head_script} {nodes} auto {tmp_path / 'runs'}"
    options = ("--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=2")
    lines = lab.run(command, *options, output=tmp_path / "head.txt")
    assert f"hosts {' '.join(expected)}" in lines
    assert f"obs {[3] * 2 * nodes} valid True (10, {2 * nodes})" in lines
    assert not lab.worker_pids()


def test_head_inside_an_allocation_can_submit_a_job_of_its_own(
    lab: Lab, tmp_path: Path, head_script: Path, python_path: str
) -> None:
    command = f"{sys.executable} {head_script} 2 sbatch {tmp_path / 'runs'}"
    options = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--export=ALL,SLURM_CPU_BIND=mask_cpu:0x1")
    assert "obs [3, 3, 3, 3] valid True (10, 4)" in lab.run(command, *options, output=tmp_path / "head.txt")


def test_head_on_the_login_host_is_reached(
    lab: Lab, tmp_path: Path, head_script: Path, python_path: str
) -> None:
    env = {"PYTHONPATH": python_path, "SLURM_CONF": lab.environ["SLURM_CONF"]}
    argv = (sys.executable, str(head_script), "2", "sbatch", str(tmp_path / "runs"))
    process = lab.execute("login", *argv, env=env)
    output, _ = process.communicate(timeout=100)
    assert "obs [3, 3, 3, 3] valid True (10, 4)" in output.splitlines(), output


def test_head_listens_where_it_is_told_and_offers_no_loopback(lab: Lab, slurm_config: MakeConfig) -> None:
    config = slurm_config(
        nodes=1, mode="sbatch", interface=f"{lab.head_address}/24", port_range=(45100, 45140)
    )
    with ClusterEnv([partial(Count, 7)], config) as env:
        env.reset(seed=0)
        (endpoint,) = env._run.session._server.endpoints  # type: ignore[union-attr]
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    assert host == lab.head_address
    assert 45100 <= int(port) <= 45140


def test_two_heads_of_one_user_do_not_meet(lab: Lab, slurm_config: MakeConfig) -> None:
    config = slurm_config(nodes=1, mode="sbatch")
    with (
        ClusterEnv([partial(Count, 10**9)], config) as one,
        ClusterEnv([partial(Count, 10**9)], config) as two,
    ):
        for env in (one, two):
            env.reset(seed=0)
        for step in range(1, 6):
            for env in (one, two):
                assert env.step(np.zeros(1, np.int64))[0][0, 0] == step
        assert len(lab.active()) == 2
        assert [env.stats()["refused_messages"] for env in (one, two)] == [0, 0]


def test_interface_that_no_node_can_reach_is_an_error_before_any_job(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    env = ClusterEnv([partial(Count, 7)], slurm_config(mode="sbatch", interface="127.0.0.0/8"))
    with pytest.raises(LaunchError, match=r"no interface fits '127\.0\.0\.0/8'.*the interfaces are: "):
        env.reset(seed=0)
    assert lab.active() == []


@pytest.fixture
def masked(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On the nodes the home (unless Python lives there) and all folders of this test are empty."""
    home = Path.home()
    folders = [str(tmp_path)]
    if not Path(sys.executable).resolve().is_relative_to(home) and not ROOT.is_relative_to(home):
        folders.append(str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for node in NODES:
        for folder in folders:
            lab.on(node, "mount", "-t", "tmpfs", "tmpfs", folder)
    yield
    for node in NODES:
        for folder in folders:
            lab.on(node, "umount", "--lazy", folder)


@pytest.mark.usefixtures("masked")
def test_run_needs_no_shared_folder(lab: Lab) -> None:
    with ClusterEnv(
        [partial(Count, 7) for _ in range(4)], SlurmConfig(nodes=2, mode="sbatch", shared_folder=None)
    ) as env:
        env.reset(seed=0)
        assert env.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [1] * 4
        (job,) = lab.active()
        for what in (["scontrol", "show", "job", job], ["scontrol", "write", "batch_script", job, "-"]):
            assert "CLUSTERENV_CONNECTION={" not in lab.tell(*what)
            assert "secret_key" not in lab.tell(*what)
        for pid in lab.worker_pids():
            assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.usefixtures("masked")
def test_shared_folder_that_is_not_shared_is_an_error_that_says_so(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    env = ClusterEnv([partial(Count, 7)], slurm_config(mode="sbatch"))
    with pytest.raises(WorkerLost, match=r"JobLaunchFailure\) before its first line.* set shared_folder to"):
        env.reset(seed=0)


def test_job_that_dies_at_birth_is_an_error_with_the_end_of_its_log(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    config = slurm_config(nodes=2, mode="sbatch", setup="echo conda: command not found >&2; exit 7")
    env = ClusterEnv([partial(Count, 7) for _ in range(2)], config, connect_timeout_s=30)
    with pytest.raises(WorkerLost, match=r"ended with exit code 7[\s\S]*conda: command not found"):
        env.reset(seed=0)
    assert lab.active() == []


def test_wait_in_the_queue_has_a_limit_of_its_own_and_tells_slurms_reason(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    config = slurm_config(nodes=1, mode="sbatch", directives={"hold": True}, queue_timeout_s=4.0)
    env = ClusterEnv([partial(Count, 7)], config, connect_timeout_s=1.0)
    with pytest.raises(SetupTimeout, match=r"queue_timeout_s = 4 s: .*PENDING \(JobHeldUser\)"):
        env.reset(seed=0)
    assert lab.active() == []


def test_wait_in_the_queue_is_told_and_does_not_use_up_the_time_to_connect(
    lab: Lab, slurm_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = lab.submit("sleep 12", "--nodes=4", "--exclusive")
    config = slurm_config(nodes=2, mode="sbatch")
    with ClusterEnv([partial(Count, 7) for _ in range(2)], config, connect_timeout_s=8.0) as env:
        env.reset(seed=0)
        assert lab.jobs()[blocker] == "COMPLETED"
    assert re.search(r"Slurm jobs wait in the queue: \d+: PENDING \(\w+\)", caplog.text)


def test_run_begins_with_min_nodes_and_the_others_join_under_their_own_indices(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    blocker = lab.submit("sleep 300", "--nodes=2", "--exclusive")
    config = slurm_config(nodes=4, min_nodes=2, mode="array", exclusive=True)
    with ClusterEnv([partial(Count, 10**9) for _ in range(4)], config, connect_timeout_s=20.0) as env:
        env.reset(seed=0)
        actions = np.zeros(4, np.int64)
        info = env.step(actions)[4]
        assert sorted(info["valid"].tolist()) == [False, False, True, True]
        lab.tell("scancel", blocker)
        until(lambda: "valid" not in env.step(actions)[4], 40, "all four are there")
        assert env.step(actions)[1].tolist() == [1.0] * 4
        assert len({worker["host"] for worker in env.stats()["workers"]}) == 4


def test_interrupted_wait_in_the_queue_leaves_no_job(lab: Lab, tmp_path: Path, python_path: str) -> None:
    import signal

    script = tmp_path / "head.py"
    script.write_text(
        "from clusterenv import ClusterEnv, SlurmConfig\n"
        f"config = SlurmConfig(mode='sbatch', directives={{'hold': True}}, shared_folder={str(tmp_path)!r})\n"
        "ClusterEnv('CartPole-v1', config).reset(seed=0)\n"
    )
    head = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    until(lab.active, 30, "the job is in the queue")
    head.send_signal(signal.SIGINT)
    _, said = head.communicate(timeout=30)
    assert head.returncode in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in said
    assert lab.active() == []
