"""Small networks that C++ repeats, and agents that are left to compute for themselves."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.nn import functional as F

from clusterenv.adapters import adapt, loads
from clusterenv.adapters.actions import draw
from clusterenv.adapters.fused import CHECK_EVERY, TOLERANCE, WATCH_FROM
from clusterenv.adapters.watching import Watch
from clusterenv.benchmark.agents import AgentStyle, make_agent
from tests.agents import CleanRLAgent, ForwardAgent, MLPAgent, Spaces, mlp

ROWS = 6
IDS = np.arange(ROWS, dtype=np.int64)
STEPS = np.zeros(ROWS, np.int64)
BOX = spaces.Box(-9, 9, (5,))
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "box": spaces.Box(-1, 1, (2, 2)),
    "bits": spaces.MultiBinary(3),
}


@pytest.fixture(autouse=True)
def as_in_a_runner() -> Any:
    """Distributions are not validated, which would look at their numbers."""
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(__debug__)


def worker_of(agent: object, obs: spaces.Space = BOX, actions: spaces.Space = ACTIONS["discrete"]) -> Any:
    learner = adapt(agent, obs, actions)
    worker = loads(learner.dumps(), obs, actions)
    worker.load_state(learner.transfer_state())
    use_a_while(worker, obs)
    return worker


def use_a_while(worker: Any, space: spaces.Space = BOX) -> None:
    """The next act is the last of the agent's own."""
    for seed in range(WATCH_FROM + 1):
        act(worker, some_obs(seed, space))


def act(worker: Any, obs: Any) -> Any:
    return worker.act(obs, seed=7, env_ids=IDS, steps=STEPS, with_values=False)


def some_obs(seed: int, space: spaces.Space = BOX) -> Any:
    space.seed(seed)
    return np.stack([space.sample() for _ in range(ROWS)])


def assert_same_policy(worker: Any, obs: Any) -> None:
    """What acts is what the agent says, action for action and within the tolerance."""
    seen, own = act(worker, obs), worker.parameters(obs)
    actions, log_probs = draw(worker.family, own, seed=7, env_ids=IDS, steps=STEPS)
    assert np.allclose(seen.actions, worker._terms.to_env(actions, ROWS), rtol=TOLERANCE, atol=TOLERANCE)
    assert np.allclose(seen.log_probs, log_probs, atol=TOLERANCE)
    if own.shape[1] == 3 and worker.family.kind.value == "categorical":
        seen.params[:] = torch.log_softmax(torch.from_numpy(seen.params), 1)
    assert np.allclose(seen.params, own, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("style", "kind"),
    [(style, kind) for style in (MLPAgent, CleanRLAgent, ForwardAgent) for kind in ("discrete", "box")]
    + [(MLPAgent, "bits")],
)
def test_plain_network_acts_without_its_agent(style: Any, kind: str) -> None:
    worker = worker_of(style(Spaces(BOX, ACTIONS[kind])), actions=ACTIONS[kind])
    act(worker, some_obs(0))
    assert not worker._fused.used
    assert_same_policy(worker, some_obs(1))
    assert worker._fused.used


def test_values_of_a_plain_network_are_the_agents() -> None:
    agent = CleanRLAgent(Spaces(BOX, ACTIONS["discrete"]))
    worker = worker_of(agent)
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    obs = some_obs(2)
    assert worker.values_apart
    assert np.allclose(worker.values(obs), agent.get_value(torch.from_numpy(obs)).detach()[:, 0], atol=1e-6)


class Around(nn.Module):
    """A network between two functions: of the observations and the inner numbers."""

    def __init__(self, before: Callable[..., Tensor], between: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.arange(5.0))
        self.register_buffer("calls", torch.zeros(()))
        self.before, self.between = before, between

    def distribution(self, obs: Tensor) -> Distribution:
        return Categorical(logits=self.last(self.between(self, self.first(self.before(self, obs)))))


def same(_: Around, x: Tensor) -> Tensor:
    return x


