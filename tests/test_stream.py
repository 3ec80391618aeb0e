"""`env.stream`: every fragment once, no waiting for the learner, ended within a step, no silent losses."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import AgentError, CallTimeout, ConfigError, EnvError, StateError, WorkerLost
from clusterenv.streaming import Stream
from tests.envs import Busy, Count, Fails, Hangs, Index
from tests.processes import wait_until
from tests.test_aaps import Coin, away_by

pytestmark = pytest.mark.process

ONE = LocalConfig(nodes=1, cpus_per_node=1)
TWO = LocalConfig(nodes=2, cpus_per_node=1)
SERIAL = LocalConfig(serial=True)
ENDLESS = 1 << 30


class Follows:
    """Checks that fragments of endless counting environments follow each other, and counts new beginnings."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.beginnings: dict[int, int] = {}
        self.rows = 0

    def take(self, batch: Any) -> None:
        steps = np.arange(batch.num_steps)
        for column, env_id in enumerate(batch.env_ids.tolist()):
            seen = batch.obs[:, column, 0]
            if seen[0] != self.at.get(env_id):
                assert seen[0] == 0, f"environment {env_id} was at {self.at.get(env_id)}, then at {seen[0]}"
                self.beginnings[env_id] = self.beginnings.get(env_id, 0) + 1
            np.testing.assert_array_equal(seen, seen[0] + steps)
            self.at[env_id] = batch.last_obs[column, 0]
            assert self.at[env_id] == seen[-1] + 1
        self.rows += len(batch)


def stats_of(env: ClusterEnv, rank: int = 0) -> dict[str, Any]:
    stats: dict[str, Any] = env.stats()["workers"][rank]
    return stats


def take(stream: Stream, batches: int) -> None:
    for _ in range(batches):
        stream.take()


# --- what batches hold ----------------------------------------------------------------------------------


def test_fragments_of_a_worker_follow_each_other_without_a_gap(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 7)] * 4, launcher, seed=0) as env:
        seen: dict[int, list[np.ndarray]] = {}
        for batch in env.stream(Coin(), 16):
            assert batch.obs.shape == (16, len(batch.env_ids), 1)
            for column, env_id in enumerate(batch.env_ids.tolist()):
                seen.setdefault(env_id, []).append(batch.obs[:, column, 0])
            if len(seen) == 4 and min(map(len, seen.values())) >= 5:
                break
        for parts in seen.values():
            steps = np.concatenate(parts)
            np.testing.assert_array_equal(steps, np.arange(len(steps)) % 7)
        obs = env.step(env.action_space.sample())[0]
        np.testing.assert_array_equal(env.rollout(Coin(), 2).obs[0], obs % 7)


def test_batch_has_the_columns_of_its_fragments_in_the_order_of_arrival() -> None:
    with ClusterEnv([partial(Index, i) for i in range(5)], TWO, seed=0) as env:
        with env.stream(Coin(), 8, fragments=3) as stream:
            for _ in range(20):
                batch = stream.take()
                np.testing.assert_array_equal(batch.obs[0, :, 0], batch.env_ids)
                np.testing.assert_array_equal(batch.workers, np.where(batch.env_ids < 3, 0, 1))
                assert batch.row_kl.tolist() == [0.0] * batch.num_envs
                assert np.allclose(batch.log_probs, np.log(0.5))
        assert stream.closed
        assert list(stream) == []


def test_thousands_of_fragments_are_each_delivered_once_though_workers_are_killed() -> None:
    with ClusterEnv([partial(Count, ENDLESS)] * 4, TWO, seed=0, lease_s=2.0) as env:
        follows, fragments, kills = Follows(), 0, 0
        end = time.monotonic() + 90
        for batch in env.stream(Coin(), 2):
            follows.take(batch)
            fragments += 1
            if fragments in (500, 1500):
                os.kill(stats_of(env, kills)["pid"], signal.SIGKILL)
                kills += 1
            again = sum(follows.beginnings.values())
            if fragments >= 3000 and again == 8:
                break
            assert time.monotonic() < end, (fragments, follows.beginnings)
        assert follows.beginnings == dict.fromkeys(range(4), 2)
        assert [worker["restarts"] for worker in env.stats()["workers"]] == [1, 1]
        assert follows.rows == 4 * fragments
        assert env.step(env.action_space.sample())[0].shape == (4, 1)


