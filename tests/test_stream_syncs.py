"""Streams whose agent rests, whose weights arrive at bad moments, and which several threads use."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
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
from tests.test_stream import take

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


def test_stream_is_of_one_thread_at_a_time() -> None:
    with ClusterEnv([partial(Busy, 0.02)], ONE, seed=0) as env:
        agent, batches = Coin(), []
        stream = env.stream(agent, 100)
        other = threading.Thread(target=lambda: batches.append(stream.take()))
        other.start()
        wait_until(lambda: env.stats()["workers"][0]["pid"] is not None)
        time.sleep(0.3)
        calls: list[Any] = [stream.take, stream.close, lambda: env.publish(agent)]
        for call in calls:
            with pytest.raises(StateError, match="another thread"):
                call()
        other.join(30)
        assert len(batches) == 1
        assert stream.take().rewards.shape == (100, 1)
        stream.close()
        env.rollout(agent, 2)


def test_forked_process_is_refused_a_batch() -> None:
    with ClusterEnv([Count], ONE, seed=0) as env, env.stream(Coin(), 100) as stream:
        stream.take()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                stream.take(timeout=10)
            except StateError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            assert "forked" in said.read()
        os.waitpid(child, 0)
        stream.take()


def test_environment_that_raises_ends_what_other_runners_make() -> None:
    env_fns = [partial(Fails, "step", 4), partial(Busy, 0.01)]
    launcher = LocalConfig(nodes=1, cpus_per_node=2)
    with ClusterEnv(env_fns, launcher, seed=0) as env:
        with pytest.raises(EnvError, match="on purpose"):
            env.stream(Coin(), 1 << 20).take(timeout=60)
        env.reset()


class Heavy(Coin):
    """Coin with weights of several megabytes, which take a while to load."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.Parameter(torch.zeros(4 << 20))


class FailsAfter(Count):
    """Count that raises in the step after a file has come."""

    def __init__(self, path: str) -> None:
        super().__init__(1 << 30)
        self.path = path

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.05)
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Path(self.path).exists():
            raise RuntimeError("on purpose")
        return super().step(action)


def test_error_while_weights_are_on_their_way_leaves_the_worker_in_order(
    tmp_path: Any,
) -> None:
    flag = tmp_path / "fail"
    with ClusterEnv([partial(FailsAfter, str(flag))], ONE, seed=0, kl_threshold=0.0) as env:
        agent = Heavy()
        for attempt in range(12):
            stream = env.stream(agent, 8, sync_at="step")
            stream.take()
            agent.play(0.4 + attempt / 100)
            env.publish(agent)
            time.sleep(attempt / 500)
            flag.touch()
            with pytest.raises(EnvError, match="on purpose"):
                take(stream, 1000)
            flag.unlink()
            env.reset()
            assert env.rollout(agent, 2).policy_lag.max() == 0
        assert env.stats()["workers"][0]["restarts"] == 0


class Starts(nn.Module):
    """Recurrent: the state is the initial one of the weights of its first step of the episode, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))

    def begin_with(self, start: float) -> None:
        with torch.no_grad():
            self.start.fill_(start)

    def initial_state(self, n: int) -> torch.Tensor:
        return self.start.expand(n, 1)

    def distribution(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        return Categorical(logits=torch.zeros(len(obs), 2)), state

    def value(self, obs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state[:, 0]


@pytest.mark.parametrize("sync_at", ["fragment", "step", "episode"])
def test_episodes_begin_in_the_initial_state_of_the_weights_that_act(sync_at: str) -> None:
    with ClusterEnv([partial(Count, 4)] * 2, ONE, seed=0, sync="every") as env:
        agent, batches = Starts(), []
        agent.begin_with(1.0)
        with env.stream(agent, 8, sync_at=sync_at, queue=1) as stream:
            for update in range(2, 60):
                agent.begin_with(float(update))  # version n begins with n
                batches.append(stream.take())
        obs, values, versions = (
            np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("obs", "values", "policy_version")
        )
        firsts = obs[..., 0] == 0
        assert len(np.unique(versions)) > 5
        np.testing.assert_array_equal(values[firsts], versions[firsts])


def test_rollout_begins_episodes_in_the_initial_state_of_the_weights_that_act() -> None:
    with ClusterEnv([partial(Count, 4)] * 2, SERIAL, seed=0, sync="every") as env:
        agent = Starts()
        for update in range(1, 4):
            agent.begin_with(float(update))
            batch = env.rollout(agent, 4)
            assert (batch.values == update).all()
            assert (batch.initial_state == update).all()


class Loads(Coin):
    """Coin whose arrival on a worker takes a while, and whose value tells who it is."""

    def __init__(self, name: float) -> None:
        super().__init__()
        self.name = name

    def __setstate__(self, state: Any) -> None:
        time.sleep(1.0)
        super().__setstate__(state)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.full((len(obs),), self.name)


def test_worker_that_returns_while_another_agent_comes_acts_with_that() -> None:
    with ClusterEnv([Count] * 2, TWO, seed=0) as env:
        env.rollout(Loads(1.0), 2)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        assert env._run is not None
        head = env._run.session.head
        # It has reset its environments and is being given the first agent.
        wait_until(lambda: head.peers[1].catching_up and head.peers[1].fresh, within_s=60)
        with env.stream(Loads(2.0), 2) as stream:
            seen: set[int] = set()
            while seen != {0, 1}:
                batch = stream.take(timeout=60)
                seen |= set(batch.workers.tolist())
                assert (batch.values == 2.0).all()


def test_reset_begins_episodes_with_the_newest_weights_in_a_stream_that_syncs_at_episodes() -> None:
    with ClusterEnv([partial(Count, 1 << 30)] * 2, SERIAL, seed=0, sync="every") as env:
        agent = Coin()
        env.reset()
        for probability in (0.4, 0.6):
            agent.play(probability)
            env.reset(options={"reset_mask": np.array([False, True])})
            with env.stream(agent, 2, sync_at="episode") as stream:
                batch = stream.take()
        np.testing.assert_array_equal(batch.policy_version, [[1, 2]] * 2)
