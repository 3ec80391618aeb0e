"""The state of torch agents, and what calls over a learner's own agent leave as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical

from clusterenv.adapters import AgentAdapter, adapt, loads
from clusterenv.errors import AgentError
from tests.agents import CleanRLAgent, MLPAgent, Spaces

BOX, TWO = spaces.Box(-1, 1, (5,)), spaces.Discrete(2)
SPACES = Spaces(BOX, TWO)
ROWS = 6
OBS = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
IDS = np.arange(ROWS, dtype=np.int64)


def worker_of(learner: AgentAdapter) -> AgentAdapter:
    worker = loads(learner.dumps(), BOX, TWO)
    worker.load_state(learner.transfer_state())
    return worker


def use(adapter: AgentAdapter) -> None:
    """Call everything that asks the agent."""
    acted = adapter.act(OBS, seed=1, env_ids=IDS, steps=IDS)
    adapter.parameters(OBS)
    adapter.evaluate(OBS, acted.actions)
    adapter.values(OBS)


class Eager(MLPAgent):
    """Has batch norm, dropout, a count of what it saw and statistics bound anew, in eval mode too."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(0.5)
        self.dropout.eval()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("none", None)

    def distribution(self, obs: Tensor) -> Any:
        self.seen += len(obs)
        self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
        torch.rand(3)
        return super().distribution(self.dropout(self.norm(obs)))


