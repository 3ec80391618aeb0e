"""n-step transitions against their definition, over borders of rollouts, ends, limits and lost workers."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv import ClusterEnv, LocalConfig, Rollout
from clusterenv.learners.networks import Agent
from clusterenv.learners.transitions import NStepTransitions
from tests.learners.rollouts import made_up_rollout
from tests.long_form import drawn

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(3)
GAMMA = 0.9


def cut(rollout: Rollout, start: int, stop: int) -> Rollout:
    """Steps [start, stop) of a rollout as a rollout of their own."""
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(rollout):
        value = getattr(rollout, item.name)
        if isinstance(value, np.ndarray) and value.shape[:2] == rollout.rewards.shape:
            fields[item.name] = value[start:stop]
    inside = (rollout.final_index[:, 0] >= start) & (rollout.final_index[:, 0] < stop)
    fields["final_index"] = rollout.final_index[inside] - np.array([start, 0])
    fields["final_obs"] = rollout.final_obs[inside]
    if stop < rollout.num_steps:
        fields["last_obs"] = rollout.obs[stop]
    return dataclasses.replace(rollout, **fields)


def expected(rollout: Rollout, n: int) -> list[tuple[float, ...]]:
    """By the definition: from each step of each environment, one at a time; incomplete ones left out."""
    finals = {
        (t, env): obs for (t, env), obs in zip(rollout.final_index.tolist(), rollout.final_obs, strict=True)
    }
    made = []
    for env in range(rollout.num_envs):
        for start in range(rollout.num_steps):
            if not rollout.valid[start, env]:
                continue
            total, discount, t = 0.0, 1.0, start
            while True:
                total += discount * float(rollout.rewards[t, env])
                discount *= GAMMA
                last = t == rollout.num_steps - 1
                following = rollout.last_obs[env] if last else rollout.obs[t + 1, env]
                ended = (t, env) in finals
                cut_off = not last and not rollout.valid[t + 1, env]
                if ended or cut_off or t == start + n - 1:
                    following = finals.get((t, env), following)
                    discount *= not rollout.terminations[t, env]
                    made.append((*rollout.obs[start, env], total, discount, *following))
                    break
                if last:
                    break
                t += 1
    return made


def given_out(rows: np.ndarray) -> list[tuple[float, ...]]:
    return [(*row["obs"], float(row["reward"]), float(row["discount"]), *row["next_obs"]) for row in rows]


def assert_same(rows: list[tuple[float, ...]], wanted: list[tuple[float, ...]]) -> None:
    """Equal but for order and rounding; observations are random, so no two are alike."""
    assert len(rows) == len(wanted)
    np.testing.assert_allclose(sorted(rows), sorted(wanted), rtol=1e-5, atol=1e-5)


@drawn(40)
@given(
    n=st.integers(1, 5),
    borders=st.sets(st.integers(1, 11)),
    seed=st.integers(0, 1000),
    lost=st.booleans(),
)
def test_transitions_are_those_of_the_definition_wherever_rollouts_are_cut(
    n: int, borders: set[int], seed: int, lost: bool
) -> None:
    agent = Agent(BOX, ACTIONS, hidden=(4,))
    valid = np.ones((12, 4), bool)
    if lost:
        valid[4:6, 3] = valid[7, 0] = False
    whole = made_up_rollout(agent, num_steps=12, seed=seed, valid=valid)
    edges = [0, *sorted(borders), 12]
    transitions = NStepTransitions(BOX, ACTIONS, n_steps=n, gamma=GAMMA)

    rows = [row for start, stop in pairwise(edges) for row in given_out(transitions(cut(whole, start, stop)))]

    assert_same(rows, expected(whole, n))


def test_environment_that_was_replaced_unseen_is_cut_at_the_last_observation() -> None:
    agent = Agent(BOX, ACTIONS, hidden=(4,))
    first, second = (made_up_rollout(agent, num_steps=5, seed=seed) for seed in (1, 2))  # nothing in common
    transitions = NStepTransitions(BOX, ACTIONS, n_steps=3, gamma=GAMMA)

    before, after = transitions(first), transitions(second)

    env = 3  # never ends
    last = first.obs[-1, env]
    row = next(row for row in after if np.array_equal(row["obs"], last))
    assert not any(np.array_equal(row["obs"], last) for row in before)
    assert float(row["reward"]) == pytest.approx(float(first.rewards[-1, env]))
    assert float(row["discount"]) == pytest.approx(GAMMA)
    assert np.array_equal(row["next_obs"], first.last_obs[env])


def test_start_over_gives_up_what_is_not_complete() -> None:
    agent = Agent(BOX, ACTIONS, hidden=(4,))
    rollout = made_up_rollout(agent)
    transitions = NStepTransitions(BOX, ACTIONS, n_steps=3, gamma=GAMMA)

    first = given_out(transitions(rollout))
    transitions.start_over()
    again = given_out(transitions(rollout))

    assert_same(again, first)


def test_every_step_of_real_environments_comes_out_once() -> None:
    options = {"type": "gymnasium", "env_name": "CartPole-v1", "envs_per_node": 3, "seed": 1}
    with ClusterEnv(options, LocalConfig(serial=True)) as env:
        agent = Agent(env.single_observation_space, env.single_action_space, hidden=(4,))
        transitions = NStepTransitions(
            env.single_observation_space, env.single_action_space, n_steps=3, gamma=GAMMA
        )
        batches = [env.rollout(agent, num_steps=5) for _ in range(12)]
        rows = np.concatenate([transitions(batch) for batch in batches])

    taken = np.concatenate([batch.obs.reshape(-1, 4) for batch in batches])
    assert sum(len(batch.final_index) for batch in batches) > 3
    assert len(taken) - 3 * 2 <= len(rows) <= len(taken)
    assert len({tuple(row) for row in rows["obs"].tolist()}) == len(rows)
    assert {tuple(row) for row in rows["obs"].tolist()} <= {tuple(row) for row in taken.tolist()}
    ends = rows["discount"] == 0
    assert (np.abs(rows["next_obs"][ends][:, [0, 2]]) > [2.4, 0.2]).any(1).all()  # CartPole's own limits


def test_dict_observations_are_flat() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
    assert isinstance(space, gym.Space)
    transitions = NStepTransitions(space, ACTIONS, n_steps=1, gamma=GAMMA)

    assert transitions._dtype["obs"].shape == (5,)
