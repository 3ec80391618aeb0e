"""Every style of agent acts, is evaluated and compared through the same interface."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal, TransformedDistribution
from torch.distributions.transforms import SigmoidTransform

from clusterenv.adapters import AgentAdapter, adapt, loads
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError
from tests.agents import (
    CleanRLAgent,
    ForcedLogits,
    ForwardAgent,
    MLPAgent,
    NumpyAgent,
    ScoringNumpyAgent,
    Spaces,
    UselessAgent,
)

BOX = spaces.Box(-1, 1, (5,))
ROWS = 6
IDS = np.arange(ROWS, dtype=np.int64)
OBS = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)

ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "int32": spaces.Discrete(3, dtype=np.int32),
    "multi discrete": spaces.MultiDiscrete([3, 2, 4], start=[1, 0, -2]),
    "box": spaces.Box(-1, 1, (2, 2)),
    "box of float64": spaces.Box(-1, 1, (1,), np.float64),
    "scalar box": spaces.Box(-1, 1, ()),
    "multi binary": spaces.MultiBinary(3),
}
FAMILIES = {
    "discrete": Family(Kind.CATEGORICAL, (3,)),
    "int32": Family(Kind.CATEGORICAL, (3,)),
    "multi discrete": Family(Kind.MULTI_CATEGORICAL, (3, 2, 4)),
    "box": Family(Kind.DIAG_GAUSSIAN, (4,)),
    "box of float64": Family(Kind.DIAG_GAUSSIAN, (1,)),
    "scalar box": Family(Kind.DIAG_GAUSSIAN, (1,)),
    "multi binary": Family(Kind.BERNOULLI, (3,)),
}
STYLES: dict[str, Any] = {
    "distribution": MLPAgent,
    "get_action_and_value": CleanRLAgent,
    "forward": ForwardAgent,
}


def pair(
    agent: object, actions: gym.Space[Any], obs: gym.Space[Any] = BOX
) -> tuple[AgentAdapter, AgentAdapter]:
    """The learner's adapter, and that of a worker which has the same weights."""
    learner = adapt(agent, obs, actions)
    worker = loads(learner.dumps(), obs, actions)
    worker.load_state(learner.transfer_state())
    return learner, worker


def act(adapter: AgentAdapter, obs: Any = OBS, step: int = 0, seed: int = 7) -> Any:
    return adapter.act(obs, seed=seed, env_ids=IDS, steps=np.full(ROWS, step, np.int64))


@pytest.mark.parametrize(
    ("style", "kind"),
    [
        (style, kind)
        for style in STYLES
        for kind in ACTIONS
        if kind != "multi binary" or style == "distribution"  # CleanRL has no agent for multi-binary actions
    ],
)
def test_agent_acts_in_the_environments_terms(style: str, kind: str) -> None:
    space = ACTIONS[kind]
    learner, worker = pair(STYLES[style](Spaces(BOX, space)), space)
    acted = act(worker)

    assert acted.actions.dtype == space.dtype
    assert acted.actions.shape == (ROWS, *space.shape)
    if kind not in ("box", "box of float64", "scalar box"):
        assert all(space.contains(space.dtype.type(a) if space.shape == () else a) for a in acted.actions)
    assert worker.family == FAMILIES[kind]
    assert acted.params.shape == (ROWS, worker.family.num_params)
    for adapter in (learner, worker):
        judged = adapter.evaluate(OBS, acted.actions)
        np.testing.assert_allclose(judged.log_probs, acted.log_probs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(judged.values, acted.values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(adapter.values(OBS), acted.values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(adapter.parameters(OBS), acted.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["discrete", "multi discrete", "box"])
def test_agent_acts_by_seed_env_and_step_alone(style: str, kind: str) -> None:
    space = ACTIONS[kind]
    _, worker = pair(STYLES[style](Spaces(BOX, space)), space)
    whole = act(worker)
    halves = [
        worker.act(OBS[rows], seed=7, env_ids=IDS[rows], steps=np.zeros(3, np.int64))
        for rows in (slice(3, 6), slice(0, 3))
    ]
    split = np.concatenate([halves[1].actions, halves[0].actions])

    np.testing.assert_allclose(split, whole.actions, rtol=1e-5)
    np.testing.assert_array_equal(act(worker).actions, whole.actions)
    assert (act(worker, step=1).actions != whole.actions).any()
    assert (act(worker, seed=8).actions != whole.actions).any()


def test_styles_with_equal_weights_act_alike() -> None:
    space = ACTIONS["multi discrete"]
    clean = CleanRLAgent(Spaces(BOX, space), seed=3)
    plain = MLPAgent(Spaces(BOX, space))
    plain.actor.load_state_dict(clean.actor.state_dict())

    np.testing.assert_array_equal(act(pair(clean, space)[1]).actions, act(pair(plain, space)[1]).actions)


def test_discrete_start_is_added_once() -> None:
    space = spaces.Discrete(3, start=2)
    _, worker = pair(ForcedLogits([-1e9, 0.0, -1e9]), space)
    acted = act(worker)

    assert acted.actions.tolist() == [3] * ROWS
    np.testing.assert_allclose(acted.log_probs, 0.0, atol=1e-6)
    assert worker.evaluate(OBS, np.full(ROWS, 4)).log_probs.max() < -1e8


def test_agent_sees_nested_observations_in_its_dtype() -> None:
    space = spaces.Dict(
        {
            "real": spaces.Box(-1, 1, (2,), np.float64),
            "rest": spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 255, (2, 3), np.uint8)]),
        }
    )
    actions = ACTIONS["discrete"]
    learner, worker = pair(MLPAgent(Spaces(space, actions)), actions, space)
    obs = {
        "real": np.random.default_rng(1).normal(size=(ROWS, 2)),
        "rest": (np.arange(ROWS) % 4, np.ones((ROWS, 2, 3), np.uint8)),
    }

    assert act(worker, obs).actions.shape == (ROWS,)
    np.testing.assert_allclose(learner.parameters(obs), worker.parameters(obs), rtol=1e-5)


