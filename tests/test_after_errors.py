"""What `step(agent)` goes on from after a call that failed while environments moved."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import AgentError, EnvError, StateError
from tests.envs import Count, Fails
from tests.processes import wait_until
from tests.test_agent_kinds import ScoringCoin
from tests.test_stream import take

pytestmark = pytest.mark.process


class RaisesOnce(ScoringCoin):
    """Plays 1 with a probability that falls with the observation; raises where it first acts on a 3."""

    def __init__(self) -> None:
        super().__init__()
        self.raised = False
        self.is_deaf = False

    def act(self, obs: np.ndarray) -> np.ndarray:
        if (obs == 3).any() and not self.raised:
            self.raised = True
            raise RuntimeError("no idea")
        return (self.random.random(len(obs)) < self._chances(obs)).astype(np.int64)

    def log_prob(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        chances = self._chances(obs)
        return np.log(np.where(actions == 1, chances, 1 - chances))

    def value(self, obs: np.ndarray) -> np.ndarray:
        if self.is_deaf:
            raise RuntimeError("no idea")
        return super().value(obs)

    def _chances(self, obs: np.ndarray) -> np.ndarray:
        return self.chance / (1 + obs[:, 0])


def fail(env: ClusterEnv, agent: RaisesOnce, call: str) -> None:
    if call == "rollout":
        env.rollout(agent, 5)
    elif call == "stream":
        take(env.stream(agent, 5), 20)
    else:
        for _ in range(5):
            env.step(agent)


@pytest.mark.parametrize("call", ["rollout", "stream", "step"])
def test_after_an_agent_raised_a_lagging_worker_is_judged_where_its_environments_stand(call: str) -> None:
    env_fns = [partial(Count, 2), partial(Count, 1 << 30)]
    launcher = LocalConfig(nodes=2, cpus_per_node=1)
    with ClusterEnv(env_fns, launcher, seed=0, kl_threshold=100.0) as env:
        agent = RaisesOnce()
        env.reset()
        env.step(agent)
        with pytest.raises(AgentError, match="no idea"):
            fail(env, agent, call)
        stands_at = np.array(env.get_attr("t"), np.float32)
        assert stands_at[1] == 3
        agent.chance[:] = 0.75

        info = env.step(agent)[4]

        assert info["policy_lag"].tolist() == [1, 1]
        assert info["value"].tolist() == stands_at.tolist()
        log_probs = agent.log_prob(stands_at[:, None], info["action"])
        assert info["log_prob"] == pytest.approx(log_probs)


def test_ends_of_a_step_that_failed_are_known_to_the_next_which_moves_nothing() -> None:
    env_fns = [partial(Count, 2), partial(Fails, "step", 2)]
    launcher = LocalConfig(nodes=2, cpus_per_node=1)
    with ClusterEnv(env_fns, launcher, autoreset_mode=AutoresetMode.DISABLED) as env:
        env.reset(seed=0)
        env.step(ScoringCoin())
        with pytest.raises(EnvError, match="on purpose"):
            env.step(ScoringCoin())
        with pytest.raises(StateError, match=r"environments \[0\] have ended"):
            env.step(np.zeros(2, np.int64))
        assert env.get_attr("t") == (2, 1)

        env.reset(options={"reset_mask": np.array([True, True])})
        assert env.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [1, 1]


class ThinksAtFirst(ScoringCoin):
    """Takes longer for its first action than an environment may take for a step."""

    def __init__(self) -> None:
        super().__init__()
        self.thinks_s = 6.0

    def act(self, obs: np.ndarray) -> np.ndarray:
        time.sleep(self.thinks_s)
        self.thinks_s = 0.0
        return super().act(obs)


@pytest.mark.parametrize("call", ["rollout", "step"])
def test_time_of_the_agent_is_not_that_of_an_environment(call: str) -> None:
    launcher = LocalConfig(nodes=1, cpus_per_node=1)
    with ClusterEnv([Count], launcher, step_timeout_s=3.0, on_worker_loss="raise", seed=0) as env:
        env.reset()
        agent = ThinksAtFirst()
        assert env.rollout(agent, 3).valid.all() if call == "rollout" else env.step(agent)[0][0] == 1


def test_after_the_learners_agent_raised_it_judges_where_the_environments_stand() -> None:
    launcher = LocalConfig(nodes=1, cpus_per_node=1)
    with ClusterEnv([partial(Count, 1 << 30)], launcher, seed=0, sync="never") as env:
        agent = RaisesOnce()
        env.reset()
        env.step(agent)
        agent.chance[:] = 0.75
        agent.is_deaf = True
        with pytest.raises(AgentError, match="no idea"):
            env.step(agent)
        assert env.get_attr("t") == (2,)
        agent.is_deaf = False
        assert env.step(agent)[4]["value"].tolist() == [2]


def test_after_an_environment_raised_those_of_other_runners_stand_where_they_have_come_to() -> None:
    env_fns = [partial(Fails, "step", 4), partial(Count, 1 << 30)]
    launcher = LocalConfig(nodes=1, cpus_per_node=2)
    with ClusterEnv(env_fns, launcher, seed=0) as env:
        agent = ScoringCoin()
        env.reset()
        with pytest.raises(EnvError, match="on purpose"):
            env.rollout(agent, 8)

        obs, _ = env.reset(options={"reset_mask": np.array([True, False])})

        assert obs[:, 0].tolist() == list(env.get_attr("t"))
        assert obs[1, 0] > 0
        assert env.step(agent)[4]["value"].tolist() == obs[:, 0].tolist()


def test_lost_row_after_a_stream_shows_nothing_older_than_the_stream_has_delivered() -> None:
    with ClusterEnv([partial(Count, 1 << 30)] * 2, LocalConfig(nodes=2, cpus_per_node=1), seed=0) as env:
        with env.stream(ScoringCoin(), 8) as stream:
            delivered = np.zeros(2)
            while not delivered.all():
                batch = stream.take()
                delivered[batch.env_ids] = batch.last_obs[:, 0]
            os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
            wait_until(lambda: env.stats()["workers"][1]["state"] != "ready")
        obs, rewards, _, truncations, info = env.step(np.zeros(2, np.int64))
        assert info["worker_lost"].tolist() == [False, True]
        assert (rewards[1], truncations[1]) == (0, True)
        assert obs[1, 0] >= delivered[1]
