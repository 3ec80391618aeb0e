"""Weights that come while a runner acts, and the end of what it does: where each begins to hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import policy
from clusterenv.adapters import adapt
from clusterenv.batches import Fragment
from clusterenv.commands import Abandoned, Act, Collect, Failed, GiveUp, News, NewWeights, Observe
from clusterenv.runner import Runner
from clusterenv.runner_policy import EpisodePolicies
from tests.envs import Count
from tests.pools import carrier, give_agent, reset, runner_of


class Always(nn.Module):
    """Plays 0 or 1, almost surely; its value is the action."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([20.0, -20.0] if action == 0 else [-20.0, 20.0]))

    def distribution(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.logits.expand(len(obs), 2))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return (self.logits[1] > 0).float().expand(len(obs))


def weights(version: int, action: int) -> NewWeights:
    env = Count()
    state = adapt(Always(action), env.observation_space, env.action_space).transfer_state()
    return NewWeights(version=version, state=policy.encode_state(state))


def acting(*lengths: int) -> Runner:
    """A runner with environments of these lengths, which plays 0 with version 1."""
    runner = runner_of([partial(Count, n) for n in lengths])
    give_agent(carrier(runner), Always(0), Count())
    reset(carrier(runner), len(lengths), seed=0)
    return runner


def news_at(runner: Runner, news: dict[int, News]) -> Callable[[], None]:
    """Gives the runner its news before the steps that they are listed under."""
    looks = iter(range(1000))

    def look() -> None:
        step = next(looks)
        if step in news:
            runner.take(news[step])

    return look


def collected(runner: Runner, sync_at: Any, steps: int = 6, news: dict[int, News] | None = None) -> Any:
    runner.look_for_news = news_at(runner, news or {})
    return runner.handle(Collect(num_steps=steps, sync_at=sync_at))


def test_new_weights_act_from_the_next_step() -> None:
    fragment = collected(acting(4, 9), "step", news={2: weights(2, 1), 4: weights(5, 0)})
    assert isinstance(fragment, Fragment)
    assert fragment.actions[0][:, 0].tolist() == [0, 0, 1, 1, 0, 0]
    assert fragment.values[:, 1].tolist() == [0, 0, 1, 1, 0, 0]
    assert fragment.versions is not None
    assert fragment.versions.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2], [5, 5], [5, 5]]
    assert fragment.policy_version == 5
    assert fragment.comparable.tolist() == [[False, False]] * 4 + [[True, True]] * 2


def test_each_environment_ends_its_episode_with_the_version_that_it_began_with() -> None:
    runner = acting(3, 5, 100)
    first = collected(runner, "episode", news={1: weights(2, 1)})
    assert first.versions.T.tolist() == [[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 2], [1] * 6]
    runner.take(weights(3, 0))
    second = collected(runner, "episode")
    assert second.versions.T.tolist() == [[3] * 6, [2, 2, 2, 2, 3, 3], [1] * 6]
    assert second.actions[0].T.tolist() == [[0] * 6, [1, 1, 1, 1, 0, 0], [0] * 6]
    assert second.params.shape == (6, 3, 2)
    assert second.family is not None


def test_one_version_throughout_is_told_by_its_number() -> None:
    runner = acting(4)
    assert collected(runner, "step").versions is None
    fragment = collected(runner, "episode", news={0: weights(2, 1)})
    assert fragment.versions.T.tolist() == [[1, 1, 2, 2, 2, 2]]
    fragment = collected(runner, "step")
    assert (fragment.policy_version, fragment.versions) == (2, None)


def test_news_wait_for_the_next_fragment_where_they_are_to_act_there() -> None:
    runner = acting(4)
    assert collected(runner, "fragment", news={3: weights(2, 1)}).policy_version == 1
    assert collected(runner, "fragment").policy_version == 2


def test_news_that_came_too_late_for_a_stream_act_in_what_follows() -> None:
    runner = acting(100, 100)
    collected(runner, "episode", news={5: weights(2, 1)})
    runner.take(weights(3, 1))
    acted: Any = runner.handle(Act())
    assert acted.policy_version == 3
    assert acted.actions[0].tolist() == [1, 1]


def test_weights_that_do_not_fit_fail_what_is_under_way() -> None:
    bad = NewWeights(version=2, state=policy.encode_state({"other": np.zeros(1, np.float32)}))
    failed = collected(acting(4), "step", news={2: bad})
    assert isinstance(failed, Failed)
    assert failed.kind == "agent"


@pytest.mark.parametrize("step", [0, 1, 4])
def test_given_up_fragment_leaves_the_environments_where_they_are(step: int) -> None:
    runner = acting(3, 50)
    assert isinstance(collected(runner, "fragment", news={step: GiveUp()}), Abandoned)
    stands: Any = runner.handle(Observe())
    assert stands.obs[0][:, 0].tolist() == [step % 3, step]
    fragment = collected(runner, "fragment")
    assert fragment.obs[0][0, :, 0].tolist() == [step % 3, step]


def test_giving_up_what_has_ended_does_no_harm() -> None:
    runner = acting(4)
    runner.take(GiveUp())
    assert isinstance(collected(runner, "fragment"), Fragment)


def test_policies_that_nobody_acts_with_are_dropped() -> None:
    policies = EpisodePolicies(2, 1)
    adapter: Any = object()
    assert policies.keep(1, adapter)
    policies.end(np.array([True, False]))
    policies.begin(2)
    assert policies.versions.tolist() == [2, 1]
    policies.end(np.array([True, False]))
    assert not policies.keep(2, adapter)
    policies.end(np.array([False, True]))
    policies.begin(3)
    assert policies.versions.tolist() == [3, 3]
    assert policies._older == {}
