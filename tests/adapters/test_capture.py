"""What is captured of agents that build their distribution inside one call, and when that counts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from clusterenv.adapters import AgentAdapter, adapt, loads
from clusterenv.adapters.capture import Capture, capturing
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError
from tests.agents import CleanRLAgent, Spaces

BOX, TWO = spaces.Box(-1, 1, (5,)), spaces.Box(-1, 1, (2,))
ROWS = 6
IDS = np.arange(ROWS, dtype=np.int64)
OBS = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)


class Inside(nn.Module):
    """`get_action_and_value` over a Gaussian whose sample and score a subclass may alter."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 2)
        self.calls: list[str] = []

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        probs = Normal(self.net(x), 0.5)
        if action is None:
            action = self.drawn(probs)
        return action, self.scored(probs, action), probs.entropy().sum(1), self.net(x)[:, 0]

    def drawn(self, probs: Normal) -> Tensor:
        return probs.sample()

    def scored(self, probs: Normal, action: Tensor) -> Tensor:
        return probs.log_prob(action).sum(1)


class Squashed(Inside):
    def drawn(self, probs: Normal) -> Tensor:
        return torch.tanh(probs.rsample())

    def scored(self, probs: Normal, action: Tensor) -> Tensor:
        return (probs.log_prob(torch.atanh(action)) - torch.log(1 - action**2)).sum(1)


class Misscored(Inside):
    def scored(self, probs: Normal, action: Tensor) -> Tensor:
        return super().scored(probs, action) + 1e-3


class Twice(Inside):
    def drawn(self, probs: Normal) -> Tensor:
        probs.sample()
        return probs.sample()


class ByHand(Inside):
    def drawn(self, probs: Normal) -> Tensor:
        return probs.loc + probs.scale * torch.randn_like(probs.loc)


class Latent(Inside):
    """Samples something else before its action."""

    def drawn(self, probs: Normal) -> Tensor:
        return Normal(probs.loc.repeat(1, 8), 1.0).sample()[:, :2]


class Clamped(Inside):
    def drawn(self, probs: Normal) -> Tensor:
        return probs.sample().clamp_(-0.1, 0.1)


def worker_of(agent: object, actions: Any = TWO) -> tuple[AgentAdapter, AgentAdapter]:
    learner = adapt(agent, BOX, actions)
    worker = loads(learner.dumps(), BOX, actions)
    worker.load_state(learner.transfer_state())
    return learner, worker


def act(adapter: AgentAdapter, step: int = 0) -> Any:
    return adapter.act(OBS, seed=1, env_ids=IDS, steps=np.full(ROWS, step, np.int64))


def test_capture_gives_the_closed_form() -> None:
    learner, worker = worker_of(Inside())

    assert act(worker).params is not None
    assert learner.parameters(OBS) is not None
    assert learner.family == worker.family == Family(Kind.DIAG_GAUSSIAN, (2,))


