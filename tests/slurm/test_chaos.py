"""A few faults over Slurm, with the checker that knows every right row."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clusterenv import ClusterEnv
from tests.agents import MLPAgent
from tests.chaos.calls import Calls, followed
from tests.chaos.ledger import Checker, Ledger
from tests.slurm.conftest import MakeConfig, Record
from tests.slurm.lab import Lab, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]
NODES, ENVS = 2, 4
LEASE_S = 8.0
MENDED_S = 150.0
"""A limit, on a machine that is busy with other things: Slurm and a new worker take seconds by themselves."""


def test_faults_over_slurm_leave_no_wrong_row(
    lab: Lab, slurm_config: MakeConfig, tmp_path: Path, record: Record
) -> None:
    env_fns = [partial(Ledger, env, tmp_path) for env in range(ENVS)]
    config = slurm_config(nodes=NODES, mode="sbatch", exclusive=True)
    with ClusterEnv(env_fns, config, lease_s=LEASE_S, on_env_error="rebuild") as env, followed() as taken:
        checker = Checker(ENVS)
        calls = Calls(env, MLPAgent(env), checker, taken)
        calls.reset(0)

        def restarts() -> int:
            return sum(worker["restarts"] for worker in env.stats()["workers"])

        def whole_again(call: str, since: int) -> Callable[[], bool]:
            def holds() -> bool:
                there = all(worker["state"] == "ready" for worker in env.stats()["workers"])
                return calls.make(call) and there and restarts() > since

            return holds

        def kill_a_worker() -> None:
            os.kill(lab.worker_pids()[0], signal.SIGKILL)

        def stop_a_worker() -> None:
            os.kill(lab.worker_pids()[-1], signal.SIGSTOP)

        def kill_a_node() -> None:
            lab.host("kill-node", str(env.stats()["workers"][1]["host"]), "--silent")

        for call, fault in (("stream", kill_a_worker), ("step", stop_a_worker), ("rollout", kill_a_node)):
            assert calls.make(call)
            since = restarts()
            fault()
            took_s = until(whole_again(call, since), MENDED_S, f"{fault.__name__} in {call} is mended")
            calls.settle()
            record(f"{fault.__name__} in {call}: whole again after", f"{took_s:.1f} s")
        (tmp_path / "fault-3").write_text("raise")
        made = [calls.make("step") for _ in range(20)]
        assert made.count(False) == 1
        assert checker.rows > 100
    until(lambda: not lab.worker_pids() and not lab.active(), 30, "nothing is left")
