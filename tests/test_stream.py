"""`env.stream`: every fragment once, no waiting for the learner, ended within a step, no silent losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import CallTimeout, ConfigError, StateError
from tests.envs import Busy, Count, Index
from tests.test_aaps import Coin

pytestmark = pytest.mark.process

ONE = LocalConfig(nodes=1, cpus_per_node=1)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)


def test_fragments_of_a_worker_follow_each_other_without_a_gap(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 7)] * 4, launcher, seed=0) as env:
        seen: dict[int, list[np.ndarray]] = {}
        for batch in env.stream(Coin(), 16):
            assert batch.obs.shape == (16, len(batch.env_ids), 1)
            for column, env_id in enumerate(batch.env_ids.tolist()):
                seen.setdefault(env_id, []).append(batch.obs[:, column, 0])
            if min(map(len, seen.values())) >= 5 and len(seen) == 4:
                break
        for parts in seen.values():
            steps = np.concatenate(parts)
            np.testing.assert_array_equal(steps, np.arange(len(steps)) % 7)
        obs = env.step(env.action_space.sample())[0]
        assert obs.shape == (4, 1)


def test_batch_has_the_columns_of_its_fragments_in_the_order_of_arrival() -> None:
    with ClusterEnv([partial(Index, i) for i in range(5)], TWO, seed=0) as env:
        with env.stream(Coin(), 8, fragments=3) as stream:
            for _ in range(20):
                batch = stream.take()
                np.testing.assert_array_equal(batch.obs[0, :, 0], batch.env_ids)
                np.testing.assert_array_equal(batch.workers, np.where(batch.env_ids < 3, 0, 1))
                assert len(batch.row_kl) == batch.num_envs
                assert np.allclose(batch.log_probs, np.log(0.5))
        assert stream.closed
        assert list(stream) == []


def test_other_calls_are_refused_while_a_stream_is_open() -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0) as env:
        agent = Coin()
        stream = env.stream(agent, 4)
        calls: list[Any] = [
            lambda: env.step(agent),
            lambda: env.rollout(agent, 2),
            lambda: env.stream(agent, 2),
            env.reset,
            lambda: env.call("render"),
            env.recv,
            lambda: env.publish(Coin()),
        ]
        for call in calls:
            with pytest.raises(StateError, match="stream"):
                call()
        agent.play(0.6)
        assert env.publish(agent) == 2
        assert env.stats()["policy_version"] == 2
        stream.close()
        env.step(agent)


def test_closing_takes_a_step_and_not_a_fragment() -> None:
    with ClusterEnv([partial(Busy, 0.02)] * 2, TWO, seed=0) as env:
        stream = env.stream(Coin(), 1 << 20)
        with pytest.raises(CallTimeout, match="0 of 1 fragments"):
            stream.take(timeout=0.5)
        stream.close()
        assert env.stats()["lost_fragments"] == 2
        assert env.rollout(Coin(), 2).obs.shape == (2, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"fragments": 0}, "fragments is 0"),
        ({"queue": 17}, "queue is 17"),
        ({"sync_at": "row"}, "sync_at is 'row'; expected \"fragment\""),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with ClusterEnv([Count], SERIAL) as env, pytest.raises(ConfigError, match=message):
        env.stream(Coin(), **arguments)


def test_stream_of_closed_environments_says_so() -> None:
    env = ClusterEnv([Count], ONE, seed=0)
    stream = env.stream(Coin(), 4)
    stream.take()
    env.close()
    with pytest.raises(StateError, match="the stream is closed"):
        stream.take()
    stream.close()
