"""A worker that holds the run's key and lies: it is refused and lost, and the others have no gap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from clusterenv import ClusterEnv, values
from clusterenv.errors import WorkerLost
from clusterenv.infos import encode_infos
from clusterenv.transport import messages as m
from tests.agents import MLPAgent
from tests.envs import Count, Sampled
from tests.processes import wait_until
from tests.reliability.threads import Lie, Sent, honest, thread_env

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

N = 2
"""Environments of each of the two workers; the second one lies."""
Change = Callable[[Any, list[Any]], tuple[Any, list[Any]]]


@dataclass
class Bomb:
    """Fails the test's process where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (exec, ("import os; os.abort()",))


def raw(frame: Any) -> bytes:
    return frame.tobytes() if isinstance(frame, np.ndarray) else bytes(frame)


def lying(kind: type[m.Message], change: Change, after: int = 0) -> Lie:
    """Changes message and frames of answers of a kind, the first `after` of which are honest."""
    seen: list[int] = []

    def lie(message: m.Message, frames: Sequence[Any], sequence: int) -> list[Sent]:
        if not isinstance(message, kind):
            return honest(message, frames, sequence)
        seen.append(sequence)
        if len(seen) <= after:
            return honest(message, frames, sequence)
        changed, with_frames = change(message, [raw(each) for each in frames])
        return [(changed, with_frames, sequence)]

    return lie


def fields(**changes: Any) -> Change:
    return lambda message, frames: (msgspec.structs.replace(message, **changes), frames)


def frame(number: int, content: Callable[[bytes], bytes]) -> Change:
    def change(message: Any, frames: list[Any]) -> tuple[Any, list[Any]]:
        frames[number] = content(frames[number])
        return message, frames

    return change


def policy(**changes: Any) -> Change:
    def change(message: Any, frames: list[Any]) -> tuple[Any, list[Any]]:
        return msgspec.structs.replace(
            message, policy=msgspec.structs.replace(message.policy, **changes)
        ), frames

    return change


def pickled(_: bytes) -> bytes:
    import pickle

    return pickle.dumps(Bomb())


