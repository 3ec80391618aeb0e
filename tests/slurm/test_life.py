"""What can happen to a run on a cluster: each event ends in a typed error or a recovery, within its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusterenv import ClusterEnv
from clusterenv.errors import WorkerLost
from clusterenv.launchers.slurm_allocation import Allocation
from tests.envs import Count
from tests.slurm.conftest import MakeConfig, Record
from tests.slurm.lab import Lab, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
LEASE_S = 4.0
LOOK_S = 1.5
"""What may come on top of a lease: one look at the leases, on a busy machine."""
CLOSE_S = 8.0
"""The error comes once all is closed, of which Slurm is told."""


def env_of(config: object, nodes: int, **options: object) -> ClusterEnv:
    """One environment on each node, that counts its steps."""
    settings = {"lease_s": LEASE_S, "seed": 0, **options}
    return ClusterEnv([partial(Count, 10**9) for _ in range(nodes)], config, **settings)  # type: ignore[arg-type]


def step_until(
    env: ClusterEnv, holds: Callable[[dict[str, object]], object], within_s: float, what: str
) -> float:
    """Seconds of stepping until an info fulfils `holds`."""
    actions = np.zeros(env.num_envs, np.int64)
    return until(lambda: holds(env.step(actions)[4]), within_s, what)


def lost(rank: int) -> Callable[[dict[str, object]], object]:
    return lambda info: "worker_lost" in info and info["worker_lost"][rank]  # type: ignore[index]


def all_back(info: dict[str, object]) -> bool:
    return "valid" not in info


def host_of(env: ClusterEnv, rank: int) -> str:
    return str(env.stats()["workers"][rank]["host"])


def step_for_ever(env: ClusterEnv) -> None:
    while True:
        env.step(np.zeros(env.num_envs, np.int64))


@pytest.mark.parametrize("how", ["plain", "silent", "cut"])
def test_lost_node_is_a_lost_worker_after_the_lease(
    lab: Lab, slurm_config: MakeConfig, how: str, record: Record
) -> None:
    env = env_of(slurm_config(nodes=2, mode="sbatch"), 2, on_worker_loss="raise")
    env.reset(seed=0)
    node = host_of(env, 1)
    if how == "cut":
        lab.host("cut-node", node)
    else:
        lab.host("kill-node", node, *(["--silent"] if how == "silent" else []))
    start = time.monotonic()
    with pytest.raises(WorkerLost, match=rf"worker 1 \(host {node}, environments 1 to 1\)") as caught:
        step_for_ever(env)
    took_s = time.monotonic() - start
    record("noticed after", f"{took_s:.1f} s")
    assert took_s < LEASE_S + LOOK_S + CLOSE_S
    assert (caught.value.rank, caught.value.host, caught.value.env_indices) == (1, node, (1,))
    env.close()


def test_worker_of_a_lost_node_comes_back_on_another_and_the_others_have_no_gap(
    lab: Lab, slurm_config: MakeConfig, record: Record
) -> None:
    with env_of(slurm_config(nodes=3, mode="sbatch", exclusive=True), 3) as env:
        env.reset(seed=0)
        node = host_of(env, 2)
        lab.host("kill-node", node, "--silent")
        rows: list[float] = []

        def back(info: dict[str, object]) -> bool:
            return bool(rows) and all_back(info)

        actions = np.zeros(3, np.int64)
        start = time.monotonic()
        while True:
            obs, reward, _, _, info = env.step(actions)
            rows.append(obs[0, 0])
            assert reward[:2].tolist() == [1.0, 1.0]
            if env.stats()["workers"][2]["restarts"] == 1 and all_back(info):
                break
            assert time.monotonic() - start < 60
        record("back after", f"{time.monotonic() - start:.1f} s")
        assert rows == list(range(1, len(rows) + 1))
        assert host_of(env, 2) == "node4"
        assert node != "node4"


def test_step_of_a_lost_node_comes_back_on_another_of_the_allocation(
    lab: Lab,
    slurm_config: MakeConfig,
    allocation: Allocation,
    monkeypatch: pytest.MonkeyPatch,
    record: Record,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", allocation.job_id)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(allocation.nodes))
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x3)")
    monkeypatch.setenv("SLURM_JOB_NODELIST", ",".join(allocation.hosts))
    with env_of(slurm_config(nodes=2, mode="auto"), 2) as env:
        env.reset(seed=0)
        assert [host_of(env, rank) for rank in range(2)] == ["node2", "node3"]
        lab.host("kill-node", "node3", "--silent")
        start = time.monotonic()
        step_until(env, lost(1), LEASE_S + LOOK_S, "the worker is lost")
        step_until(env, all_back, 60, "its replacement is there")
        record("back after", f"{time.monotonic() - start:.1f} s")
        assert host_of(env, 1) == "node2"


def test_cut_off_worker_that_returns_does_not_confuse_the_run(lab: Lab, slurm_config: MakeConfig) -> None:
    with env_of(slurm_config(nodes=2, mode="sbatch", exclusive=True), 2, head_grace_s=60.0) as env:
        env.reset(seed=0)
        node = host_of(env, 1)
        lab.host("cut-node", node)
        step_until(env, lost(1), LEASE_S + LOOK_S, "the worker is lost")
        step_until(env, all_back, 60, "its replacement is there")
        assert host_of(env, 1) != node
        lab.host("heal-node", node)  # the old worker still believes in its head
        end = time.monotonic() + 6
        step_until(env, lambda info: not all_back(info) or time.monotonic() > end, 10, "some seconds")
        stats = env.stats()["workers"][1]
        assert (stats["restarts"], stats["state"]) == (1, "ready")


@pytest.mark.parametrize("mode", ["sbatch", "array"])
def test_job_cancelled_by_the_user_is_told_with_slurms_words(
    lab: Lab, slurm_config: MakeConfig, mode: str, record: Record
) -> None:
    env = env_of(slurm_config(nodes=2, mode=mode), 2, on_worker_loss="raise")
    env.reset(seed=0)
    lab.tell("scancel", *lab.active())
    start = time.monotonic()
    with pytest.raises(WorkerLost, match="left: terminated"):
        step_for_ever(env)
    record("noticed after", f"{time.monotonic() - start:.1f} s")
    assert time.monotonic() - start < LEASE_S
    env.close()
    until(lambda: not lab.active(), 15, "no job is left")


def test_killed_head_leaves_no_worker_and_no_job(
    lab: Lab, tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}")
    script = tmp_path / "head.py"
    script.write_text(
        "import time\n"
        "from clusterenv import ClusterEnv, SlurmConfig\n"
        f"config = SlurmConfig(nodes=2, mode='sbatch', shared_folder={str(tmp_path)!r})\n"
        f"env = ClusterEnv('CartPole-v1', config, envs_per_node=2, lease_s={LEASE_S})\n"
        "env.reset(seed=0); print('up', flush=True); time.sleep(600)\n"
    )
    head = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    assert head.stdout.readline() == "up\n"
    assert len(lab.worker_pids()) == 2
    (job,) = lab.active()
    head.kill()
    head.wait()
    head.stdout.close()
    took_s = until(lambda: not lab.worker_pids(), LEASE_S + LOOK_S + 2, "the workers are gone")
    record("workers gone after", f"{took_s:.1f} s")
    until(lambda: not lab.active(), 15, "the job has ended")
    assert lab.jobs()[job] == "COMPLETED"


def test_requeued_job_brings_the_same_workers_back_as_new_incarnations(
    lab: Lab, slurm_config: MakeConfig, record: Record
) -> None:
    with env_of(slurm_config(nodes=2, mode="sbatch"), 2) as env:
        env.reset(seed=0)
        (job,) = lab.active()
        lab.tell("scontrol", "requeue", job)
        start = time.monotonic()
        step_until(env, lost(0), 15, "the workers are lost")
        step_until(env, all_back, 60, "they are back")
        record("back after", f"{time.monotonic() - start:.1f} s")
        assert lab.active() == [job]
        assert [worker["restarts"] for worker in env.stats()["workers"]] == [1, 1]
        assert env.step(np.zeros(2, np.int64))[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("partition", ["low", "spot"])
def test_preempted_workers_come_back_when_there_is_room(
    lab: Lab, slurm_config: MakeConfig, partition: str, record: Record
) -> None:
    config = slurm_config(nodes=2, mode="array", partition=partition, exclusive=True)
    with env_of(config, 2, max_restarts=20) as env:
        env.reset(seed=0)
        lab.submit("sleep 8", "--partition=high", "--nodes=3", "--exclusive")
        start = time.monotonic()
        actions = np.zeros(2, np.int64)
        until(lambda: "worker_lost" in env.step(actions)[4], 40, "a worker is preempted")
        assert env.stats()["workers"]
        step_until(env, all_back, 90, "both are there")
        record("back after", f"{time.monotonic() - start:.1f} s")


def test_workers_are_told_before_the_time_limit_and_replaced(
    lab: Lab, slurm_config: MakeConfig, record: Record
) -> None:
    with env_of(slurm_config(nodes=1, mode="sbatch"), 1) as env:
        env.reset(seed=0)
        (job,) = lab.active()
        lab.tell("scontrol", "update", f"jobid={job}", "EndTime=now+100")
        start = time.monotonic()
        step_until(env, lost(0), 80, "the worker has left")
        record("left after", f"{time.monotonic() - start:.1f} s")
        assert "walltime" in env.stats()["workers"][0]["last_error"]
        step_until(env, all_back, 60, "its replacement is there")
        assert lab.active() != [job]


def test_run_goes_on_while_the_controller_is_away(lab: Lab, slurm_config: MakeConfig, record: Record) -> None:
    with env_of(slurm_config(nodes=2, mode="sbatch"), 2) as env:
        env.reset(seed=0)
        lab.save(*lab.active())
        lab.host("kill-node", "ctl")
        env._run.session._launcher.look_soon()  # type: ignore[union-attr]
        end = time.monotonic() + 60
        slowest_s = 0.0
        while time.monotonic() < end:
            start = time.monotonic()
            assert "valid" not in env.step(np.zeros(2, np.int64))[4]
            slowest_s = max(slowest_s, time.monotonic() - start)
        record("slowest step", f"{slowest_s:.2f} s")
        assert slowest_s < 2.0
        lab.host("start-node", "ctl")
        assert "valid" not in env.step(np.zeros(2, np.int64))[4]
    until(lambda: not lab.active(), 40, "the job has ended")


def test_close_is_bounded_while_the_controller_is_away(
    lab: Lab, slurm_config: MakeConfig, record: Record
) -> None:
    env = env_of(slurm_config(nodes=2, mode="sbatch"), 2)
    env.reset(seed=0)
    lab.save(*lab.active())
    lab.host("kill-node", "ctl")
    start = time.monotonic()
    env.close()
    took_s = time.monotonic() - start
    record("closed after", f"{took_s:.1f} s")
    assert took_s < 20
    assert not lab.worker_pids()
    lab.host("start-node", "ctl")
    until(lambda: not lab.active(), 60, "the job has ended")


def test_job_that_lost_the_node_of_its_script_is_cancelled_and_its_workers_replaced(
    lab: Lab, slurm_config: MakeConfig, record: Record
) -> None:
    with env_of(slurm_config(nodes=2, mode="sbatch", exclusive=True), 2) as env:
        env.reset(seed=0)
        (job,) = lab.active()
        lab.host("kill-node", host_of(env, 0), "--silent")
        start = time.monotonic()
        step_until(env, lost(0), LEASE_S + LOOK_S, "the worker is lost")

        def job_is_gone(_: object) -> bool:
            return lab.jobs()[job] == "CANCELLED"

        step_until(env, job_is_gone, 90, "the job is cancelled")
        record("cancelled after", f"{time.monotonic() - start:.1f} s")
        step_until(env, all_back, 60, "both workers are there")
        assert {host_of(env, rank) for rank in range(2)} <= {"node2", "node3", "node4"}


def test_runner_and_forkserver_outlive_the_signals_that_slurm_sends_to_all(
    lab: Lab, slurm_config: MakeConfig
) -> None:
    env = env_of(slurm_config(nodes=1, mode="sbatch"), 1, on_worker_loss="raise")
    env.reset(seed=0)
    (job,) = lab.active()
    lab.tell("scancel", "--signal=USR1", job)
    with pytest.raises(WorkerLost, match="left: walltime"):
        step_for_ever(env)
    env.close()


def test_interrupted_head_cancels_its_jobs(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'registry'}:{os.environ.get('PYTHONPATH', '')}")
    script = tmp_path / "head.py"
    script.write_text(
        "import time\n"
        "from clusterenv import ClusterEnv, SlurmConfig\n"
        "config = SlurmConfig(nodes=6, min_nodes=1, mode='array', exclusive=True, "
        f"shared_folder={str(tmp_path)!r})\n"
        "env = ClusterEnv('CartPole-v1', config, envs_per_node=1)\n"
        "env.reset(seed=0); print('up', flush=True); time.sleep(600)\n"
    )
    head = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert head.stdout is not None
    assert head.stdout.readline() == "up\n"
    assert sorted(lab.jobs().values())[-6:].count("PENDING") == 2
    head.send_signal(signal.SIGINT)
    head.communicate(timeout=40)
    assert lab.active() == []
    assert not lab.worker_pids()