def test_agent_cannot_change_the_observations() -> None:
    class Rude(ForcedLogits):
        def distribution(self, obs: torch.Tensor) -> Categorical:
            obs.zero_()
            return super().distribution(obs)

    obs = OBS.copy()
    obs.flags.writeable = False
    act(pair(Rude([0.0, 0.0, 0.0]), ACTIONS["discrete"])[1], obs)

    np.testing.assert_array_equal(obs, OBS)


def test_agent_without_value_has_nan() -> None:
    agent = MLPAgent(Spaces(BOX, ACTIONS["discrete"]))
    agent.value = None
    learner, worker = pair(agent, ACTIONS["discrete"])

    assert np.isnan(act(worker).values).all()
    assert np.isnan(learner.values(OBS)).all()


# --- distributions -----------------------------------------------------------------------------------------


class Gives(nn.Module):
    """An agent whose distribution is made from a network's outputs by `make`."""

    def __init__(self, make: Any, outputs: int = 2) -> None:
        super().__init__()
        self.net = nn.Linear(5, outputs)
        self.make = make

    def distribution(self, obs: torch.Tensor) -> Any:
        return self.make(self.net(obs))


def _scale(means: torch.Tensor) -> torch.Tensor:
    return torch.full_like(means, 0.5)


@pytest.mark.parametrize(
    ("make", "space"),
    [
        (lambda x: Normal(x, _scale(x)), spaces.Box(-1, 1, (2,))),
        (lambda x: Normal(x, 0.5), spaces.Box(-1, 1, (2,))),
        (lambda x: Independent(Normal(x.reshape(-1, 2, 1), 0.5), 2), spaces.Box(-1, 1, (2, 1))),
        (lambda x: Categorical(probs=x.softmax(-1)), spaces.Discrete(2)),
        (lambda x: Categorical(logits=x.double()), spaces.Discrete(2)),
        (lambda x: Independent(Categorical(logits=x.reshape(-1, 1, 2)), 1), spaces.MultiDiscrete([2])),
        (lambda x: [Categorical(logits=x)], spaces.MultiDiscrete([2])),
    ],
)
def test_distribution_of_a_family_is_recognised(make: Any, space: gym.Space[Any]) -> None:
    learner, worker = pair(Gives(make), space)
    acted = act(worker)

    assert acted.params is not None
    np.testing.assert_allclose(learner.evaluate(OBS, acted.actions).log_probs, acted.log_probs, rtol=1e-5)