# --- AAPS -----------------------------------------------------------------------------------------------


def test_unchanged_weights_cost_no_messages() -> None:
    with ClusterEnv([Count] * 2, TWO, seed=0) as env, env.stream(Coin(), 4) as stream:
        for _ in range(10):
            stream.take()
        first = env.stats()
        for _ in range(100):
            batch = stream.take()
        after = env.stats()
        assert batch.policy_lag.max() == 0
        for key in ("weight_bytes_sent", "check_bytes_sent", "policy_version"):
            assert after[key] == first[key]


def test_weights_are_pulled_while_the_learner_does_other_things() -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0, kl_threshold=0.05) as env:
        agent = Coin()
        with env.stream(agent, 64, queue=16) as stream:
            batch = stream.take()
            wait_until(lambda: stats_of(env)["steps"] >= 2 * 64 * 2)
            agent.play(away_by(0.2))
            assert env.publish(agent) == 2
            for _ in range(14):
                batch = stream.take()  # what was made before, which makes room again
            agent.play(away_by(0.2))
            wait_until(lambda: stats_of(env)["policy_version"] == 2)
            while batch.policy_version.max() < 2:
                batch = stream.take()
            assert np.isin(np.exp(batch.log_probs), np.float32([away_by(0.2), 1 - away_by(0.2)])).any()
            assert stats_of(env)["syncs_by_reason"] == {"first": 1, "divergence": 1}


@pytest.mark.parametrize("launcher", [SERIAL, TWO], ids=["serial", "two workers"])
def test_worker_pulls_only_when_its_policy_has_drifted(launcher: LocalConfig) -> None:
    with ClusterEnv([Count] * 4, launcher, seed=0, kl_threshold=0.05) as env:
        agent = Coin()
        far = 0.0
        for update, batch in enumerate(env.stream(agent, 8)):
            far = max(far, batch.row_kl.max())
            agent.play(0.5 + update / 500)
            if update == 150:
                break
        workers = env.stats()["workers"]
        for worker in workers:  # of which the machine may let one make far more fragments than the other
            assert set(worker["syncs_by_reason"]) <= {"first", "divergence"}
            assert worker["syncs_by_reason"].get("divergence", 0) <= 2
        assert sum(worker["checks"] for worker in workers) > 20
        assert far > 0.05


def test_bound_on_the_lag_holds_where_fragments_begin() -> None:
    with ClusterEnv([Count] * 2, SERIAL, seed=0, kl_threshold=math.inf, max_lag=3) as env:
        agent, lags = Coin(), []
        for update, batch in enumerate(env.stream(agent, 2)):
            lags.append(int(batch.policy_lag.max()))
            assert (batch.policy_version + batch.policy_lag == update + 1).all()
            agent.play(0.5 + (update + 1) / 100)
            if update == 12:
                break
        assert max(lags) == 3
        assert set(stats_of(env)["syncs_by_reason"]) == {"first", "max_lag"}


def test_bound_on_the_lag_is_256_where_none_is_set() -> None:
    with ClusterEnv([Count], SERIAL, seed=0, kl_threshold=math.inf) as env:
        agent, lags = Coin(), []
        for update, batch in enumerate(env.stream(agent, 1)):
            lags.append(int(batch.policy_lag.max()))
            agent.play(0.5 + (update + 1) / 1000)
            if update == 260:
                break
        assert max(lags) == 256


