"""Steps through shared memory: the same as by messages, whatever happens on the way, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import CallTimeout, EnvError, StateError, WorkerLost
from clusterenv.lane import INFO_BYTES
from tests.envs import Count, Fails, Nested, Sampled

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left", "without_torch")]

TWO = LocalConfig(nodes=2, cpus_per_node=2)
SPACE = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float64), "b": spaces.Discrete(9)})


class Tagged(Count):
    """Every number of an observation is the step's, and so is the reward: a torn row would hold two."""

    observation_space = spaces.Box(0, np.inf, (256,), np.float64)

    def _obs(self) -> np.ndarray:
        return np.full(256, self.t, np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), float(self.t), False, False, {}


class Talks(Count):
    """Infos that are larger than the room for them, in every third step."""

    def _info(self, k: str) -> dict[str, Any]:
        return {"k": k, "text": "x" * (INFO_BYTES if self.t % 3 == 2 else 1)}


class Naps(Count):
    """Steps that take as long as the action says, in tenths of a second."""

    action_space = spaces.Discrete(600)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(int(action) / 10)
        return super().step(action)


def shares(env: ClusterEnv) -> bool:
    """Whether all workers are stepped through memory."""
    return all(peer.lane is not None for peer in env._run.session.head.peers)


def runner_pids(env: ClusterEnv) -> list[int]:
    return [
        child.pid
        for worker in env.stats()["workers"]
        for child in psutil.Process(worker["pid"]).children(recursive=True)
        if "forkserver" in " ".join(child.cmdline()) and not child.children()
    ]


def _remove_logs(loss: WorkerLost) -> None:
    """They are kept for the caller."""
    assert loss.log_path is not None
    shutil.rmtree(loss.log_path.parent)


def played(make: Callable[[], gym.Env], mode: str, steps: int, **options: Any) -> list[str]:
    """What a run of steps gave, as text."""
    actions = np.zeros(6, np.int64)
    with ClusterEnv([make] * 6, TWO, autoreset_mode=mode, **options) as env:
        told = [repr(env.reset(seed=3))]
        told += [repr(env.step(actions)) for _ in range(steps)]
        assert shares(env) is options.get("shared_memory", True)
    return told


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    "make",
    [partial(Sampled, SPACE), partial(Count, 4), Nested, Talks],
    ids=["dict", "infos", "nested", "talks"],
)
def test_steps_are_those_that_messages_give(make: Callable[[], gym.Env], mode: str) -> None:
    assert played(make, mode, 12) == played(make, mode, 12, shared_memory=False)


def test_samples_without_a_size_go_by_messages() -> None:
    with ClusterEnv([partial(Sampled, spaces.Text(5))] * 2, LocalConfig(nodes=1)) as env:
        env.reset(seed=1)
        env.step(np.zeros(2, np.int64))
        assert not shares(env)


def test_step_sends_no_message() -> None:
    with ClusterEnv([partial(Count, 100)] * 4, TWO) as env:
        env.reset()
        before = env.stats()["bytes_sent"]
        for _ in range(20):
            env.step(np.zeros(4, np.int64))
        assert shares(env)
        assert env.stats()["bytes_sent"] - before < 1000  # heartbeats at most


def test_rows_are_never_torn_and_kept_ones_never_change() -> None:
    with ClusterEnv([Tagged] * 8, TWO) as env:
        env.reset()
        kept = []
        for t in range(1, 400):
            obs, rewards, *_ = env.step(np.zeros(8, np.int64))
            assert (obs == t).all()
            assert (rewards == t).all()
            kept.append(obs)
        assert all((obs == t).all() for t, obs in enumerate(kept, 1))


def test_env_that_raises_is_named_and_steps_go_on_after_a_reset() -> None:
    makes = [partial(Count, 100)] * 3 + [partial(Fails, "step", 2)]
    with ClusterEnv(makes, TWO) as env:
        env.reset()
        env.step(np.zeros(4, np.int64))
        with pytest.raises(EnvError) as caught:
            env.step(np.zeros(4, np.int64))
        assert caught.value.env_index == 3
        env.reset()
        assert env.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [1, 1, 1, 1]
        assert shares(env)


def test_env_that_is_built_anew_is_told_of() -> None:
    makes = [partial(Count, 100)] * 3 + [partial(Fails, "step", 2)]
    with ClusterEnv(makes, TWO, on_env_error="rebuild") as env:
        env.reset()
        infos = [env.step(np.zeros(4, np.int64))[4] for _ in range(2)]
        assert infos[1]["valid"].tolist() == [True, True, True, False]
        assert env.stats()["workers"][1]["env_rebuilds"] == 1


def test_runner_killed_in_a_step_is_noticed_soon() -> None:
    with ClusterEnv([Naps] * 4, TWO, on_worker_loss="raise") as env:
        env.reset()
        env.step(np.zeros(4, np.int64))
        env.step_async(np.full(4, 300))
        victim = runner_pids(env)[0]
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerLost, match="SIGKILL") as caught:
            env.step_wait()
        assert time.monotonic() - began < 10.0
    _remove_logs(caught.value)


def test_worker_that_is_lost_in_a_step_comes_back_and_shares_again() -> None:
    with ClusterEnv([Naps] * 4, TWO) as env:
        env.reset()
        env.step_async(np.array([0, 0, 300, 300]))
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        info = env.step_wait()[4]
        assert info["worker_lost"].tolist() == [False, False, True, True]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if "valid" not in env.step(np.zeros(4, np.int64))[4]:
                break
        assert shares(env)


def test_env_that_hangs_in_a_step_is_killed_after_step_timeout() -> None:
    with ClusterEnv([Naps] * 2, LocalConfig(nodes=1), on_worker_loss="raise", step_timeout_s=1.0) as env:
        env.reset()
        env.step(np.full(2, 2))  # slow, but not too slow
        with pytest.raises(WorkerLost, match="made no progress") as caught:
            env.step(np.full(2, 599))
    _remove_logs(caught.value)


def test_steps_after_one_that_was_not_waited_for() -> None:
    with ClusterEnv([Naps] * 2, LocalConfig(nodes=1)) as env:
        env.reset()
        env.step_async(np.array([10, 0]))
        with pytest.raises(CallTimeout):
            env.step_wait(timeout=0.05)
        assert env.step_wait()[0][:, 0].tolist() == [1, 1]
        assert env.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [2, 2]
        assert env.reset()[0][:, 0].tolist() == [0, 0]


def test_fork_of_the_head_cannot_step() -> None:
    with ClusterEnv([partial(Count, 100)] * 2, LocalConfig(nodes=1)) as env:
        env.reset()
        env.step(np.zeros(2, np.int64))
        pid = os.fork()
        if pid == 0:
            try:
                env.step(np.zeros(2, np.int64))
            except StateError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert env.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [2, 2]