FOLLOWED: dict[str, tuple[Any, Any]] = {
    "normalised": (lambda a, x: ((x - a.mean) * torch.rsqrt(a.mean + 1e-2)).clamp(-3, 3), same),
    "scaled": (lambda a, x: 0.5 + x / 4, lambda a, x: torch.relu(x)),
    "sigmoid": (lambda a, x: x.float().reshape(len(x), -1), lambda a, x: torch.sigmoid(x)),
    "clamped on one side": (lambda a, x: x.clamp(min=0), lambda a, x: torch.tanh(x)),
    "gelu": (lambda a, x: -x, lambda a, x: F.gelu(x)),
    "gelu by tanh": (same, lambda a, x: F.gelu(x, approximate="tanh")),
    "silu": (same, lambda a, x: F.silu(x)),
    "elu": (same, lambda a, x: F.elu(x, 0.7)),
    "selu": (same, lambda a, x: F.selu(x)),
    "leaky": (same, lambda a, x: F.leaky_relu(x)),
    "leakier": (same, lambda a, x: F.leaky_relu(x, 0.3)),
    "bounded": (lambda a, x: F.hardtanh(x), lambda a, x: F.relu6(x)),
    "bounded elsewhere": (lambda a, x: F.hardtanh(x, -2.0, 0.5), same),
    "normalised layer": (lambda a, x: F.layer_norm(x, (5,), a.mean + 1), lambda a, x: F.layer_norm(x, (4,))),
    "normalised layer that is shifted": (lambda a, x: F.layer_norm(x, (5,), a.mean, a.mean, 0.1), same),
    "residual": (lambda a, x: torch.tanh(x / 3) + x, lambda a, x: x + F.relu(x)),
    "residuals in each other": (same, lambda a, x: x + F.relu((y := F.silu(x) * 2) + torch.tanh(y))),
    "like its type": (lambda a, x: x - a.mean.type_as(x), same),
    "like its shape": (same, lambda a, x: x + x.new_zeros(4)),
    "added three times": (same, lambda a, x: x + (x + torch.tanh(x))),
}


@pytest.mark.parametrize(
    ("style", "repeated"), [("distribution", True), ("cleanrl", True), ("residual", True), ("torch", False)]
)
def test_benchmarks_know_an_agent_that_is_repeated_and_one_that_is_not(
    style: AgentStyle, repeated: bool
) -> None:
    worker = worker_of(make_agent(style, BOX, spaces.Discrete(3)), actions=spaces.Discrete(3))
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    assert worker._fused.used == repeated


@pytest.mark.parametrize("name", FOLLOWED)
def test_arithmetic_with_constants_is_followed(name: str) -> None:
    worker = worker_of(Around(*FOLLOWED[name]))
    act(worker, some_obs(0))
    assert_same_policy(worker, some_obs(1))
    assert worker._fused.used


def counted(agent: Around, x: Tensor) -> Tensor:
    agent.calls += 1
    return x


LEFT_ALONE: dict[str, tuple[Any, Any]] = {
    "of all rows": (lambda a, x: x - x.mean(0), same),
    "of its own": (lambda a, x: x * x, same),
    "whole numbers": (lambda a, x: x.long().float(), same),
    "rounded": (same, lambda a, x: x.round()),
    "decided by numbers": (lambda a, x: x if x.max() > 1e9 else -x, same),
    "decided outside": (lambda a, x: x if x.numpy().max() > 1e9 else -x, same),
    "through the back door": (lambda a, x: x + torch.from_numpy(x.numpy()).mean(), same),
    "data": (lambda a, x: x + x.data.mean(), same),
    "noise": (same, lambda a, x: x + torch.rand(4)),
    "counting": (counted, same),
    "NumPy's noise": (same, lambda a, x: x + float(np.random.default_rng().normal())),
    "rows that are alike": (lambda a, x: x + torch.ones_like(x) * len(x), same),
    "normalised by nothing": (same, lambda a, x: F.layer_norm(x, (4,), eps=0.0)),
    "one bias": (same, lambda a, x: F.linear(x, torch.eye(4), torch.ones(1))),
    "a bound of its own": (lambda a, x: F.hardtanh(x, -1.0, float(x.abs().max())), same),
    "a tensor's bound": (lambda a, x: F.hardtanh(x, -1.0, x.abs().max()), same),
    "how many": (same, lambda a, x: x + x.nonzero().shape[0]),
    "chosen": (same, lambda a, x: x + x[x > 0].shape[0]),
    **{
        f"by {name}": (lambda a, x, decide=decide: x + 1 if decide(x) else -x, same)
        for name, decide in {
            "where": lambda x: len(torch.where(x > 0)[0]) > 9,
            "nonzero": lambda x: len(x.nonzero(as_tuple=True)[0]) > 9,
            "argwhere": lambda x: len(torch.argwhere(x > 0)) > 9,
            "equal": lambda x: torch.equal(x, -x),
            "allclose": lambda x: torch.allclose(x, -x),
            "is_nonzero": lambda x: torch.is_nonzero(x[0, 0]),
            "in": lambda x: 0 in x,
            "format": lambda x: f"{x.abs().sum():.2f}" == "0.00",
            "repeats": lambda x: len(torch.repeat_interleave(torch.ones(5), (x[0] > 0).long())) > 2,
            "parts": lambda x: len(torch.tensor_split(x, (x[0] > 0).long())[0]) > 2,
            "a slice": lambda x: len(x[: (x[0, 0] > 0).long()]) > 0,
            "a maximum": lambda x: max(x.flatten()) > 1,
        }.items()
    },
    "in place": (same, lambda a, x: x.mul_(2)),
    "upside down": (lambda a, x: x.flip(0), same),
    "softmax": (same, lambda a, x: torch.softmax(x, 1)),
    "normalised part": (same, lambda a, x: F.layer_norm(x.reshape(-1, 2, 2), (2,)).reshape(-1, 4)),
    "normalised by itself": (same, lambda a, x: F.layer_norm(x, (4,), x[0])),
    "two ways": (same, lambda a, x: torch.tanh(x) + torch.relu(x)),
    "residual that is scaled": (same, lambda a, x: torch.add(x, torch.tanh(x), alpha=2)),
    "residual in another order": (lambda a, x: x + x[:, [1, 0, 2, 3, 4]], same),
    "celu": (same, lambda a, x: F.celu(x, 0.5)),
    "mish": (same, lambda a, x: F.mish(x)),
    "twice": (lambda a, x: x + x, same),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_anything_else_leaves_the_agent_to_compute(name: str) -> None:
    worker = worker_of(Around(*LEFT_ALONE[name]))
    for seed in range(3):
        act(worker, some_obs(seed))
    assert not worker._fused.used


def test_deviation_that_depends_on_the_observation_is_the_agents_own() -> None:
    class Squeamish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(5, 4)

        def distribution(self, obs: Tensor) -> Distribution:
            means = self.net(obs)
            return Independent(Normal(means, means.exp()), 1)

    worker = worker_of(Squeamish(), actions=ACTIONS["box"])
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    assert not worker._fused.used


def test_pixels_are_followed_from_their_bytes() -> None:
    pixels = spaces.Box(0, 255, (2, 3, 1), np.uint8)

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 3)

        def distribution(self, obs: Tensor) -> Distribution:
            return Categorical(logits=self.net(obs.flatten(1).float() / 255))

    worker = worker_of(Reads(), pixels)
    act(worker, some_obs(0, pixels))
    assert_same_policy(worker, some_obs(1, pixels))
    assert worker._fused.used