EPISODE = m.Episode(env_id=0, episode_return=1e9, length=1)  # of the honest worker
STEP = {
    "a frame too few": lambda message, frames: (message, frames[:-1]),
    "a frame too many": lambda message, frames: (message, [*frames, b""]),
    "a truncated frame": frame(0, lambda content: content[:-1]),
    "an oversized frame": frame(0, lambda content: content * 1000),
    "another dtype": frame(1, lambda content: np.frombuffer(content).astype(np.float32).tobytes()),
    "a pickle for observations": frame(0, pickled),
    "flags that are none": frame(2, lambda content: b"\x02" * len(content)),
    "a claim of 2^47 finals": fields(num_final=(1 << 48) - 1),
    "frames in another order": lambda message, frames: (message, frames[::-1]),
    "a pickle for infos": fields(infos=[pickled(b"")]),
    "infos of another worker": fields(infos=[encode_infos([(0, {"cheat": 1})])]),
    "infos of nobody": fields(infos=[encode_infos([(10_000, {"cheat": 1})])]),
    "final infos of another worker": fields(final_infos=[encode_infos([(0, {"cheat": 1})])]),
    "a lost step of another worker": fields(lost=[0]),
    "an answer of another kind": lambda message, frames: (m.Ack(), []),
}
FRAGMENT = {
    "a fragment of another length": fields(num_steps=1),
    "a claim of 2^47 steps": fields(num_steps=(1 << 48) - 1),
    "a claim of 2^47 final rows": fields(num_final=(1 << 48) - 1),
    "an episode of another worker": fields(episodes=[EPISODE]),
    "a version that was never published": policy(policy_version=1 << 40),
    "no version at all": policy(policy_version=0),
    "a final row outside of its environments": frame(
        # T = 4 and n = 2: column n of the index must be below 2
        -3,
        lambda content: np.full(len(content) // 8, 3, np.int64).tobytes(),
    ),
    "a pickle for rewards": frame(2, pickled),
    "observations in memory that it was not told of": fields(in_place=True),
}


def counts(n: int = 3) -> list[Callable[[], gym.Env]]:
    return [partial(Count, n) for _ in range(2 * N)]


def step(env: ClusterEnv) -> tuple[Any, ...]:
    return env.step(np.zeros(2 * N, np.int64))


@pytest.mark.parametrize("attack", STEP)
def test_lie_in_a_step_loses_its_worker_alone_and_the_run_goes_on(
    attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    lie = lying(m.StepReply, STEP[attack], after=1)
    with thread_env(counts(100), 2, {1: lie}) as (env, workers), caplog.at_level(logging.WARNING):
        env.reset(seed=0)
        step(env)
        obs, reward, _, truncated, info = step(env)

        assert obs[:, 0].tolist() == [2, 2, 1, 1]  # of the liar what was last known
        assert reward.tolist() == [1, 1, 0, 0]
        assert truncated.tolist() == [False, False, True, True]
        assert info["worker_lost"].tolist() == [False, False, True, True]
        assert caplog.text.count("worker 1 (host") == 1
        wait_until(lambda: step(env)[4].get("valid", np.ones(4, bool)).all())
        assert workers.respawned == [1]
        if attack != "an answer of another kind":
            assert env.stats()["refused_messages"] >= 1  # and what the lost worker had still on its way


@pytest.mark.parametrize("attack", FRAGMENT)
def test_lie_in_a_rollout_leaves_the_rows_of_its_worker_not_valid(attack: str) -> None:
    lie = lying(m.FragmentReply, FRAGMENT[attack], after=1)
    with thread_env(counts(), 2, {1: lie}) as (env, workers):
        env.reset(seed=0)
        agent = MLPAgent(env)
        assert env.rollout(agent, 4).valid.all()

        rollout = env.rollout(agent, 4)

        assert rollout.valid[:, :N].all()
        assert not rollout.valid[:, N:].any()
        assert rollout.policy_version.max() == 1
        assert {episode.env_id for episode in rollout.episodes} <= {0, 1}
        wait_until(lambda: env.rollout(agent, 4).valid.all())
        assert workers.respawned == [1]


def test_lie_in_a_reset_gives_what_was_last_known() -> None:
    lie = lying(m.ResetReply, frame(0, lambda content: content[1:]), after=1)
    with thread_env(counts(), 2, {1: lie}) as (env, _):
        env.reset(seed=0)
        step(env)

        obs, _ = env.reset(seed=0)

        assert obs[:, 0].tolist() == [0, 0, 1, 1]


def test_lie_in_a_call_stands_for_a_lost_worker() -> None:
    lie = lying(m.CallReply, lambda message, frames: (message, [values.join([pickled(b"")] * N)]))
    with thread_env(counts(7), 2, {1: lie}) as (env, _):
        env.reset(seed=0)

        assert env.get_attr("n") == (7, 7, None, None)


def test_samples_of_a_space_without_a_size_are_never_unpickled() -> None:
    env_fns = [partial(Sampled, spaces.Text(5)) for _ in range(2 * N)]
    lie = lying(
        m.StepReply, lambda message, frames: (message, [values.join([pickled(b"")] * N), *frames[1:]])
    )
    with thread_env(env_fns, 2, {1: lie}) as (env, _):
        env.reset(seed=0)

        info = step(env)[4]

        assert info["worker_lost"].tolist() == [False, False, True, True]


def test_lie_ends_the_run_where_losses_do_and_says_what_was_sent() -> None:
    lie = lying(m.StepReply, STEP["a truncated frame"])
    with thread_env(counts(), 2, {1: lie}, on_worker_loss="raise") as (env, _):
        env.reset(seed=0)

        with pytest.raises(WorkerLost, match=r"worker 1 .* sent an answer that cannot be read: frame 0 has"):
            step(env)


def both(message: m.Message, frames: Sequence[Any], sequence: int) -> list[Sent]:
    copies = [raw(each) for each in frames]
    return [(message, copies, sequence), (message, copies, sequence)]


def held_back() -> Lie:
    """Answers come one late, each before the answer to the command before it."""
    kept: list[Sent] = []

    def lie(message: m.Message, frames: Sequence[Any], sequence: int) -> list[Sent]:
        if not isinstance(message, m.StepReply):
            return honest(message, frames, sequence)
        copies = [raw(each) for each in frames]
        before, kept[:] = list(kept), [(message, copies, sequence)]
        return [(message, copies, sequence), *before]

    return lie


@pytest.mark.parametrize("lie", [both, held_back()], ids=["replayed", "out of order"])
def test_answers_that_come_twice_or_out_of_order_count_once(lie: Lie) -> None:
    with thread_env(counts(100), 2, {1: lie}) as (env, workers):
        env.reset(seed=0)
        rows = [step(env)[0][:, 0].tolist() for _ in range(20)]

        assert rows == [[t] * 4 for t in range(1, 21)]
        assert env.stats()["late_replies"] >= 18
        assert not workers.respawned


def test_worker_that_says_it_is_ready_again_is_not_reset() -> None:
    ready: list[Sent] = []

    def lie(message: m.Message, frames: Sequence[Any], sequence: int) -> list[Sent]:
        if isinstance(message, m.Ready):
            ready.append((message, frames, sequence))
        again = ready if isinstance(message, m.StepReply) else []
        return [*again, *honest(message, frames, sequence)]

    with thread_env(counts(100), 2, {1: lie}) as (env, _):
        env.reset(seed=0)

        assert [step(env)[0][:, 0].tolist() for _ in range(5)] == [[t] * 4 for t in range(1, 6)]


@pytest.mark.parametrize(
    "attack", ["a claim of 2^47 steps", "a pickle for rewards", "an episode of another worker"]
)
def test_lie_in_a_stream_is_left_out_and_the_stream_goes_on(attack: str) -> None:
    lie = lying(m.FragmentReply, FRAGMENT[attack], after=2)
    with thread_env(counts(), 2, {1: lie}) as (env, workers):
        env.reset(seed=0)
        with env.stream(MLPAgent(env), num_steps=4) as stream:
            ranks = [int(next(stream).workers[0]) for _ in range(12)]
            wait_until(lambda: workers.respawned == [1] and next(stream).workers[0] == 1)

    assert ranks.count(1) == 2
