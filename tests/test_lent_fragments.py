"""Images of workers on this machine: they come through memory, are right, and stay as they are when kept."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Frames

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SHAPE = (64, 64, 3)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(3, 2)

    def distribution(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs[:, 0, 0].float()))


def assert_follows(obs: np.ndarray, first: int) -> None:
    """All pixels of [T, N, ...] are the numbers of the steps from `first` on."""
    expected = (np.arange(first, first + len(obs)) % 251).astype(np.uint8)
    assert (obs == expected[:, None, None, None, None]).all()


@pytest.mark.parametrize("runners", [1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_rollouts_that_are_kept_stay_as_they_are(workers: int, runners: int) -> None:
    launcher = LocalConfig(nodes=workers, cpus_per_node=runners)
    with ClusterEnv([partial(Frames, SHAPE)] * 8, launcher, seed=0) as env:
        agent, kept, received = Agent(), [], []
        env.reset(seed=0)
        for _ in range(12):  # more than lie in memory of the head's own
            kept.append(env.rollout(agent, num_steps=16))
            received.append(env.stats()["bytes_received"])

    for number, batch in enumerate(kept):
        assert batch.valid.all()
        assert_follows(batch.obs, 16 * number)
        assert (batch.last_obs == 16 * (number + 1) % 251).all()
    travelled = np.diff(received, prepend=0)
    assert (travelled < kept[0].obs.nbytes / 10).all()


def test_streams_and_steps_of_the_policy_come_through_memory() -> None:
    with ClusterEnv([partial(Frames, SHAPE)] * 16, LocalConfig(nodes=2), seed=0) as env:
        agent, at, kept = Agent(), dict.fromkeys(range(16), 0), []
        for number, batch in enumerate(env.stream(agent, 8)):
            for column, env_id in enumerate(batch.env_ids.tolist()):
                assert_follows(batch.obs[:, column : column + 1], at[env_id])
                at[env_id] += 8
            kept.append((batch, batch.obs.copy()))
            if number == 30:
                break
        assert all((batch.obs == obs).all() for batch, obs in kept)
        before = env.stats()["bytes_received"]
        obs, _ = env.reset(seed=0)
        for step in range(1, 11):
            obs, *_ = env.step(agent)
            assert (obs == step).all()
        assert env.stats()["bytes_received"] - before < 5 * obs.nbytes


def test_without_shared_memory_all_of_it_travels() -> None:
    with ClusterEnv([partial(Frames, SHAPE)] * 4, LocalConfig(nodes=1), seed=0, shared_memory=False) as env:
        env.reset(seed=0)
        for number in range(4):
            before = env.stats()["bytes_received"]
            batch = env.rollout(Agent(), num_steps=16)
            assert_follows(batch.obs, 16 * number)
            assert env.stats()["bytes_received"] - before > batch.obs.nbytes


def test_killed_worker_leaves_the_others_rows_right_and_comes_back() -> None:
    with ClusterEnv([partial(Frames, SHAPE)] * 8, LocalConfig(nodes=2), seed=0, lease_s=2.0) as env:
        env.reset(seed=0)
        agent, kept = Agent(), []
        for _ in range(3):
            kept.append(env.rollout(agent, num_steps=16))
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            kept.append(env.rollout(agent, num_steps=16))
            if len(kept) > 5 and kept[-1].valid.all():
                break
        assert kept[-1].valid.all()
    for number, batch in enumerate(kept):
        assert_follows(batch.obs[:, :4], 16 * number)
        if number < 3:
            assert_follows(batch.obs, 16 * number)
