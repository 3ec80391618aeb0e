"""Agents whose operations torch repeats without them, and agents that must compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from clusterenv.adapters.fused import CHECK_EVERY, TRIALS, WATCH_FROM
from clusterenv.benchmark.agents import make_agent
from clusterenv.errors import AgentError
from tests.adapters.test_fused import (
    ACTIONS,
    BOX,
    IDS,
    PIXELS,
    ROWS,
    STEPS,
    Around,
    act,
    as_in_a_runner,  # noqa: F401 - a fixture
    counted,
    same,
    some_obs,
    worker_of,
)
from tests.agents import mlp

AFTER = 1 + TRIALS
"""Acts of the agent after `worker_of`: one that is watched, and those that the repetition is compared with."""


def repeats(agent: Any, obs: spaces.Space = BOX, actions: spaces.Space = ACTIONS["discrete"]) -> Any:
    """A worker that has nobody to ask any more; `act` fails unless it can do without."""
    worker = worker_of(agent, obs, actions)
    for seed in range(AFTER):
        act(worker, some_obs(seed, obs))
    worker._agent = None
    return worker


def by_itself(agent: Any, observed: Any, obs: spaces.Space, actions: spaces.Space) -> Any:
    """What the agent does in its first act, when nothing is known of it."""
    worker = worker_of(agent, obs, actions)
    worker._fused.forget()
    return act(worker, observed)


def assert_the_same(agent: Any, obs: spaces.Space = BOX, actions: spaces.Space = ACTIONS["discrete"]) -> None:
    worker = repeats(agent, obs, actions)
    for seed in range(20, 23):
        observed = some_obs(seed, obs)
        seen, expected = act(worker, observed), by_itself(agent, observed, obs, actions)
        np.testing.assert_array_equal(seen.params, expected.params)
        np.testing.assert_array_equal(seen.actions, expected.actions)
        np.testing.assert_array_equal(seen.log_probs, expected.log_probs)


class Attends(nn.Module):
    """Rows that look at each other, several results of one operation, and arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 12), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(4)

    def distribution(self, obs: Tensor) -> Distribution:
        query, key, value = self.first(obs).split(4, dim=1)
        mixed = torch.softmax(query @ key.T, dim=-1) @ value
        return Categorical(
            logits=self.last(torch.cat([self.norm(mixed), value.add(query, alpha=2.0)], dim=1))
        )


class Sees(nn.Module):
    """Convolutions over images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(4 * 4 * 3, 3))

    def distribution(self, obs: Tensor) -> Distribution:
        return Categorical(logits=self.net(obs.permute(0, 3, 1, 2).float() / 255))


class Squeamish(nn.Module):
    """A Gaussian whose deviation depends on the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(5, 8)

    def distribution(self, obs: Tensor) -> Distribution:
        means, scales = self.net(obs).chunk(2, dim=1)
        return Independent(Normal(means.unflatten(1, (2, 2)), scales.exp().unflatten(1, (2, 2))), 2)