def probabilities(versions: np.ndarray) -> np.ndarray:
    return np.where(versions == 1, 0.5, np.where(versions % 2 == 0, 0.01, 0.99))


@pytest.mark.parametrize("sync_at", ["step", "episode"])
@pytest.mark.parametrize("runners", [1, 2])
def test_new_weights_act_inside_a_fragment(sync_at: str, runners: int) -> None:
    lengths = [7, 10, 13, 1000]
    env_fns = [partial(Busy, 1e-3, n) for n in lengths]
    launcher = LocalConfig(nodes=1, cpus_per_node=runners)
    with ClusterEnv(env_fns, launcher, seed=0, kl_threshold=0.0) as env:
        agent, batches = Coin(), []
        for update, batch in enumerate(env.stream(agent, 40, sync_at=sync_at, queue=1)):
            batches.append(batch)
            agent.play(0.99 if update % 2 else 0.01)
            if update == 6:
                break
        versions = np.concatenate([batch.policy_version for batch in batches])
        actions = np.concatenate([batch.actions for batch in batches])
        log_probs = np.concatenate([batch.log_probs for batch in batches])
        ended = np.concatenate([batch.terminations | batch.truncations for batch in batches])
        plays_1 = probabilities(versions)
        assert np.allclose(log_probs, np.log(np.where(actions == 1, plays_1, 1 - plays_1)), atol=1e-4)
        changed = versions[1:] != versions[:-1]
        inside = np.flatnonzero(changed.any(1)) % 40 != 39
        assert inside.any()
        if sync_at == "episode":
            assert not (changed & ~ended[:-1]).any()
            assert len(set(versions[:, 3].tolist())) == 1
        assert env.rollout(agent, 2).policy_lag.max() == 0


# --- order and back pressure ----------------------------------------------------------------------------


def test_worker_makes_no_more_than_the_learner_has_room_for() -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0) as env, env.stream(Coin(), 10, queue=3) as stream:
        wait_until(lambda: stats_of(env)["steps"] == 3 * 10 * 2)
        time.sleep(1.5)
        assert stats_of(env)["steps"] == 3 * 10 * 2
        stream.take()
        wait_until(lambda: stats_of(env)["steps"] == 4 * 10 * 2)


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


# --- ends -----------------------------------------------------------------------------------------------


class Steps(Busy):
    """Busy that leaves a file named for its process in `folder` once it has made a step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0.02)
        self.mark = folder / str(os.getpid())

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.mark.touch()
        return super().step(action)


def test_closing_takes_a_step_and_not_a_fragment(tmp_path: Path) -> None:
    with ClusterEnv([partial(Steps, tmp_path)] * 2, TWO, seed=0) as env:
        stream = env.stream(Coin(), 1 << 20)
        with pytest.raises(CallTimeout, match="0 of 1 fragments"):
            stream.take(timeout=0.5)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        stream.close()
        assert env.stats()["lost_fragments"] == 2
        assert env.rollout(Coin(), 2).obs.shape == (2, 2, 1)


def test_every_fragment_is_taken_or_counted_and_the_next_goes_on_where_it_ended() -> None:
    with ClusterEnv([partial(Count, ENDLESS)] * 2, ONE, seed=0) as env:
        agent, taken = Coin(), 0
        for _ in range(5):
            for batch in env.stream(agent, 5, queue=2):
                taken += len(batch)
                if taken % 3 == 0:
                    break
        stats = env.stats()
        at = env.rollout(agent, 1).obs[0, 0, 0]
        whole = taken // 10 + stats["late_fragments"]
        assert 5 * whole <= at <= 5 * (whole + stats["lost_fragments"])


def test_dropped_stream_is_closed(nothing_left: None) -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0) as env:
        stream = env.stream(Coin(), 4)
        stream.take()
        del stream
        env.rollout(Coin(), 2)
        cycle: list[Any] = [env.stream(Coin(), 4)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        env.rollout(Coin(), 2)
        env.stream(Coin(), 4).take()


def test_closed_environments_end_their_stream(nothing_left: None) -> None:
    env = ClusterEnv([Count] * 2, TWO, seed=0)
    stream = env.stream(Coin(), 4)
    stream.take()
    env.close()
    with pytest.raises(StateError, match="the stream is closed"):
        stream.take()
    stream.close()


# --- what goes wrong ------------------------------------------------------------------------------------


def test_environment_that_raises_is_named_and_the_stream_is_closed(launcher: LocalConfig) -> None:
    env_fns = [Count, Count, Count, partial(Fails, "step", 4)]
    with ClusterEnv(env_fns, launcher, seed=0) as env:
        agent = Coin()
        stream = env.stream(agent, 2)
        with pytest.raises(EnvError, match="on purpose") as caught:
            take(stream, 100)
        assert caught.value.env_index == 3
        assert stream.closed
        assert env.stats()["lost_fragments"] >= 1
        env.reset()
        env.rollout(agent, 2)


class Breaks(Coin):
    """Fails where its number is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("broken", torch.zeros(1))

    def distribution(self, obs: torch.Tensor) -> Categorical:
        if self.broken.item():
            raise RuntimeError("broken agent")
        return super().distribution(obs)


