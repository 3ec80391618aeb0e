"""Agents that build their distribution inside one call, such as `get_action_and_value(obs, action=None)`."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import Tensor

from clusterenv import distributions, squash
from clusterenv.adapters.actions import ActionTerms, draw
from clusterenv.adapters.base import (
    Acted,
    Agent,
    Array,
    Evaluated,
    Floats,
    Ints,
    Leaves,
    Nested,
    agent_errors,
    rows_of,
)
from clusterenv.adapters.capture import Capture, Draw, capturing
from clusterenv.adapters.reading import to_array, to_column
from clusterenv.adapters.tensors import kept_generators, keyed_noise
from clusterenv.adapters.torch_agents import TorchAdapter, close
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError

SQUASHED_TOLERANCE = 1e-3
"""For actions that tanh has squashed, from which torch computes in float32 what was squashed."""


class CapturedAdapter(TorchAdapter):
    """An agent whose `method(obs, action=None)` gives (action, log_prob, entropy, value).

    Its distribution is captured. That counts only while our samples come back as its actions and our
    log-probabilities are its own: checked in the first call after every change of weights. Else the agent
    samples, and no family is known.
    """

    def __init__(self, agent: Agent, terms: ActionTerms, *, own: bool, method: str) -> None:
        """Adapt `agent`, whose `method` was found to fit."""
        super().__init__(agent, terms, own=own)
        self._method = method
        self._trusted: bool | None = None

    @property
    def values_apart(self) -> bool:  # type: ignore[override]
        """Whether actions were found without them."""
        return self._fused.used

    @agent_errors
    def act(
        self,
        obs: Nested,
        *,
        seed: int,
        env_ids: Ints,
        steps: Ints,
        with_values: bool = True,
        state: Leaves = (),
    ) -> Acted:
        """Draw from the captured parameters; else the agent draws."""
        rows = len(env_ids)

        def keyed(family: Family, params: Floats) -> tuple[Array, Floats]:
            return draw(family, params, seed=seed, env_ids=env_ids, steps=steps)

        alone = self._act_alone(obs, with_values=with_values, seed=seed, env_ids=env_ids, steps=steps)
        if alone is not None:
            return alone
        with self._session():
            inputs = self._inputs(obs)
            acted = self._captured(inputs, rows, keyed, env_ids, state, watched=obs)
            if acted is not None:
                return acted
            with keyed_noise(self._place[0], seed, env_ids, steps):
                action, log_prob, value, next_state = self._call(inputs, rows, env_ids, state)
        actions = self._terms.checked(self._terms.to_env(to_array(action), rows))
        log_probs, values = to_column(log_prob, rows, "log_prob"), to_column(value, rows, "value")
        return Acted(actions, log_probs, values, None, next_state)

    @agent_errors
    def parameters(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats | None:
        """Captured parameters [n, P], if they count."""
        rows = rows_of(obs)
        with self._session():
            acted = self._captured(self._inputs(obs), rows, _fixed_noise, env_ids, state)
        return None if acted is None or acted.params is None else acted.params.copy()

    @agent_errors
    def evaluate(
        self, obs: Nested, actions: Array, *, env_ids: Ints | None = None, state: Leaves = ()
    ) -> Evaluated:
        """The agent's own log-probabilities, and values."""
        rows = len(actions)
        taken = self._terms.to_family(actions)

        def given(family: Family, params: Floats) -> tuple[Array, Floats]:
            several = family.kind is Kind.MULTI_CATEGORICAL
            part = taken[:, : len(family.sizes)] if several else taken
            return part, distributions.log_prob(family, params, part)

        with self._session():
            inputs = self._inputs(obs)
            # As a sample of the agent itself: given as `action`, multi-discrete agents want it transposed.
            acted = self._captured(inputs, rows, given, env_ids, state)
            if acted is not None:
                return Evaluated(acted.log_probs, acted.values)
            given_action = self._action_tensor(taken.reshape(actions.shape))
            _, log_prob, value, _ = self._call(inputs, rows, env_ids, state, given_action)
        return Evaluated(to_column(log_prob, rows, "log_prob"), to_column(value, rows, "value"))

    @agent_errors
    def values(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats:
        """Values [n], by `get_value` if the agent has it."""
        rows = rows_of(obs)
        if (values := self._fused.values(obs)) is not None:
            return values
        with self._session():
            inputs = self._inputs(obs)
            get_value = getattr(self._agent, "get_value", None)
            if get_value is not None:
                asked = self._env_ids("get_value", env_ids)
                values = get_value(inputs, *self._beside(state, rows), **asked)
                return to_column(values, rows, "get_value")
            acted = self._captured(inputs, rows, _fixed_noise, env_ids, state)
            if acted is not None:
                return acted.values
            with kept_generators(self._place[0]):
                return to_column(self._call(inputs, rows, env_ids, state)[2], rows, "value")

    def _state_loaded(self) -> None:
        self._trusted = None

    def _captured(
        self,
        inputs: Nested,
        rows: int,
        draw_for: Draw,
        env_ids: Ints | None,
        state: Leaves,
        *,
        watched: Nested = None,
    ) -> Acted | None:
        """The agent's step with the samples of `draw_for`; None if its distribution cannot be captured.

        How it comes from the observations `watched` to its numbers is remembered.
        """
        family = self._terms.family
        if family is None or (self._own and self._trusted is False):
            return None
        known = self._own and self._trusted is True
        watching = contextlib.nullcontext() if watched is None else self._fused.watching(inputs)
        aside = self._fused.not_watching
        capture = Capture(family, rows, draw_for, skip_scores=known, aside=aside)
        generators = contextlib.nullcontext() if known else kept_generators(self._place[0])
        with generators, capturing(capture), watching:
            action, log_prob, value, next_state = self._call(inputs, rows, env_ids, state)
        params, actions, log_probs = capture.params, capture.actions, capture.log_probs
        self._trusted = (
            params is not None
            and actions is not None
            and log_probs is not None
            and capture.came_back(action)
            and (known or _agree(capture.family, params, actions, log_probs, log_prob))
        )
        self._family = capture.family if self._trusted else None
        if watched is not None:
            self._fused.learn(watched, self._family, params, capture.distribution, value)
        if not self._trusted or actions is None or log_probs is None:
            return None
        taken, values = self._terms.to_env(actions, rows), to_column(value, rows, "value")
        return Acted(taken, log_probs, values, params, next_state)

    def _has_state(self) -> bool:
        return False

    def _beside(self, state: Leaves, rows: int) -> tuple[Nested, ...]:
        """What methods are given after the observations."""
        return ()

    def _call(
        self, inputs: Nested, rows: int, env_ids: Ints | None, state: Leaves, *action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, list[Array]]:
        """Action, log-prob, value and leaves of the next state; the entropy is left out."""
        method = self._agent if self._method == "forward" else getattr(self._agent, self._method)
        asked = self._env_ids(self._method, env_ids)
        result = method(inputs, *self._beside(state, rows), *action, **asked)
        expected = ("action", "log_prob", "entropy", "value", "state")[: 5 if self._recurrent else 4]
        if not isinstance(result, tuple | list) or len(result) != len(expected):
            seen = f"{len(result)} values" if isinstance(result, tuple | list) else type(result).__name__
            raise AgentError(f"the agent's {self._method} gave {seen}; expected ({', '.join(expected)})")
        next_state = self._next_state(result[4], state, rows) if self._recurrent else []
        return result[0], result[1], result[3], next_state


class RecurrentCapturedAdapter(CapturedAdapter):
    """The same with a state, as in CleanRL's LSTM script: `method(obs, state, done, action=None)`.

    States have the environments at axis 1, as those of torch.nn.LSTM. Without `initial_state(n)` episodes
    begin with zeros for the agent's only recurrent module. `done` is always 0, since states come from within
    the episode.
    """

    state_axis = 1

    def _has_state(self) -> bool:
        return True

    def _beside(self, state: Leaves, rows: int) -> tuple[Nested, ...]:
        return (*self._remembered(state), torch.zeros(rows, device=self._place[0], dtype=self._place[1]))


def _agree(family: Family, params: Floats, actions: Array, ours: Floats, log_prob: object) -> bool:
    """Whether the agent's log-probabilities are ours, where float32 can tell."""
    theirs = to_column(log_prob, len(ours), "log_prob")
    if family.kind is not Kind.TANH_GAUSSIAN:
        return close(ours, theirs)
    rows = squash.is_sharp(params, actions)
    return close(ours[rows], theirs[rows], tolerance=SQUASHED_TOLERANCE)


def _fixed_noise(family: Family, params: Floats) -> tuple[Array, Floats]:
    """Samples that the caller has no use for."""
    count = np.arange(len(params), dtype=np.int64)
    return draw(family, params, seed=0, env_ids=count, steps=np.zeros_like(count))