class Divided(nn.Module):
    """A Gaussian whose constant deviation is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.log_std = mlp(5, 2), nn.Parameter(torch.zeros(2))

    def distribution(self, obs: Tensor) -> Distribution:
        scale = self.log_std.exp().expand(len(obs), 2)
        return Independent(Normal(torch.sin(self.net(obs)) / scale, scale), 1)


class Asked(nn.Module):
    """CleanRL's method over networks that C++ does not repeat."""

    def __init__(self, value: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.value_of = value
        self.body, self.actor, self.critic = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> Any:
        hidden = nn.functional.silu(self.body(obs))
        policy = Categorical(logits=self.actor(hidden))
        action = policy.sample() if action is None else action
        value = self.critic(hidden) if self.value_of is None else self.value_of(self, hidden, action)
        return action, policy.log_prob(action), policy.entropy(), value


REPEATED: dict[str, tuple[Any, Any]] = {
    "softmax": (same, lambda a, x: torch.softmax(x, 1)),
    "normalised layer": (same, lambda a, x: nn.functional.layer_norm(x, (4,))),
    "of all rows": (lambda a, x: x - x.mean(0), same),
    "of its own": (lambda a, x: x * x, same),
    "upside down": (lambda a, x: x.flip(0), same),
    "a constant given back": (lambda a, x: torch.sin(x - a.mean.type_as(x)) * a.mean.type_as(x), same),
    "a constant used before": (lambda a, x: torch.broadcast_tensors(torch.sin(x * a.mean), a.mean)[0], same),
    "chosen": (lambda a, x: x[:, [4, 3, 2, 1, 0]] * x, same),
    "shaped as it is": (lambda a, x: torch.zeros_like(x) + a.mean.expand_as(x) * x, same),
}


@pytest.mark.parametrize("name", REPEATED)
def test_operations_are_repeated(name: str) -> None:
    assert_the_same(Around(*REPEATED[name]))


@pytest.mark.parametrize(
    ("agent", "obs", "actions"),
    [
        (Attends(), BOX, "discrete"),
        (Sees(), PIXELS, "discrete"),
        (Squeamish(), BOX, "box"),
        (Divided(), BOX, "flat"),
        (Asked(), BOX, "discrete"),
        (make_agent("torch", BOX, spaces.Discrete(3)), BOX, "discrete"),
        (make_agent("torch", BOX, spaces.Box(-1, 1, (2,))), BOX, "flat"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_whole_agents_are_repeated(agent: Any, obs: spaces.Space, actions: str) -> None:
    assert_the_same(agent, obs, {**ACTIONS, "flat": spaces.Box(-1, 1, (2,))}[actions])


def told(agent: Around, x: Tensor) -> Tensor:
    return x if torch.equal(x, x.flip(0)) else -x


def where_large(agent: Around, x: Tensor) -> Tensor:
    large = (x[:, 0] > 1e9).nonzero()[:, 0]
    return x.index_add(0, large, agent.mean.expand(len(large), -1)) if len(large) else x * 2


def drawn_by_numpy(_: Around, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if np.random.rand() < 1e-9 else torch.softmax(x, 1)


LEFT_ALONE: dict[str, tuple[Any, Any]] = {
    "as many as numbers say": (where_large, same),
    "drawn by NumPy": (same, drawn_by_numpy),
    "decided by numbers": (lambda a, x: x if x.max() > 1e9 else -x, same),
    "decided outside": (lambda a, x: x if x.numpy().max() > 1e9 else -x, same),
    "told by torch": (told, same),
    "through the back door": (lambda a, x: x + torch.from_numpy(x.numpy()).mean(), same),
    "data": (lambda a, x: x + x.data.mean(), same),
    "noise": (same, lambda a, x: torch.softmax(x, 1) + torch.rand(4)),
    "counting": (counted, lambda a, x: torch.softmax(x, 1)),
    "in place": (same, lambda a, x: x.mul_(2)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_cannot_be_repeated_is_left_to_the_agent(name: str) -> None:
    worker = repeats(Around(*LEFT_ALONE[name]))
    with pytest.raises(AgentError, match="NoneType"):
        act(worker, some_obs(9))


@pytest.mark.parametrize("turns_at", range(WATCH_FROM + 2))
def test_agent_that_does_something_else_in_each_act_is_found_out(turns_at: int) -> None:
    class Counts(nn.Module):
        """Its first acts are like each other, for as long as none is watched, or one is."""

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(5, 3)
            self.calls = 0

        def distribution(self, obs: Tensor) -> Distribution:
            self.calls += 1
            return Categorical(logits=torch.softmax(self.net(obs), 1) * max(0, self.calls - turns_at))

    worker = repeats(Counts())
    with pytest.raises(AgentError, match="NoneType"):
        act(worker, some_obs(9))


def test_agent_that_turns_later_is_found_out_when_it_is_watched_again() -> None:
    agent = Around(lambda a, x: torch.softmax(x * a.sign, 1), same)
    agent.sign = 1
    worker = worker_of(agent)
    obs = some_obs(0)
    for _ in range(AFTER + 1):
        before = act(worker, obs).params
    worker.agent.sign = -1
    for _ in range(CHECK_EVERY + 1):
        after = act(worker, obs).params
    assert not np.allclose(after, before)
    np.testing.assert_array_equal(after, worker.parameters(obs))


def test_another_number_of_rows_is_the_agents_own() -> None:
    agent = make_agent("torch", BOX, spaces.Discrete(3))
    worker = worker_of(agent, actions=spaces.Discrete(3))
    for seed in range(AFTER + 1):
        act(worker, some_obs(seed))
    few = worker.act(some_obs(5)[:2], seed=7, env_ids=IDS[:2], steps=STEPS[:2], with_values=False)
    np.testing.assert_array_equal(few.params, worker.parameters(some_obs(5)[:2]))
    worker._agent = None
    act(worker, some_obs(6))


def test_values_come_with_the_actions_where_one_method_gives_both() -> None:
    agent = Asked()
    worker = repeats(agent)
    obs = some_obs(3)
    acted = act(worker, obs)
    with torch.no_grad():
        np.testing.assert_array_equal(
            acted.values, agent.get_action_and_value(torch.from_numpy(obs))[3][:, 0]
        )
    assert not worker.values_apart


@pytest.mark.parametrize(
    "value",
    [
        lambda agent, hidden, action: agent.actor(hidden).gather(1, action.unsqueeze(1)),
        lambda agent, hidden, action: agent.critic(hidden + nn.functional.one_hot(action, 8)),
        lambda agent, hidden, action: np.ones(len(hidden), np.float32),
        lambda agent, hidden, action: torch.ones(len(hidden)),
    ],
    ids=["of the action", "of the action too", "of NumPy", "constant"],
)
def test_values_that_do_not_come_from_observations_alone_are_the_agents(value: Callable[..., Any]) -> None:
    agent = Asked(value)
    worker = worker_of(agent)
    for seed in range(AFTER + 3):
        obs = torch.from_numpy(some_obs(seed))
        acted = act(worker, obs.numpy())
        with torch.no_grad():
            hidden = nn.functional.silu(agent.body(obs))
            expected = value(agent, hidden, torch.from_numpy(acted.actions - ACTIONS["discrete"].start))
        np.testing.assert_allclose(acted.values, np.asarray(expected).reshape(-1), rtol=1e-5, atol=1e-6)


def test_agent_that_does_not_take_its_samples_keeps_its_own_actions() -> None:
    class Moody(Asked):
        calls = 0

        def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> Any:
            self.calls += 1
            action, *others = super().get_action_and_value(obs, action)
            return torch.zeros_like(action) if self.calls == WATCH_FROM + AFTER else action, *others

    with pytest.raises(AgentError, match="NoneType"):
        act(repeats(Moody()), some_obs(9))


def test_same_observations_prove_nothing() -> None:
    class Remembers(nn.Module):
        """Moves are what it sees, which nothing in its weights shows."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.last = mlp(10, 3), torch.zeros(ROWS, 5)

        def distribution(self, obs: Tensor) -> Distribution:
            last, self.last = self.last, obs
            return Categorical(logits=torch.sin(self.net(torch.cat([obs, obs - last], 1))))

    worker = worker_of(Remembers())
    for seed in (3, 3, 3, 4, 5):
        act(worker, some_obs(seed))
    worker._agent = None
    with pytest.raises(AgentError, match="NoneType"):
        act(worker, some_obs(9))


def test_tensors_without_strides_are_repeated_or_left_alone() -> None:
    agent = Around(lambda a, x: torch.sparse.mm(x.to_sparse(), torch.eye(5)), same)
    worker = worker_of(agent)
    for seed in range(AFTER + 2):
        obs = some_obs(seed)
        np.testing.assert_array_equal(act(worker, obs).params, worker.parameters(obs))


def test_value_function_of_its_own_is_asked_where_values_are_wanted() -> None:
    agent = make_agent("torch", BOX, spaces.Discrete(3))
    worker = worker_of(agent, actions=spaces.Discrete(3))
    for seed in range(AFTER + 2):
        obs = some_obs(seed)
        acted = worker.act(obs, seed=7, env_ids=IDS, steps=STEPS, with_values=True)
        with torch.no_grad():
            np.testing.assert_array_equal(acted.values, agent.value(torch.from_numpy(obs)))


def test_new_weights_are_watched_anew() -> None:
    agent: Callable[[], Any] = lambda: make_agent("torch", BOX, spaces.Discrete(3))  # noqa: E731
    worker, other = (
        worker_of(agent(), actions=spaces.Discrete(3)),
        worker_of(agent(), actions=spaces.Discrete(3)),
    )
    for seed in range(AFTER + 1):
        act(worker, some_obs(seed))
    worker.load_state(other.transfer_state())
    for seed in range(WATCH_FROM + AFTER + 2):
        obs = some_obs(seed)
        np.testing.assert_array_equal(act(worker, obs).params, other.parameters(obs))
    assert len(act(worker, some_obs(1)).params) == ROWS
