"""Observations of rollouts over local workers are written in place, and nothing else tells of it."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig, Rollout, batch_memory, segments
from clusterenv.errors import WorkerLost
from tests.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SHAPE = (40, 40, 4)
T, N = 24, 8
IMAGE = spaces.Box(0, 255, SHAPE, np.uint8)
SPACES = {
    "bytes": IMAGE,
    "floats": spaces.Box(-1, 1, SHAPE, np.float32),
    "doubles": spaces.Box(-1, 1, (30, 30), np.float64),
    "a dict": spaces.Dict(image=IMAGE, speed=spaces.Box(-1, 1, (3,), np.float32), lives=spaces.Discrete(5)),
    "words too": spaces.Dict(image=IMAGE, said=spaces.Text(6), flags=spaces.MultiBinary(3)),
    "a tuple": spaces.Tuple((spaces.Box(0, 9, (), np.int64), IMAGE)),
}


class Drawn(gym.Env[Any, np.int64]):
    """What is observed is drawn, and depends on actions; every seventh step or so ends an episode."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(3)
        self.said = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: np.int64) -> Any:
        for _ in range(int(action)):
            self.np_random.random()
        draw = self.np_random.random()
        return self.observation_space.sample(), draw, draw < 0.1, draw > 0.95, {}


class Looks(nn.Module):
    """Acts on a few numbers of whatever is observed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor = nn.Linear(4, 3)
        self.critic = nn.Linear(4, 1)

    def distribution(self, obs: Any) -> Categorical:
        return Categorical(logits=self.actor(_few(obs)))

    def value(self, obs: Any) -> torch.Tensor:
        return self.critic(_few(obs))[:, 0]


class Reads:
    """The same without torch, which has no tensors of words."""

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"offset": np.zeros(1)}

    def act(self, obs: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        lengths = np.array([len(word) for word in obs["said"]])
        seen = obs["image"][:, 0, 0, 0].astype(np.float32)
        return (seen.astype(np.int64) + lengths) % 3, np.zeros(len(seen), np.float32), seen


def _few(obs: Any) -> torch.Tensor:
    if isinstance(obs, dict):
        obs = obs["image"]
    if isinstance(obs, tuple):
        obs = obs[1]
    return obs.flatten(1)[:, :4].float() / 255


class Flat(nn.Module):
    """A plain network over all numbers of a vector, which acts in C++."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(inputs, 3), nn.Linear(inputs, 1)

    def distribution(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs)[:, 0]


class Numbered(gym.Env[np.ndarray, np.int64]):
    """Every pixel is the number of the step; each step takes a while."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.observation_space = IMAGE
        self.action_space = spaces.Discrete(3)
        self.step_s, self.steps = step_s, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._frame(), {}

    def step(self, action: np.int64) -> Any:
        time.sleep(self.step_s)
        self.steps += 1
        return self._frame(), 1.0, False, False, {}

    def _frame(self) -> np.ndarray:
        return np.full(SHAPE, self.steps % 251, np.uint8)


class Unreachable(Numbered):
    """Its process cannot map any memory from its first reset on."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        def refused(_: object) -> Any:
            raise PermissionError(13, "Permission denied")

        segments.attach = refused
        return super().reset(seed=seed, options=options)


def leaves(rollout: Rollout) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{name}.{key}", part)
        elif isinstance(value, tuple):
            for key, part in enumerate(value):
                add(f"{name}.{key}", part)
        else:
            flat[name] = value

    for item in fields(rollout):
        add(item.name, getattr(rollout, item.name))
    return flat


def assert_same(one: Rollout, other: Rollout) -> None:
    ours, theirs = leaves(one), leaves(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == theirs[name].dtype, name
            assert value.flags.writeable, name
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)
        else:
            assert value == theirs[name], name


def collected(
    env_fn: Callable[[], gym.Env], launcher: LocalConfig, agent: object, *, shared: bool
) -> tuple[list[Rollout], list[int]]:
    """Rollouts of several lengths, and the bytes that each has sent."""
    received = []
    with ClusterEnv([env_fn] * N, launcher, seed=3, shared_memory=shared) as env:
        env.reset(seed=3)
        rollouts = []
        for num_steps in (T, T, T + 7, T):
            before = env.stats()["bytes_received"]
            rollouts.append(env.rollout(agent, num_steps))
            received.append(env.stats()["bytes_received"] - before)
    return rollouts, received


