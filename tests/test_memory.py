"""The state of recurrent agents is that of the episode of each environment, whatever moves it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from clusterenv import policy
from clusterenv.adapters import adapt
from clusterenv.batches import ActBatch, Fragment
from clusterenv.commands import Act, Collect, LoadState, Reset, Step
from clusterenv.runner import Runner
from tests.envs import Count
from tests.pools import Forced, carrier, give_agent, reset, runner_of, started
from tests.recurrent import Counter, LSTMAgent

ENVS = [partial(Count, 2, "term"), partial(Count, 3, "trunc"), partial(Count, 50)]


def acting(mode: str, agent: Any = None) -> Runner:
    runner = runner_of(ENVS, autoreset_mode=mode)
    give_agent(carrier(runner), agent or Counter(), ENVS[0]())
    reset(carrier(runner), 3)
    return runner


def act(runner: Runner) -> ActBatch:
    batch = carrier(runner)(Act())
    assert isinstance(batch, ActBatch)
    return batch


def collect(runner: Any, num_steps: int) -> Fragment:
    fragment = carrier(runner)(Collect(num_steps=num_steps))
    assert isinstance(fragment, Fragment)
    return fragment


def seen(leaves: list[np.ndarray]) -> list[float]:
    return leaves[0].reshape(-1).tolist()


def in_order(fragment: Fragment) -> bool:
    """Whether the agent's state was right on all observations of a fragment."""
    parts = (fragment.values, fragment.last_values, fragment.final_values)
    return not any(part.any() for part in parts)


def test_state_begins_anew_with_each_episode_in_next_step() -> None:
    runner = acting("NextStep")
    states = [seen(act(runner).state) for _ in range(8)]
    # 2 and 3 steps, then one that only resets
    assert [row[0] for row in states] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [row[1] for row in states] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [row[2] for row in states] == list(range(8))


def test_state_begins_anew_with_each_episode_in_same_step() -> None:
    runner = acting("SameStep")
    batches = [act(runner) for _ in range(8)]
    assert [seen(batch.state)[0] for batch in batches] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [seen(batch.state)[1] for batch in batches] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert not np.concatenate([batch.values for batch in batches]).any()


def test_state_begins_anew_with_masked_resets_when_disabled() -> None:
    runner = acting("Disabled")
    act(runner)
    batch = act(runner)
    assert batch.step.terminations.tolist() == [True, False, False]
    carrier(runner)(Reset(seeds=[None] * 3, mask=batch.step.terminations))
    batch = act(runner)
    assert seen(batch.state) == [0, 2, 2]
    assert not batch.values.any()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_rollouts_and_steps_go_on_from_each_other(mode: str) -> None:
    runner = acting(mode)
    for num_steps in (1, 2, 3, 5):
        fragment = collect(runner, num_steps)
        assert in_order(fragment)
        assert seen(fragment.initial_state) == fragment.obs[0][0].reshape(-1).tolist()
        batch = act(runner)
        assert not batch.values.any()


def test_masked_reset_between_rollouts_begins_its_rows_anew() -> None:
    runner = acting("NextStep")
    collect(runner, 1)
    carrier(runner)(Reset(seeds=[None] * 3, mask=np.array([False, False, True])))
    fragment = collect(runner, 4)
    assert seen(fragment.initial_state) == [1, 1, 0]
    assert in_order(fragment)


def test_steps_with_actions_of_the_caller_leave_the_state_but_for_new_episodes() -> None:
    runner = acting("SameStep")
    act(runner)
    carrier(runner)(Step(actions=[np.zeros(3, np.int64)]))
    assert seen(act(runner).state) == [0, 1, 1]


def test_initial_state_may_depend_on_the_weights() -> None:
    runner = acting("SameStep", Counter(start=0.0))
    act(runner)
    act(runner)
    give_agent(carrier(runner), Counter(start=7.0), ENVS[0]())
    assert seen(act(runner).state) == [7, 7, 7]  # another agent remembers nothing
    assert seen(act(runner).state) == [8, 7, 8]


def test_new_weights_go_on_with_the_state() -> None:
    runner = acting("SameStep")
    act(runner)
    agent = Counter()
    agent.slope.data.fill_(3.0)
    state = adapt(agent, ENVS[0]().observation_space, ENVS[0]().action_space).transfer_state()
    carrier(runner)(LoadState(version=2, state=policy.encode_state(state)))
    batch = act(runner)
    assert seen(batch.state) == [1, 1, 1]
    assert batch.params is not None
    assert batch.params[:, 1] - batch.params[:, 0] == pytest.approx([3.0] * 3)


def test_states_of_several_runners_lie_side_by_side() -> None:
    pool = started(ENVS, 2, autoreset_mode="SameStep")
    try:
        give_agent(carrier(pool), Counter(), ENVS[0]())
        reset(carrier(pool), 3)
        fragment = collect(pool, 5)
    finally:
        pool.close(5.0)
    assert in_order(fragment)
    assert [leaf.shape for leaf in fragment.states] == [(5, 3, 1), (5, 3, 2, 3)]
    assert np.array_equal(fragment.states[0][..., 0], fragment.obs[0][..., 0])
    assert [leaf.shape for leaf in fragment.initial_state] == [(3, 1), (3, 2, 3)]


def test_lstm_of_cleanrl_acts_as_its_learner_unrolls_it() -> None:
    agent = LSTMAgent()
    runner = acting("SameStep", agent)
    collect(runner, 4)
    fragment = collect(runner, 12)
    assert fragment.params is not None
    assert [leaf.shape for leaf in fragment.initial_state] == [(3, 2, 16)] * 2
    state = tuple(torch.from_numpy(leaf.copy()).transpose(0, 1) for leaf in fragment.initial_state)
    done = np.zeros((12, 3), np.float32)
    done[1:] = (fragment.terminations | fragment.truncations)[:-1]
    with torch.no_grad():
        _, log_probs, _, values, _ = agent.get_action_and_value(
            torch.from_numpy(fragment.obs[0].reshape(36, 1)),
            state,
            torch.from_numpy(done.reshape(36)),
            torch.from_numpy(fragment.actions[0].reshape(36)),
        )
    np.testing.assert_allclose(fragment.log_probs.reshape(36), log_probs, atol=1e-5)
    np.testing.assert_allclose(fragment.values.reshape(36), values[:, 0], atol=1e-5)


class Drifting(Counter):
    """Adds how long the episode lasts to a linear function of the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def distribution(self, obs: Tensor, state: Any) -> tuple[Categorical, Any]:
        _, after = super().distribution(obs, state)
        bonus = torch.tensor([0.0, 1.0]) * state["seen"].mean()
        return Categorical(logits=self.linear(obs) + bonus), after


def test_what_the_state_adds_is_computed_at_every_step() -> None:
    agent = Drifting()
    runner = runner_of([partial(Count, 50)] * 2, autoreset_mode="SameStep")
    give_agent(carrier(runner), agent, ENVS[0]())
    reset(carrier(runner), 2)
    fragment = collect(runner, 40)
    assert fragment.params is not None
    obs = torch.from_numpy(fragment.obs[0])
    with torch.no_grad():
        expected = (agent.linear(obs) + torch.tensor([0.0, 1.0]) * obs).log_softmax(-1).numpy()
    np.testing.assert_allclose(fragment.params, expected, atol=1e-4)


def test_agents_without_state_have_none() -> None:
    runner = acting("SameStep", Forced())
    fragment = collect(runner, 3)
    assert (fragment.initial_state, fragment.states, act(runner).state) == ([], [], [])
