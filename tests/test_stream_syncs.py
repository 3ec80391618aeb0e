"""Streams whose agent rests, whose weights arrive at bad moments, and which several threads use."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import EnvError, StateError
from tests.envs import Busy, Count, Fails
from tests.processes import wait_until
from tests.test_aaps import Coin

pytestmark = pytest.mark.process

ONE = LocalConfig(nodes=1, cpus_per_node=1)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)


@pytest.mark.parametrize("launcher", [SERIAL, TWO], ids=["serial", "two workers"])
def test_agent_that_changes_between_streams_alone_is_compared_in_them(launcher: LocalConfig) -> None:
    with ClusterEnv([Count] * 2, launcher, seed=0, kl_threshold=0.05) as env:
        agent = Coin()
        for probability in (0.5, 0.99):
            agent.play(probability)
            with env.stream(agent, 4) as stream:
                for _ in range(40):
                    batch = stream.take()
        assert batch.policy_lag.max() == 0
        for worker in env.stats()["workers"]:
            assert worker["syncs_by_reason"] == {"first": 1, "divergence": 1}


def test_agent_that_rests_is_compared_with_a_policy_that_was_pulled_before() -> None:
    with ClusterEnv([partial(Busy, 0.02)], ONE, seed=0, kl_threshold=0.05) as env:
        agent = Coin()
        with env.stream(agent, 10, sync_at="step") as stream:
            stream.take()
            first = env.stats()["weight_bytes_sent"]
            agent.play(0.1)
            env.publish(agent)
            wait_until(lambda: env.stats()["weight_bytes_sent"] > first)
            agent.play(0.9)
            env.publish(agent)  # no fragment of what was pulled has come yet
            for _ in range(20):
                batch = stream.take()
        assert batch.policy_lag.max() == 0
        assert env.stats()["workers"][0]["syncs_by_reason"] == {"first": 1, "divergence": 2}
