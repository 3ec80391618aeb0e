"""A stream over real nodes: one is lost, the others go on, and its replacement joins."""

from __future__ import annotations

from functools import partial

import pytest

from clusterenv import ClusterEnv
from tests.envs import Count
from tests.slurm.conftest import MakeConfig
from tests.slurm.lab import Lab
from tests.test_aaps import Coin
from tests.test_stream import Follows

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]


def test_stream_over_nodes_goes_on_while_one_is_replaced(lab: Lab, slurm_config: MakeConfig) -> None:
    env_fns = [partial(Count, 1 << 30)] * 3
    config = slurm_config(nodes=3, mode="array")
    with ClusterEnv(env_fns, config, seed=0, lease_s=4.0, kl_threshold=0.02) as env:
        agent, follows, killed_at, number = Coin(), Follows(), None, 0
        for batch in env.stream(agent, 8):
            follows.take(batch)
            agent.play(0.5 + 0.3 * (number % 100) / 100)
            number += len(follows.at) == 3  # a hundred batches of one worker may come before another's first
            if number == 100 and killed_at is None:
                killed_at = dict(follows.at)
                worker = env.stats()["workers"][1]
                lab.on(worker["host"], "kill", "-9", str(worker["pid"]))
            if follows.beginnings.get(1) == 2 and number > 150:
                break
        assert killed_at is not None
        assert all(follows.at[env_id] > killed_at[env_id] for env_id in (0, 2))
        assert set(follows.beginnings) == {0, 1, 2}
        workers = env.stats()["workers"]
        assert [worker["restarts"] for worker in workers] == [0, 1, 0]
        assert all("divergence" in workers[rank]["syncs_by_reason"] for rank in (0, 2))
    assert not lab.worker_pids()