@pytest.mark.parametrize(
    ("space", "nodes", "runners"),
    [*((space, 2, 2) for space in SPACES), ("bytes", 1, 1), ("a dict", 1, 3)],
)
def test_rollouts_are_those_that_travel(space: str, nodes: int, runners: int) -> None:
    launcher = LocalConfig(nodes=nodes, cpus_per_node=runners)
    make = partial(Drawn, SPACES[space])

    agent = Reads() if space == "words too" else Looks()

    in_place, received = collected(make, launcher, agent, shared=True)
    travelled, sent = collected(make, launcher, agent, shared=False)

    assert sum(len(rollout.final_index) for rollout in in_place) > 10
    for one, other in zip(in_place, travelled, strict=True):
        assert_same(one, other)
    ends = sum(len(rollout.final_index) for rollout in in_place) / (4 * T * N)
    assert sum(received) < (0.1 + 2 * ends) * sum(sent)


def test_networks_that_act_in_cpp_collect_in_rows_of_their_own() -> None:
    space = spaces.Box(-1, 1, (6400,), np.float32)
    launcher = LocalConfig(nodes=2)

    shared, received = collected(partial(Drawn, space), launcher, Flat(6400), shared=True)
    travelled, _ = collected(partial(Drawn, space), launcher, Flat(6400), shared=False)

    for one, other in zip(shared, travelled, strict=True):
        assert_same(one, other)
    assert lies_in_place(shared[0].obs)  # nobody knows the network yet
    assert not lies_in_place(shared[1].obs)
    assert received[0] < shared[0].obs.nbytes / 2


def lies_in_place(array: np.ndarray[Any, Any]) -> bool:
    """Whether it begins in memory of this process that runners write to, which is mapped privately."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, *_ = line.split()
        first, end = (int(place, 16) for place in places.split("-"))
        if first <= array.ctypes.data < end:
            return rights.endswith("p") and "/dev/shm/clusterenv-" in line
    return False


def _pieces() -> set[int]:
    """Inodes of memory of this process, by its descriptors."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was that of the folder
            if str(descriptor.readlink()).startswith("/dev/shm/clusterenv-"):
                found.add(descriptor.stat().st_ino)
    return found


def test_memory_is_used_again_and_stays_the_same() -> None:
    before = _pieces()
    with ClusterEnv([Numbered] * N, LocalConfig(nodes=2, cpus_per_node=2), seed=0) as env:
        env.reset(seed=0)
        agent, seen, used = Looks(), set(), []
        for _ in range(30):
            batch = env.rollout(agent, T)
            seen |= _pieces() - before
            tree = psutil.Process().children(recursive=True)
            used.append(sum(each.memory_info().rss for each in (psutil.Process(), *tree)))
        assert len(seen) == 2  # one is filled while the caller has the other
        assert used[-1] - used[12] < 4 * batch.obs.nbytes  # by then the agent has been watched again once
        assert (batch.obs[-1] == (30 * T - 1) % 251).all()
    del batch
    assert not _pieces() - before


def test_batches_are_the_callers_own() -> None:
    with ClusterEnv([Numbered] * N, LocalConfig(nodes=2), seed=0) as env:
        env.reset(seed=0)
        agent = Looks()
        batch = env.rollout(agent, T)
        kept = copy.deepcopy(batch)
        tensors = batch.torch()
        other = env.rollout(agent, T)
        batch.obs[:] += 1
        assert (tensors.obs.numpy() == batch.obs).all()
        assert (pickle.loads(pickle.dumps(batch)).obs == batch.obs).all()
        assert (batch.obs == kept.obs + 1).all()
        del batch
        for _ in range(4):
            env.rollout(agent, T)
    assert (tensors.obs.numpy() == kept.obs + 1).all()
    assert (other.obs == (T + np.arange(T))[:, None, None, None, None] % 251).all()
    other.obs[:] = 0


def test_step_goes_on_from_a_rollout() -> None:
    with ClusterEnv([Numbered] * N, LocalConfig(nodes=1), seed=0) as env:
        env.reset(seed=0)
        batch = env.rollout(Looks(), T)
        assert (batch.last_obs == T).all()
        obs, *_ = env.step(np.zeros(N, np.int64))
        assert (obs == T + 1).all()
        assert (batch.last_obs == T).all()