@pytest.mark.parametrize("agent_type", [Squashed, Misscored, Twice, ByHand, Latent, Clamped])
def test_capture_does_not_count_when_the_agent_does_more(agent_type: type[Inside]) -> None:
    agent = agent_type()
    learner, worker = worker_of(agent)
    before = torch.get_rng_state()

    for step in range(3):
        acted = act(worker, step)
        assert acted.params is None
        with torch.no_grad():
            _, log_prob, _, _ = agent.get_action_and_value(
                torch.from_numpy(OBS), torch.from_numpy(acted.actions)
            )
        np.testing.assert_allclose(acted.log_probs, log_prob, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(act(worker, step).actions, acted.actions)
        np.testing.assert_allclose(learner.evaluate(OBS, acted.actions).log_probs, log_prob, rtol=1e-4)
    assert (act(worker, 1).actions != act(worker, 0).actions).any()
    assert learner.parameters(OBS) is None
    assert worker.family is learner.family is None
    assert torch.equal(torch.get_rng_state(), before)


class SometimesRandom(Inside):
    """Takes another action than the sampled one when its buffer says so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("randomly", torch.zeros(()))

    def drawn(self, probs: Normal) -> Tensor:
        drawn = probs.sample()
        return torch.zeros_like(drawn) if self.randomly else drawn


def test_capture_is_checked_again_after_each_change_of_weights() -> None:
    agent = SometimesRandom()
    learner, worker = worker_of(agent)
    known = []
    for randomly in (0.0, 1.0, 0.0):
        agent.randomly.fill_(randomly)
        worker.load_state(learner.transfer_state())
        known += [act(worker).params is not None, learner.parameters(OBS) is not None]

    assert known == [True, True, False, False, True, True]


class Counted(Inside):
    """Takes the sampled action only for its first two calls."""

    acts = 0

    def drawn(self, probs: Normal) -> Tensor:
        self.acts += 1
        drawn = probs.sample()
        return drawn if self.acts <= 2 else drawn * 0.5


def test_capture_notices_later_that_its_samples_do_not_come_back() -> None:
    _, worker = worker_of(Counted())

    assert [act(worker).params is not None for _ in range(4)] == [True, True, False, False]
    assert np.isfinite(act(worker).log_probs).all()


class Watched(Inside):
    """Says whether its log-probs were really computed."""

    def scored(self, probs: Normal, action: Tensor) -> Tensor:
        scores = probs.log_prob(action)
        self.calls.append("zeros" if not scores.any() else "scores")
        return scores.sum(1)


def test_capture_skips_scores_once_they_are_known_to_agree() -> None:
    learner, worker = worker_of(Watched())
    log_probs = [act(worker).log_probs for _ in range(3)]

    assert worker.agent.calls == ["scores", "zeros", "zeros"]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(log_probs[0], log_probs[2])
    learner.parameters(OBS)
    learner.parameters(OBS)
    assert learner.agent.calls == ["scores", "scores"]  # type: ignore[attr-defined]


def test_capture_leaves_torch_as_it_was() -> None:
    before = {kind: dict(vars(kind)) for kind in (Categorical, Normal)}
    learner, _ = worker_of(Inside())
    learner.parameters(OBS)

    assert {kind: dict(vars(kind)) for kind in before} == before


def test_capture_is_none_of_another_threads_business() -> None:
    family = Family(Kind.DIAG_GAUSSIAN, (2,))
    capture = Capture(family, ROWS, lambda *_: pytest.fail("asked"), skip_scores=True)
    drawn: list[Tensor] = []

    def elsewhere() -> None:
        drawn.append(Normal(torch.zeros(ROWS, 2), 1.0).sample())

    with capturing(capture):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)

    assert drawn[0].any()


def test_failing_agent_leaves_no_capture_behind() -> None:
    class Fails(Inside):
        def drawn(self, probs: Normal) -> Tensor:
            raise RuntimeError("no luck")

    _, worker = worker_of(Fails())
    with pytest.raises(AgentError, match=r"the agent \(Fails\) failed: RuntimeError: no luck"):
        act(worker)

    assert Normal(torch.zeros(ROWS, 2), 1.0).sample().any()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x, "gave Tensor; expected"),
        (lambda x: (x, x), "gave 2 values; expected"),
        (lambda x: (x[:, :2], x[:, :2], x, x[:, 0]), r"log_prob has shape \(6, 2\); expected \(6,\)"),
        (lambda x: (x[:, :2], x[:, 0], x, x), r"value has shape \(6, 5\); expected \(6,\)"),
    ],
)
def test_wrong_results_are_agent_errors(result: Any, message: str) -> None:
    class Wrong(nn.Module):
        def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> Any:
            return result(x)

    with pytest.raises(AgentError, match=message):
        act(worker_of(Wrong())[1])


def test_agent_without_get_value_gives_values_by_the_same_call() -> None:
    learner, worker = worker_of(Inside())
    acted = act(worker)

    for adapter in (learner, worker):
        np.testing.assert_allclose(adapter.values(OBS), acted.values, rtol=1e-5)


def test_evaluate_gives_multi_discrete_agents_their_own_samples() -> None:
    space = spaces.MultiDiscrete([3, 4], start=[5, 0])
    agent = CleanRLAgent(Spaces(BOX, space))
    learner, worker = worker_of(agent, space)
    actions = np.array([[5 + row % 3, row % 4] for row in range(ROWS)])
    with torch.no_grad():
        given = torch.from_numpy(actions - [5, 0])
        _, log_prob, _, _ = agent.get_action_and_value(torch.from_numpy(OBS), given.T)

    np.testing.assert_allclose(learner.evaluate(OBS, actions).log_probs, log_prob, rtol=1e-5)
    act(worker)
    np.testing.assert_allclose(worker.evaluate(OBS, actions).log_probs, log_prob, rtol=1e-5)