def test_agent_that_raises_on_a_worker_closes_the_stream() -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0, sync="every") as env:
        agent = Breaks()
        stream = env.stream(agent, 4)
        stream.take()
        agent.broken.fill_(1)
        with pytest.raises(AgentError, match="broken agent"):
            take(stream, 20)
        agent.broken.fill_(0)
        env.rollout(agent, 2)


def test_agent_of_another_shape_needs_another_stream() -> None:
    with ClusterEnv([Count] * 2, ONE, seed=0) as env:
        agent = Coin()
        stream = env.stream(agent, 4)
        stream.take()
        agent.logits = torch.nn.Parameter(torch.zeros(1, 2))
        with pytest.raises(AgentError, match="other names or shapes"):
            stream.take()
        assert env.stream(agent, 4).take().policy_lag.max() == 0


def test_hanging_environment_is_a_lost_worker_and_the_others_go_on() -> None:
    env_fns = [Count, partial(Hangs, "step")]
    with ClusterEnv(env_fns, TWO, seed=0, step_timeout_s=5.0, max_restarts=0, on_worker_loss="drop") as env:
        for batch in env.stream(Coin(), 4):
            assert batch.workers.tolist() == [0]
            if stats_of(env, 1)["state"] == "gone":
                break
        assert stats_of(env, 1)["lost_fragments"] == 1


def test_lost_worker_is_raised_where_the_options_say_so() -> None:
    with ClusterEnv([Count] * 2, TWO, seed=0, on_worker_loss="raise") as env:
        stream = env.stream(Coin(), 4)
        stream.take()
        os.kill(stats_of(env, 1)["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLost, match="worker 1"):
            take(stream, 1000)
        assert env.closed
        assert stream.closed


def test_worker_told_to_end_delivers_its_fragment_and_its_replacement_joins() -> None:
    with ClusterEnv([partial(Count, ENDLESS)] * 2, ONE, seed=0) as env:
        follows = Follows()
        for number, batch in enumerate(env.stream(Coin(), 8)):
            follows.take(batch)
            if number == 20:
                os.kill(stats_of(env)["pid"], signal.SIGTERM)
            if follows.beginnings[0] == 2:
                break
        assert stats_of(env)["restarts"] == 1
        assert "left: terminated" in stats_of(env)["last_error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"fragments": 0}, "fragments is 0"),
        ({"queue": 17}, "queue is 17"),
        ({"sync_at": "row"}, 'sync_at is \'row\'; expected "fragment", "step", "episode"'),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with ClusterEnv([Count], SERIAL) as env, pytest.raises(ConfigError, match=message):
        env.stream(Coin(), **arguments)