class Masked(Categorical):
    """A subclass that scores in its own way."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return super().log_prob(value) * 2


@pytest.mark.parametrize(
    ("make", "space"),
    [
        (
            lambda x: TransformedDistribution(Independent(Normal(x, _scale(x)), 1), [SigmoidTransform()]),
            spaces.Box(-1, 1, (2,)),
        ),
        (lambda x: MultivariateNormal(x, torch.eye(2)), spaces.Box(-1, 1, (2,))),
        (lambda x: Masked(logits=x), spaces.Discrete(2)),
        (lambda x: Categorical(logits=x), spaces.Box(0, 1, (), np.int64)),
    ],
)
def test_other_distribution_draws_by_itself_without_touching_the_generator(
    make: Any, space: gym.Space[Any]
) -> None:
    learner, worker = pair(Gives(make), space)
    before = torch.get_rng_state()
    acted, again, later = act(worker), act(worker), act(worker, step=1)

    assert acted.params is None
    assert worker.family is None
    assert learner.parameters(OBS) is None
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(acted.actions, again.actions)
    assert (acted.actions != later.actions).any()
    np.testing.assert_allclose(learner.evaluate(OBS, acted.actions).log_probs, acted.log_probs, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: Categorical(logits=x[:, :1]), r"logits of shape \(6, 1\); expected \(6, 2\)"),
        (lambda x: Categorical(logits=x[:3]), r"logits of shape \(3, 2\); expected \(6, 2\)"),
        (lambda x: x, r"distribution\(obs\) gave Tensor; expected a torch.distributions"),
        (lambda x: Categorical(logits=x * float("nan"), validate_args=False), r"NaN"),
        (lambda x: x.missing, r"the agent \(Gives\) failed: AttributeError"),
    ],
)
def test_wrong_distribution_is_an_agent_error(make: Any, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        act(pair(Gives(make), spaces.Discrete(2))[1])


def test_value_of_another_shape_is_an_agent_error() -> None:
    agent = Gives(lambda x: Categorical(logits=x))
    agent.value = nn.Linear(5, 2)

    with pytest.raises(AgentError, match=r"value has shape \(6, 2\); expected \(6,\)"):
        act(pair(agent, spaces.Discrete(2))[1])


# --- Stable-Baselines3 -------------------------------------------------------------------------------------


class Wrapped:
    """As SB3 wraps distributions of torch; `squash` as its squashed Gaussian does."""

    def __init__(self, distribution: Any, squash: bool) -> None:
        self.distribution = distribution
        self.squash = squash

    def sample(self) -> torch.Tensor:
        drawn = self.distribution.sample()
        return torch.tanh(drawn) if self.squash else drawn

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        if not self.squash:
            return self.distribution.log_prob(actions).sum(-1)
        inner = torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6))
        return (self.distribution.log_prob(inner) - torch.log(1 - actions**2 + 1e-6)).sum(-1)


class SB3Like(nn.Module):
    use_sde = False

    def __init__(self, squash: bool = False) -> None:
        super().__init__()
        self.net = nn.Linear(5, 2)
        self.squash = squash

    def forward(self, obs: torch.Tensor, deterministic: bool = False) -> None:
        raise NotImplementedError

    def get_distribution(self, obs: torch.Tensor) -> Wrapped:
        return Wrapped(Normal(self.net(obs), 0.5), self.squash)

    def predict_values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)[:, :1]


def test_sb3_policy_uses_the_distribution_inside() -> None:
    learner, worker = pair(SB3Like(), spaces.Box(-1, 1, (2,)))
    acted = act(worker)
    judged = learner.evaluate(OBS, acted.actions)

    assert worker.family == Family(Kind.DIAG_GAUSSIAN, (2,))
    np.testing.assert_allclose(judged.log_probs, acted.log_probs, rtol=1e-5)
    np.testing.assert_allclose(judged.values, acted.values, rtol=1e-5)
    np.testing.assert_allclose(learner.parameters(OBS), acted.params, rtol=1e-5)


@pytest.mark.parametrize("attribute", ["squash", "use_sde"])
def test_sb3_policy_draws_by_itself_when_the_inner_distribution_is_not_the_whole(attribute: str) -> None:
    agent = SB3Like()
    setattr(agent, attribute, True)
    learner, worker = pair(agent, spaces.Box(-1, 1, (2,)))
    acted = act(worker)

    assert acted.params is None
    assert learner.parameters(OBS) is None
    np.testing.assert_allclose(learner.evaluate(OBS, acted.actions).log_probs, acted.log_probs, rtol=1e-3)


# --- NumPy -------------------------------------------------------------------------------------------------


def test_numpy_agent_acts_in_the_environments_own_terms() -> None:
    space = spaces.Discrete(3, start=5)
    agent = NumpyAgent(Spaces(BOX, space))
    agent.weights[:, 1] = OBS.mean(axis=0)
    learner, worker = pair(agent, space)
    acted = act(worker)

    np.testing.assert_array_equal(acted.actions, agent.act(OBS))
    assert np.isnan([acted.log_probs, acted.values, worker.values(OBS)]).all()
    assert np.isnan(learner.evaluate(OBS, acted.actions).log_probs).all()
    assert learner.parameters(OBS) is None
    assert worker.family is None


def test_numpy_agent_without_set_parameters_is_sent_whole() -> None:
    space = spaces.Discrete(3)
    agent = ScoringNumpyAgent(Spaces(BOX, space))
    learner, worker = pair(agent, space)
    agent.weights[:] = np.random.default_rng(1).normal(size=agent.weights.shape)
    worker.load_state(learner.transfer_state())
    acted = act(worker)

    np.testing.assert_array_equal(acted.actions, agent.act(OBS)[0])
    np.testing.assert_allclose(acted.values, OBS.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(worker.values(OBS), acted.values)
    assert np.isnan(learner.values(OBS)).all()


@pytest.mark.parametrize(
    "result", [np.zeros(2, int), np.zeros((ROWS, 2), int), (np.zeros(ROWS, int), np.zeros(ROWS))]
)
def test_numpy_agent_with_wrong_results_is_an_agent_error(result: Any) -> None:
    agent = NumpyAgent(Spaces(BOX, spaces.Discrete(3)))
    agent.act = lambda obs: result

    with pytest.raises(AgentError, match=r"actions have shape|gave 2 values"):
        act(pair(agent, spaces.Discrete(3))[1])


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=1), spaces.MultiDiscrete([3], start=[1])])
def test_action_outside_the_space_is_an_agent_error(space: gym.Space[Any]) -> None:
    agent = NumpyAgent(Spaces(BOX, spaces.Discrete(3)))
    agent.act = lambda obs: np.arange(len(obs))

    with pytest.raises(AgentError, match=r"actions hold 0; expected from \[?1\]? to \[?3\]?"):
        act(pair(agent, space)[1])


def test_numpy_agent_with_real_actions_for_discrete_is_an_agent_error() -> None:
    agent = NumpyAgent(Spaces(BOX, spaces.Discrete(3)))
    agent.act = lambda obs: np.zeros(len(obs))

    with pytest.raises(AgentError, match="actions are float64; expected whole numbers"):
        act(pair(agent, spaces.Discrete(3))[1])


# --- what fits ---------------------------------------------------------------------------------------------


def test_useless_agent_is_refused_with_what_is_missing() -> None:
    with pytest.raises(AgentError) as caught:
        adapt(UselessAgent(), BOX, spaces.Discrete(2))

    message = str(caught.value)
    for part in (
        "UselessAgent",
        "predict_values",
        "distribution(obs)",
        "get_action_and_value(obs, action=None)",
        "forward(obs, action=None)",
        "act(obs) with get_parameters()",
        "It has: think",
        "def distribution(self, obs):",
    ):
        assert part in message


class NeedsMore(nn.Module):
    def get_action_and_value(self, x: Any, goal: Any, action: Any = None) -> None: ...


class OnlyActs:
    def act(self, obs: Any) -> None: ...


class Model:
    policy = None


@pytest.mark.parametrize(
    ("agent", "hint"),
    [
        (NeedsMore(), r"cannot be called as \(obs\) and as \(obs, action\)"),
        (OnlyActs(), "`act` needs `get_parameters"),
        (Model(), "pass its `policy`"),
        (nn.Linear(5, 2), "no public methods|forward"),
        (None, "NoneType"),
    ],
)
def test_nearly_useful_agent_is_refused_with_a_hint(agent: object, hint: str) -> None:
    with pytest.raises(AgentError, match=hint):
        adapt(agent, BOX, spaces.Discrete(2))


def test_agent_for_a_nested_action_space_is_refused() -> None:
    with pytest.raises(AgentError, match="pass actions to step instead"):
        adapt(ForcedLogits([0.0]), BOX, spaces.Tuple([spaces.Discrete(2)]))


def test_parameters_that_are_no_dict_are_refused() -> None:
    class Agent:
        def get_parameters(self) -> list[np.ndarray]:
            return [np.zeros(2)]

        def act(self, obs: np.ndarray) -> np.ndarray:
            return np.zeros(len(obs), np.int64)

    adapter = adapt(Agent(), spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    with pytest.raises(AgentError, match=r"get_parameters\(\) gave list; expected a dict of arrays"):
        adapter.state()