PIXELS = spaces.Box(0, 255, (ROWS, 5, 2), np.uint8)


class Looks(nn.Module):
    """A network over some pixels, with a value."""

    def __init__(self, chosen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.chosen = chosen
        inputs = chosen(torch.zeros(ROWS, *PIXELS.shape, dtype=torch.uint8)).flatten(1).shape[1]
        self.net, self.critic = mlp(inputs, 3), mlp(inputs, 1)

    def _seen(self, obs: Tensor) -> Tensor:
        return self.chosen(obs).flatten(1).float() / 255

    def distribution(self, obs: Tensor) -> Distribution:
        return Categorical(logits=self.net(self._seen(obs)))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(self._seen(obs))[:, 0]


@pytest.mark.parametrize(
    "chosen",
    [
        lambda x: x[:, ::2, 1:4],
        lambda x: x[..., 1],
        lambda x: x.permute(0, 3, 1, 2),
        lambda x: x.permute(0, 3, 1, 2).flatten(2)[:, :, ::7],
        lambda x: x.flatten(1)[:, 3:40].reshape(len(x), 1, -1).transpose(1, 2)[:, 5:],
        lambda x: x[:, -1].float()[:, 1:],
    ],
)
def test_some_of_the_pixels_are_followed(chosen: Callable[[Tensor], Tensor]) -> None:
    worker = worker_of(Looks(chosen), PIXELS)
    act(worker, some_obs(0, PIXELS))
    assert_same_policy(worker, some_obs(1, PIXELS))
    assert worker._fused.used
    assert worker._fused.drawing(worker._terms) is None  # it would be given whole rows


@pytest.mark.parametrize(
    "chosen",
    [lambda x: x.transpose(0, 1), lambda x: x[:, [0, 2]], lambda x: x.flip(0), lambda x: x[:, :, ::2] + 1],
)
def test_rows_that_mix_and_other_choices_leave_the_agent_to_compute(
    chosen: Callable[[Tensor], Tensor],
) -> None:
    worker = worker_of(Looks(chosen), PIXELS)
    for seed in range(3):
        act(worker, some_obs(seed, PIXELS))
    assert not worker._fused.used


@pytest.mark.parametrize(
    "agent", [Looks(lambda x: x[:, ::2]), CleanRLAgent(Spaces(BOX, ACTIONS["discrete"]))]
)
def test_values_that_are_asked_for_with_actions_are_the_agents(agent: Any) -> None:
    space = PIXELS if isinstance(agent, Looks) else BOX
    worker = worker_of(agent, space)
    for seed in range(3):
        obs = some_obs(seed, space)
        acted = worker.act(obs, seed=7, env_ids=IDS, steps=STEPS, with_values=True)
        value = agent.value if isinstance(agent, Looks) else agent.get_value
        expected = value(torch.from_numpy(obs)).detach().numpy().reshape(-1)
        assert np.allclose(acted.values, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert np.allclose(acted.log_probs, act(worker, obs).log_probs, rtol=TOLERANCE, atol=TOLERANCE)
    worker._agent = None  # nobody asks it any more
    worker.act(some_obs(3, space), seed=7, env_ids=IDS, steps=STEPS, with_values=True)


class Counts(MLPAgent):
    """Its values go up with each call."""

    def __init__(self, spaces_: Spaces) -> None:
        super().__init__(spaces_)
        self.calls = 0

    def value(self, obs: Tensor) -> Tensor:
        self.calls += 1
        return super().value(obs) + self.calls


def test_values_must_hold_for_the_next_call_too() -> None:
    worker = worker_of(Counts(Spaces(BOX, ACTIONS["discrete"])))
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    assert worker._fused.used
    obs = some_obs(2)
    seen = [worker.values(obs)[0] for _ in range(5)]
    assert np.allclose(np.diff(seen), 1)


def test_value_function_that_changes_later_is_found_out() -> None:
    class Turns(MLPAgent):
        sign = 1.0

        def value(self, obs: Tensor) -> Tensor:
            return super().value(obs) * self.sign

    worker = worker_of(Turns(Spaces(BOX, ACTIONS["discrete"])))
    act(worker, some_obs(0))
    obs = some_obs(2)
    first = [worker.values(obs) for _ in range(3)][-1]
    worker._agent.sign = -1.0
    assert np.allclose(worker.values(obs), first)  # it cannot be seen before the next check
    for seed in range(CHECK_EVERY):
        act(worker, some_obs(seed))
    for _ in range(3):
        assert np.allclose(worker.values(obs), -first, atol=1e-5)


def test_act_with_values_that_cannot_be_repeated_leaves_the_policy_as_it_is() -> None:
    class Rounds(MLPAgent):
        def value(self, obs: Tensor) -> Tensor:
            return super().value(obs).round()

    worker = worker_of(Rounds(Spaces(BOX, ACTIONS["discrete"])))
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    for seed in range(3):
        worker.act(some_obs(seed), seed=7, env_ids=IDS, steps=STEPS, with_values=True)
    assert worker._fused.act(some_obs(4), with_values=False) is not None


def test_what_was_seen_is_gone_without_the_collector_of_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        network = nn.Linear(5, 3)
        with torch.inference_mode():
            obs = torch.zeros(ROWS, 5)
            with Watch(obs) as watch:
                result = network(obs)
        assert watch.program_of(result) is not None
        seen = weakref.ref(watch)
        del watch
        assert seen() is None
    finally:
        gc.enable()


def test_large_network_is_left_to_torch() -> None:
    worker = worker_of(MLPAgent(Spaces(BOX, ACTIONS["discrete"]), hidden=1 << 9))
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    assert not worker._fused.used


@pytest.mark.parametrize("acts_before", [0, 1, CHECK_EVERY])
def test_what_acts_depends_on_nothing_before_the_weights(acts_before: int) -> None:
    worker = worker_of(MLPAgent(Spaces(BOX, ACTIONS["discrete"]), seed=1))
    other = MLPAgent(Spaces(BOX, ACTIONS["discrete"]), seed=2)
    for seed in range(acts_before):
        act(worker, some_obs(seed))
    worker.load_state(adapt(other, BOX, ACTIONS["discrete"]).transfer_state())
    used = []
    for seed in range(WATCH_FROM + 3):
        assert_same_policy(worker, some_obs(seed))
        used.append(worker._fused.used)
    assert used == [False] * (WATCH_FROM + 2) + [True]


def test_agent_is_not_watched_where_weights_change_all_the_time() -> None:
    agent = MLPAgent(Spaces(BOX, ACTIONS["discrete"]))
    worker = worker_of(agent)
    state = adapt(agent, BOX, ACTIONS["discrete"]).transfer_state()
    act(worker, some_obs(0))
    worker.load_state(state)
    act(worker, some_obs(0))
    act(worker, some_obs(1))
    assert not worker._fused.used


def test_agent_that_changes_by_itself_is_found_out() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(5, 3)
            self.calls = 0

        def distribution(self, obs: Tensor) -> Distribution:
            self.calls += 1
            return Categorical(logits=self.net(obs) * math.copysign(1, WATCH_FROM + 2.5 - self.calls))

    worker = worker_of(Turns())
    obs = some_obs(0)
    first = act(worker, obs).params
    for _ in range(CHECK_EVERY + 1):
        last = act(worker, obs).params
    assert np.allclose(torch.log_softmax(torch.from_numpy(-last), 1), first, atol=1e-5)