class EagerInside(Eager):
    """The same, found by `get_action_and_value`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.distribution
        self.distribution = None

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Any, ...]:
        probs = Eager.distribution(self, x)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.value(x)


@pytest.mark.parametrize("agent_type", [Eager, EagerInside])
def test_calls_leave_the_learners_agent_as_it_was(agent_type: type[Eager]) -> None:
    agent = agent_type()
    agent.actor[0].weight.grad = torch.ones_like(agent.actor[0].weight)
    state = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    identities = {name: id(tensor) for name, tensor in agent.state_dict(keep_vars=True).items()}
    modes = [module.training for module in agent.modules()]
    generator = torch.get_rng_state()

    use(adapt(agent, BOX, TWO))

    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in agent.modules()] == modes
    assert {name: id(tensor) for name, tensor in agent.state_dict(keep_vars=True).items()} == identities
    for name, tensor in agent.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert torch.equal(agent.actor[0].weight.grad, torch.ones(16, 5))
    assert torch.is_grad_enabled()
    Eager.distribution(agent, torch.from_numpy(OBS)).logits.sum().backward()


def test_learner_and_worker_agree_though_the_learner_trains() -> None:
    agent = Eager()
    agent.dropout.train()
    learner = adapt(agent, BOX, TWO)
    worker = worker_of(learner)
    theta = worker.act(OBS, seed=1, env_ids=IDS, steps=IDS).params

    np.testing.assert_allclose(learner.parameters(OBS), theta, rtol=1e-6)
    assert not worker.agent.training  # type: ignore[attr-defined]


def test_failing_agent_is_left_as_it_was() -> None:
    class Fails(Eager):
        def value(self, obs: Any) -> Tensor:
            raise RuntimeError("no luck")

    agent = Fails()
    with pytest.raises(AgentError, match="no luck") as caught:
        adapt(agent, BOX, TWO).values(OBS)

    assert isinstance(caught.value.__cause__, RuntimeError)
    assert agent.training


def test_state_has_parameters_and_buffers_and_tied_ones_once() -> None:
    agent = MLPAgent(SPACES)
    agent.critic[2] = agent.actor[2]
    agent.register_buffer("kept", torch.zeros((), dtype=torch.int64))
    agent.register_buffer("passing", torch.zeros(0), persistent=False)
    state = adapt(agent, BOX, TWO).state()

    assert sum(name.endswith("2.weight") for name in state) == 1
    assert state["kept"].shape == ()
    assert state["passing"].shape == (0,)
    assert len(state) == 12


def test_loaded_state_makes_a_copy_act_alike() -> None:
    agent = MLPAgent(SPACES)
    agent.critic[2] = agent.actor[2]
    learner = adapt(agent, BOX, TWO)
    worker = worker_of(learner)
    for _ in range(2):
        with torch.no_grad():
            agent.actor[2].weight.normal_()
        worker.load_state(learner.transfer_state())
        np.testing.assert_allclose(worker.values(OBS), learner.values(OBS), rtol=1e-5)
        np.testing.assert_allclose(worker.parameters(OBS), learner.parameters(OBS), rtol=1e-5)
    assert worker.agent.critic[2] is worker.agent.actor[2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("critic.0.bias"), r"critic.0.bias is missing; expected float32 \(16,\)"),
        (lambda s: s.update(extra=np.zeros(2)), r"extra is float64 \(2,\); expected missing"),
        (lambda s: s.update({"actor.0.bias": np.zeros(2, np.float32)}), r"actor.0.bias is float32 \(2,\)"),
        (lambda s: s.update({"actor.0.bias": np.zeros(16)}), r"float64 \(16,\); expected float32 \(16,\)"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    learner = adapt(MLPAgent(SPACES), BOX, TWO)
    worker = worker_of(adapt(MLPAgent(SPACES, seed=1), BOX, TWO))
    before = worker.values(OBS)
    state = learner.transfer_state()
    change(state)

    with pytest.raises(AgentError, match=f"the weights do not fit the agent: .*{message}"):
        worker.load_state(state)
    np.testing.assert_array_equal(worker.values(OBS), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_agent_of_another_dtype_gets_observations_in_it(dtype: torch.dtype) -> None:
    class Wide(MLPAgent):
        def distribution(self, obs: Tensor) -> Categorical:
            assert obs.dtype is dtype
            return Categorical(logits=self.actor(obs))

        def value(self, obs: Tensor) -> Tensor:
            return self.critic(obs)

    learner = adapt(Wide(SPACES).to(dtype), BOX, TWO)
    worker = worker_of(learner)
    use(worker)

    np.testing.assert_allclose(worker.parameters(OBS), learner.parameters(OBS))


class Plain:
    """No module, but holds one, and a tensor beside it."""

    def __init__(self) -> None:
        self.actor = nn.Linear(5, 2)
        self.alias = self.actor
        self.scale = torch.ones(())

    def distribution(self, obs: Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs) * self.scale)


def test_plain_object_is_known_by_the_modules_and_tensors_it_holds() -> None:
    agent = Plain()
    learner = adapt(agent, BOX, TWO)
    worker = worker_of(learner)
    agent.scale *= 3
    worker.load_state(learner.transfer_state())

    assert set(learner.state()) == {"actor.weight", "actor.bias", "scale"}
    np.testing.assert_allclose(worker.parameters(OBS), learner.parameters(OBS), rtol=1e-6)


class Bare:
    """Neither module nor tensors: known by its pickle alone."""

    def __init__(self) -> None:
        self.logits = [0.0, 1.0]

    def distribution(self, obs: Tensor) -> Categorical:
        return Categorical(logits=torch.tensor(self.logits).expand(len(obs), 2))


def test_bare_object_is_sent_whole() -> None:
    agent = Bare()
    learner = adapt(agent, BOX, TWO)
    worker = worker_of(learner)
    first = learner.state()
    assert {name: array.tolist() for name, array in learner.state().items()} == {
        name: array.tolist() for name, array in first.items()
    }
    agent.logits = [3.0, 1.0]
    worker.load_state(learner.transfer_state())

    (seen,) = learner.state().values()
    (before,) = first.values()
    assert seen.shape == before.shape
    assert (seen != before).any()
    np.testing.assert_allclose(worker.parameters(OBS), learner.parameters(OBS), rtol=1e-6)
    with pytest.raises(AgentError, match="expected a whole agent"):
        worker.load_state(adapt(CleanRLAgent(SPACES), BOX, TWO).transfer_state())