@pytest.mark.parametrize(("nodes", "odd"), [(1, 1), (2, 1), (2, N)])
def test_runners_that_cannot_map_it_send_their_rows(nodes: int, odd: int) -> None:
    env_fns = [Numbered] * (N - odd) + [Unreachable] * odd
    with ClusterEnv(env_fns, LocalConfig(nodes=nodes, cpus_per_node=2), seed=0) as env:
        env.reset(seed=0)
        for number in range(3):
            batch = env.rollout(Looks(), T)
            expected = (number * T + np.arange(T)) % 251
            assert (batch.obs == expected[:, None, None, None, None]).all()
            assert (batch.last_obs == (number + 1) * T % 251).all()
            assert not lies_in_place(batch.obs)
    assert batch.obs.flags.writeable


def test_no_memory_to_be_had_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batch_memory.segments, "create", full)
    with (
        caplog.at_level(logging.INFO, "clusterenv"),
        ClusterEnv([Numbered] * N, LocalConfig(nodes=1), seed=0) as env,
    ):
        env.reset(seed=0)
        for _ in range(2):
            assert env.rollout(Looks(), T).valid.all()
    assert caplog.text.count("No space left") == 1


# --- lost workers ------------------------------------------------------------------------------------------


def tree_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        if process.is_running():
            process.send_signal(number)


def meanwhile(act: Callable[[], None], after_s: float) -> threading.Timer:
    timer = threading.Timer(after_s, act)
    timer.start()
    return timer


def assert_half(batch: Rollout, first: int) -> None:
    """The first worker's columns are right, those of the second are zeros."""
    half = N // 2
    expected = (np.arange(first, first + batch.num_steps) % 251)[:, None, None, None, None]
    assert (batch.obs[:, :half] == expected).all()
    assert batch.valid[:, :half].all()
    assert not batch.obs[:, half:].any()
    assert not batch.last_obs[half:].any()
    assert not batch.valid[:, half:].any()


@pytest.mark.parametrize("on_worker_loss", ["drop", "restart"])
def test_killed_worker_leaves_zeros_in_its_columns(on_worker_loss: str) -> None:
    slow = partial(Numbered, 0.01)
    with ClusterEnv([slow] * N, LocalConfig(nodes=2), seed=0, on_worker_loss=on_worker_loss) as env:
        env.reset(seed=0)
        agent = Looks()
        whole = env.rollout(agent, T)
        victim = env.stats()["workers"][1]["pid"]
        timer = meanwhile(lambda: os.kill(victim, signal.SIGKILL), 0.3)
        batch = env.rollout(agent, T)
        timer.join()
        assert_half(batch, T)
        if on_worker_loss == "drop":
            assert_half(env.rollout(agent, T), 2 * T)
        else:
            wait_until(lambda: env.rollout(agent, 2).valid.all(), 60)
    assert_half(batch, T)
    assert (whole.obs == np.arange(T)[:, None, None, None, None]).all()


def test_lost_worker_that_ends_the_run_leaves_batches_as_they_are() -> None:
    slow = partial(Numbered, 0.01)
    with ClusterEnv([slow] * N, LocalConfig(nodes=2), seed=0, on_worker_loss="raise") as env:
        env.reset(seed=0)
        whole = env.rollout(Looks(), T)
        victim = env.stats()["workers"][1]["pid"]
        timer = meanwhile(lambda: os.kill(victim, signal.SIGKILL), 0.3)
        with pytest.raises(WorkerLost) as raised:
            env.rollout(Looks(), T)
        timer.join()
    shutil.rmtree(raised.value.log_path.parent)  # kept, since the error names it
    assert (whole.obs == np.arange(T)[:, None, None, None, None]).all()


def test_worker_that_was_given_up_and_goes_on_writes_into_nobodys_batch() -> None:
    slow = partial(Numbered, 0.01)
    options = {"on_worker_loss": "drop", "lease_s": 2.0, "seed": 0}
    with ClusterEnv([slow] * N, LocalConfig(nodes=2, cpus_per_node=1), **options) as env:
        env.reset(seed=0)
        agent = Looks()
        env.rollout(agent, T)
        frozen = tree_of(env.stats()["workers"][1]["pid"])
        timer = meanwhile(lambda: send(frozen, signal.SIGSTOP), 0.3)
        batch = env.rollout(agent, T)
        timer.join()
        assert_half(batch, T)

        send(frozen, signal.SIGCONT)

        for number in range(2, 5):
            assert_half(env.rollout(agent, T), number * T)
        assert_half(batch, T)
