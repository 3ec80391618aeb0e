"""EnvPool's `async_reset`, `send` and `recv`: rows as they are ready, each with its number."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ActionError, ConfigError, EnvError, StateError
from tests.agents import MLPAgent
from tests.contract.gadgets import Sleeper
from tests.contract.spaces import actions, observations
from tests.contract.vectors import NUM_ENVS, SERIAL, TRANSPORTS, TWO_WORKERS
from tests.contract.walking import Walker, assert_same
from tests.envs import Count, Fails, RandomObs

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SCRIPT = [[2, 3], [4], [1, 2, 3]]


@pytest.fixture(params=["serial", "two workers", "workers with runners"])
def launcher(request: pytest.FixtureRequest) -> LocalConfig:
    return TRANSPORTS[request.param]


def row_of(batch: Any, row: int) -> Any:
    """The part of a nested batch that is of one row."""
    if isinstance(batch, dict):
        return {key: row_of(part, row) for key, part in batch.items()}
    return batch[row]


@pytest.mark.parametrize("batch_size", [1, 3, NUM_ENVS])
def test_each_environment_goes_the_way_it_goes_in_lockstep(launcher: LocalConfig, batch_size: int) -> None:
    mode = AutoresetMode.SAME_STEP if batch_size == 3 else AutoresetMode.NEXT_STEP
    env_fns = [
        partial(Walker, observations(0)["half"], actions(0)["start"], i, SCRIPT) for i in range(NUM_ENVS)
    ]
    steps = 14
    chosen = np.random.default_rng(0).integers(-2, 2, (steps, NUM_ENVS))
    lockstep: dict[int, list[Any]] = defaultdict(list)
    reference = SyncVectorEnv(env_fns, autoreset_mode=mode)
    seen = reference.reset(seed=7)[0], *np.zeros((3, NUM_ENVS))
    for t in range(steps):
        for row in range(NUM_ENVS):
            lockstep[row].append([row_of(part, row) for part in seen])
        seen = reference.step(chosen[t])[:4]
    own: dict[int, list[Any]] = defaultdict(list)
    with ClusterEnv(env_fns, launcher, batch_size=batch_size, autoreset_mode=mode) as env:
        env.async_reset(seed=7)
        for _ in range(2 * steps * NUM_ENVS // batch_size // 3):
            *batch, info = env.recv()
            ids = info["env_id"]
            assert ids.dtype == np.int64
            assert len(ids) == len(set(ids.tolist())) == batch_size
            for row, env_id in enumerate(ids.tolist()):
                own[env_id].append([row_of(part, row) for part in batch])
            env.send(np.array([chosen[(len(own[i]) - 1) % steps, i] for i in ids.tolist()]))
    for env_id, rows in own.items():
        for t, (mine, other) in enumerate(zip(rows, lockstep[env_id], strict=False)):
            assert_same(mine[0], other[0], f"obs of {env_id} at {t}")
            assert [float(part) for part in mine[1:]] == [float(part) for part in other[1:]]


def test_actions_go_to_the_environments_that_env_id_names_in_any_order(launcher: LocalConfig) -> None:
    env_fns = [
        partial(Walker, observations(1)["sequence"], actions(0)["text"], i, [[10**6]])
        for i in range(NUM_ENVS)
    ]
    with ClusterEnv(env_fns, launcher, batch_size=2) as env:
        env.async_reset(seed=1)
        given: dict[int, str] = {}
        for turn in range(20):
            obs, _, _, _, info = env.recv()
            ids = info["env_id"].tolist()
            for text, env_id in zip(obs["echo"], ids, strict=True):
                assert given.get(env_id, text) == text
            assert info["_env_id"].all()
            assert info["t"].tolist() == obs["numbers"][:, 0].tolist()
            texts = [f"{turn % 10}{env_id}" for env_id in ids]
            env.send(texts[::-1], ids[::-1])
            given |= dict(zip(ids, texts, strict=True))


def test_rows_that_ended_carry_their_final_observations(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 2)] * NUM_ENVS, launcher, batch_size=3, autoreset_mode="SameStep") as env:
        env.async_reset(seed=0)
        ended = 0
        for _ in range(10):
            obs, _, terminated, _, info = env.recv()
            for row in np.flatnonzero(terminated):
                assert info["final_obs"][row].tolist() == [2.0]
                assert info["final_info"]["k"][row] == "step"
                assert obs[row].tolist() == [0.0]
                assert info["k"][row] == "reset"
                ended += 1
            env.send(np.zeros(3, np.int64))
        assert ended


def test_slow_worker_holds_nobody_up() -> None:
    env_fns = [partial(Sleeper, i, 1.0 if i >= 3 else 0.0) for i in range(NUM_ENVS)]
    with ClusterEnv(env_fns, TWO_WORKERS, batch_size=3) as env:
        env.launch()
        env.async_reset(seed=0)
        began = time.monotonic()
        for _ in range(3):
            assert sorted(env.recv()[4]["env_id"].tolist()) == [0, 1, 2]
            env.send(np.zeros(3, np.int64))
        assert time.monotonic() - began < 2.0  # the first reset of the other two takes that long
        slow: set[int] = set()
        deadline = time.monotonic() + 60
        while not slow >= {3, 4}:
            assert time.monotonic() < deadline
            slow |= set(env.recv()[4]["env_id"].tolist())
            env.send(np.zeros(3, np.int64))


def test_reset_again_forgets_what_was_on_its_way(launcher: LocalConfig) -> None:
    with ClusterEnv([RandomObs] * NUM_ENVS, launcher, batch_size=2) as env:
        expected = env.reset(seed=3)[0]
        for again in range(3):
            env.async_reset(seed=3)
            if again:
                env.recv()
            seen = {}
            env.async_reset(seed=3)
            for _ in range(2):
                obs, *_, info = env.recv()
                seen |= dict(zip(info["env_id"].tolist(), obs, strict=True))
            for env_id, obs in seen.items():
                assert_same(obs, expected[env_id], "obs")
        assert_same(env.reset(seed=3)[0], expected, "obs")
        env.step(np.zeros(NUM_ENVS, np.int64))


def test_whole_batches_mix_with_step_while_nothing_is_on_its_way(launcher: LocalConfig) -> None:
    with ClusterEnv([partial(Count, 90)] * NUM_ENVS, launcher, seed=0) as env:
        env.reset(seed=0)
        env.send(np.zeros(NUM_ENVS, np.int64))
        obs, *_, info = env.recv()
        assert obs[:, 0].tolist() == [1.0] * NUM_ENVS
        assert sorted(info["env_id"].tolist()) == list(range(NUM_ENVS))
        assert env.step(np.zeros(NUM_ENVS, np.int64))[0][:, 0].tolist() == [2.0] * NUM_ENVS
        agent = MLPAgent(env)
        assert env.step(agent)[0][:, 0].tolist() == [3.0] * NUM_ENVS
        assert env.rollout(agent, 2).obs[:, 0, 0].tolist() == [3.0, 4.0]
        env.send(np.zeros(1, np.int64), [4])
        env.send(np.zeros(4, np.int64), [2, 0, 1, 3])
        assert env.recv()[0][:, 0].tolist() == [6.0] * NUM_ENVS


def test_what_does_not_fit_is_refused_before_anything_moves() -> None:
    zero = np.zeros(1, np.int64)
    with ClusterEnv([partial(Count, 90)] * 3, SERIAL, batch_size=2) as env:
        with pytest.raises(StateError, match="send before reset"):
            env.send(zero, [0])
        with pytest.raises(StateError, match="recv before reset"):
            env.recv()
        env.reset(seed=0)
        with pytest.raises(StateError, match=r"batch_size = 2 environments, but 0 are on their way"):
            env.recv()
        env.async_reset(seed=0)
        with pytest.raises(StateError, match=r"environments \[0\] are on their way"):
            env.send(zero, [0])
        first = env.recv()[4]["env_id"].tolist()
        other = ({0, 1, 2} - set(first)).pop()
        for ids in ([first[0], first[0]], [3, 0], [-1, 0], [0.5, 1], "01", [True, False]):
            with pytest.raises(ConfigError, match="env_id"):
                env.send(np.zeros(2, np.int64), ids)
        with pytest.raises(StateError, match=rf"environments \[{other}\] are on their way"):
            env.send(np.zeros(2, np.int64), [first[0], other])
        for bad in (np.zeros(3, np.int64), np.zeros(2), "ab", None):
            with pytest.raises(ActionError):
                env.send(bad)
        with pytest.raises(StateError, match="but 1 are on their way"):
            env.recv()
        for call in (env.render, lambda: env.step(np.zeros(3, np.int64)), lambda: env.call("where")):
            with pytest.raises(AlreadyPendingCallError, match="on their way; recv"):
                call()
        env.send(np.zeros(2, np.int64))
        obs, *_, info = env.recv()
        assert dict(zip(info["env_id"].tolist(), obs[:, 0].tolist(), strict=True)) == {
            other: 0.0,
            first[0]: 1.0,
        }
        with pytest.raises(ConfigError, match="reset_mask"):
            env.async_reset(options={"reset_mask": np.array([True, False, False])})


def test_batch_size_and_mode_that_cannot_work_are_refused() -> None:
    for batch_size in (0, 4, 1.5, True, "2"):
        with pytest.raises(ConfigError, match="batch_size"):
            ClusterEnv([Count] * 3, SERIAL, batch_size=batch_size)
    with (
        ClusterEnv([Count] * 3, SERIAL, autoreset_mode="Disabled") as env,
        pytest.raises(StateError, match="autoreset is disabled"),
    ):
        env.async_reset()


def test_ended_environment_is_refused_before_any_moves_when_autoreset_is_disabled(
    launcher: LocalConfig,
) -> None:
    ends = [9, 2, 9, 2, 9]
    with ClusterEnv([partial(Count, n) for n in ends], launcher, autoreset_mode="Disabled") as env:
        env.reset(seed=0)
        for _ in range(2):
            env.send(np.zeros(NUM_ENVS, np.int64))
            env.recv()
        for move in (env.step, env.send, lambda actions: env.send(actions, range(NUM_ENVS))):
            with pytest.raises(StateError, match=r"environments \[1, 3\] have ended"):
                move(np.zeros(NUM_ENVS, np.int64))
        with pytest.raises(StateError, match=r"environments \[3\] have ended"):
            env.send(np.zeros(2, np.int64), [3, 2])
        assert env.get_attr("t") == (2,) * NUM_ENVS
        env.reset(options={"reset_mask": np.array(ends) == 2})
        env.send(np.zeros(NUM_ENVS, np.int64))
        env.recv()
        assert env.get_attr("t") == (3, 1, 3, 1, 3)


def test_environment_that_raises_is_named_and_a_reset_goes_on(launcher: LocalConfig) -> None:
    env_fns = [partial(Fails, "step", 2) if i == 4 else partial(Count, 9) for i in range(NUM_ENVS)]
    with ClusterEnv(env_fns, launcher) as env:
        env.async_reset(seed=0)
        env.recv()
        env.send(np.zeros(NUM_ENVS, np.int64))
        env.recv()
        with pytest.raises(EnvError, match="environment 4"):  # noqa: PT012  which of the two, is the transport's
            env.send(np.zeros(NUM_ENVS, np.int64))
            env.recv()
        with pytest.raises(StateError, match="call async_reset or reset first"):
            env.recv()
        with pytest.raises(StateError, match="call async_reset or reset first"):
            env.send(np.zeros(NUM_ENVS, np.int64))
        env.async_reset(seed=0)
        assert env.recv()[0][:, 0].tolist() == [0.0] * NUM_ENVS


def test_killed_worker_shows_its_loss_in_its_rows_and_comes_back() -> None:
    with ClusterEnv([partial(Count, 10**6) for _ in range(4)], TWO_WORKERS, batch_size=2, lease_s=3) as env:
        env.async_reset(seed=0)
        kept: dict[int, float] = {}
        lost: dict[int, int] = defaultdict(int)
        back: dict[int, int] = defaultdict(int)
        stepped_since: set[int] = set()
        deadline = time.monotonic() + 90
        turn = 0
        alive = True
        while len(stepped_since) < 2:
            assert time.monotonic() < deadline
            turn += 1
            if alive and turn >= 10 and len(kept) == 4:  # one worker may answer ten times before the other
                os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
                alive = False
            obs, reward, terminated, truncated, info = env.recv()
            assert not terminated.any()
            for row, env_id in enumerate(info["env_id"].tolist()):
                valid = bool(info["valid"][row]) if "valid" in info else True
                if valid:
                    assert obs[row, 0] == kept.get(env_id, -1.0) + 1.0
                    assert not truncated[row]
                    if back[env_id]:
                        stepped_since.add(env_id)
                else:
                    assert env_id in (2, 3)
                    assert reward[row] == 0.0
                    was_lost = bool(info["worker_lost"][row])
                    assert truncated[row] == was_lost
                    (lost if was_lost else back)[env_id] += 1
                    assert obs[row, 0] == (kept[env_id] if was_lost else 0.0)
                kept[env_id] = float(obs[row, 0])
            env.send(np.zeros(2, np.int64))
        assert dict(lost) == {2: 1, 3: 1}
        assert {env_id: count for env_id, count in back.items() if count} == {2: 1, 3: 1}


def test_batch_that_needs_a_lost_worker_comes_without_it_until_it_is_back() -> None:
    zeros = np.zeros(4, np.int64)
    with ClusterEnv([partial(Count, 10**6)] * 4, TWO_WORKERS, lease_s=3) as env:
        env.async_reset(seed=0)
        env.recv()
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        lost, without, last, steps = 0, 0, -1.0, 0
        deadline = time.monotonic() + 90
        while not (without and last >= 1.0):
            assert time.monotonic() < deadline
            env.send(zeros)
            obs, _, _, _, info = env.recv()
            steps += 1
            rows = {env_id: row for row, env_id in enumerate(info["env_id"].tolist())}
            assert obs[rows[0], 0] == steps
            valid = "valid" not in info or info["valid"][rows[3]]
            if not valid and info["worker_lost"][rows[3]]:
                lost += 1
            elif not valid:
                without += 1
            elif lost:
                assert obs[rows[3], 0] == last + 1.0
            last = obs[rows[3], 0] if lost else -1.0
        assert lost == 1
        assert without > 1  # of which the last has the observation of the reset


@pytest.mark.parametrize("between", ["reset", "step"])
def test_send_goes_on_after_a_loss_that_lockstep_has_mended(between: str) -> None:
    zeros = np.zeros(4, np.int64)
    with ClusterEnv([partial(Count, 10**6)] * 4, TWO_WORKERS, lease_s=3) as env:
        env.async_reset(seed=0)
        info = env.recv()[4]
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not info.get("worker_lost", np.zeros(1)).any():
            assert time.monotonic() < deadline
            env.send(zeros)
            info = env.recv()[4]
        while env.stats()["workers"][1]["state"] != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if between == "reset":
            env.reset()
        else:
            assert env.step(zeros)[4]["valid"].tolist() == [True, True, False, False]
        before = env.get_attr("t")
        env.send(zeros)
        assert "valid" not in env.recv()[4]
        assert env.get_attr("t") == tuple(t + 1 for t in before)


def test_dropped_worker_leaves_rows_that_are_not_valid() -> None:
    with ClusterEnv([partial(Count, 10**6)] * 4, TWO_WORKERS, batch_size=4, on_worker_loss="drop") as env:
        env.async_reset(seed=0)
        env.recv()
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        invalid = 0
        while invalid < 4:
            assert time.monotonic() < deadline
            env.send(np.zeros(4, np.int64))
            *_, info = env.recv()
            if "valid" in info:
                invalid += 1
                order = np.argsort(info["env_id"])
                assert info["valid"][order].tolist() == [True, True, False, False]
