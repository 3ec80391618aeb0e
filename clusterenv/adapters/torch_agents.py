"""Agents that give a torch distribution: our own style, and the policies of Stable-Baselines3."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from clusterenv import distributions
from clusterenv.adapters import pickling
from clusterenv.adapters.actions import ActionTerms, draw
from clusterenv.adapters.base import (
    Acted,
    Agent,
    Array,
    Drawing,
    Evaluated,
    Floats,
    Ints,
    Leaves,
    Nested,
    agent_errors,
    nothing,
    rows_of,
    takes_env_ids,
)
from clusterenv.adapters.fused import Fused
from clusterenv.adapters.reading import (
    AnyDistribution,
    joint_log_prob,
    read,
    sampled,
    to_array,
    to_column,
)
from clusterenv.adapters.recurrent import AgentState, same_shapes
from clusterenv.adapters.tensors import (
    export_state,
    import_state,
    keyed_noise,
    modules_of,
    place_of,
    state_tensors,
    to_tensors,
    untouched,
)
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError

TOLERANCE = 1e-5
"""Difference of log-probabilities, absolute and relative, up to which ours counts as the agent's."""

METHODS = ("distribution", "get_distribution", "get_action_and_value", "forward", "act", "value", "get_value")


class TorchAdapter:
    """What all torch agents share: state, pickling, and what a call may touch.

    An `own` copy (on a worker) is in eval mode for good and acts fast; a learner's agent is left as it was.
    """

    values_apart = False
    state_axis = 0
    """Where states have the environments."""

    def __init__(self, agent: Agent, terms: ActionTerms, *, own: bool) -> None:
        """Adapt `agent`, whose methods were found to fit."""
        self._agent = agent
        self._terms = terms
        self._own = own
        self._place = place_of(agent)
        self._whole = not (state_tensors(agent) or modules_of(agent))
        self._family: Family | None = None
        self._takes_env_ids: dict[str, bool] = {}
        self._recurrent = self._has_state()
        self._agent_state = AgentState(agent, self.state_axis)
        # What depends on more than the observations cannot be found by watching how they are used.
        asks = any(takes_env_ids(agent, name) for name in METHODS)
        self._fused = Fused(watch=own and not self._recurrent and not asks)
        if own:
            for module in modules_of(agent):
                module.eval()

    @property
    def agent(self) -> object:
        """The agent itself."""
        return self._agent

    @property
    def family(self) -> Family | None:
        """The family of its distributions, once found."""
        return self._family

    @agent_errors
    def initial_state(self, rows: int) -> list[Array]:
        """Leaves [rows, ...] of the state at the begin of an episode; none if the agent has no state."""
        if not self._recurrent:
            return []
        with self._session():
            return self._agent_state.initial(rows)

    def nest_state(self, leaves: Leaves) -> Nested:
        """Leaves [n, ...] nested as the agent nests its state; None if it has none."""
        if not self._recurrent:
            return None
        with self._session():
            return self._agent_state.nest(leaves)

    def _has_state(self) -> bool:
        return callable(getattr(self._agent, "initial_state", None))

    def _remembered(self, state: Leaves) -> tuple[Nested, ...]:
        """What methods are given beside the observations: the state, of an agent that has one."""
        return (self._agent_state.tensors(state, *self._place),) if self._recurrent else ()

    def _next_state(self, state: Nested, before: Leaves, rows: int) -> list[Array]:
        """Leaves of the state that a method gave."""
        leaves = self._agent_state.leaves(state, rows)
        same_shapes(leaves, before)
        return leaves

    @agent_errors
    def state(self) -> dict[str, Array]:
        """Parameters and buffers; a digest of the pickled agent if it has neither."""
        if self._whole:
            return pickling.whole_digest(self._agent)
        return export_state(self._agent)

    @agent_errors
    def stamp(self) -> object:
        """Where each tensor of the state lies and how often it was written."""
        tensors = list(state_tensors(self._agent).values())
        if self._whole or any(tensor.is_inference() for tensor in tensors):
            return None
        return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)

    def transfer_state(self) -> dict[str, Array]:
        """The state, or all of the agent."""
        return pickling.whole_state(self._agent) if self._whole else self.state()

    @agent_errors
    def load_state(self, state: Mapping[str, Array]) -> None:
        """Act as the agent whose state this is."""
        if self._whole:
            self._agent = pickling.whole_agent(state)
            self._agent_state = AgentState(self._agent, self.state_axis)
        else:
            import_state(self._agent, state)
        self._fused.forget()
        self._state_loaded()

    def drawing(self) -> tuple[Drawing, int] | None:
        """The network and distribution that were found, unless the agent must compute in the next act."""
        return self._fused.drawing(self._terms)

    def has_drawn(self, acts: int) -> None:
        """So many acts were made with `drawing`."""
        self._fused.has_drawn(acts)

    def dumps(self) -> bytes:
        """The agent on the CPU, with blanks where its state goes."""
        return pickling.dumps(self._agent, state_tensors(self._agent).values())

    def _state_loaded(self) -> None:
        """What was found out under the former weights may no longer hold."""

    def _session(self) -> AbstractContextManager[None]:
        """Around every call of the agent's code."""
        if self._own:
            return torch.inference_mode()
        self._place = place_of(self._agent)  # the learner may have moved it
        return untouched(self._agent, self._place[0])

    def _inputs(self, obs: Nested) -> Nested:
        return to_tensors(obs, *self._place)

    def _env_ids(self, method: str, env_ids: Ints | None) -> dict[str, Tensor]:
        """What the agent's `method` is given of the rows' environments: nothing unless it asks."""
        takes = self._takes_env_ids.get(method)
        if takes is None:
            takes = self._takes_env_ids[method] = takes_env_ids(self._agent, method)
        if not takes:
            return {}
        assert env_ids is not None
        return {"env_ids": torch.from_numpy(env_ids.copy()).to(self._place[0])}

    def _act_alone(
        self, obs: Nested, *, with_values: bool, seed: int, env_ids: Ints, steps: Ints
    ) -> Acted | None:
        """What the agent's small network does, without the agent; None: it must act itself."""
        known, rows = self._fused.act(obs, with_values=with_values), len(env_ids)
        if known is None:
            return None
        family, params, values = known
        actions, log_probs = draw(family, params, seed=seed, env_ids=env_ids, steps=steps)
        taken = self._terms.to_env(actions, rows)
        return Acted(taken, log_probs, nothing(rows) if values is None else values, params)

    def _action_tensor(self, actions: Array) -> Tensor:
        """Actions in the family's terms as the agent's own distribution gives them."""
        device, dtype = self._place
        tensor = torch.from_numpy(np.array(actions))
        return tensor.to(device) if self._terms.discrete else tensor.to(device, dtype)


def close(ours: Floats, theirs: Floats, *, tolerance: float = TOLERANCE) -> bool:
    """Whether log-probabilities are the same up to rounding."""
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=tolerance, atol=tolerance)


class DistributionAdapter(TorchAdapter):
    """An agent with `distribution(obs)`, one of torch or a list of them, and perhaps `value(obs)`.

    With `initial_state(n)` it is recurrent: `distribution(obs, state)` gives (distribution, next state), and
    `value(obs, state)` the value.
    """

    values_apart = True

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
        """Draw from the parameters where the family is known; else the agent's distribution draws."""
        rows = len(env_ids)
        alone = self._act_alone(obs, with_values=with_values, seed=seed, env_ids=env_ids, steps=steps)
        if alone is not None:
            return alone
        with self._session():
            inputs = self._inputs(obs)
            with self._fused.watching(inputs):
                distribution, next_state = self._distribution(inputs, env_ids, state)
            params = self._params(distribution, rows)
            self._fused.learn(obs, self._family, params, self._plain(distribution))
            if params is not None and self._family is not None:
                actions, log_probs = draw(self._family, params, seed=seed, env_ids=env_ids, steps=steps)
            else:
                with keyed_noise(self._place[0], seed, env_ids, steps):
                    drawn = sampled(distribution)
                actions, log_probs = to_array(drawn), joint_log_prob(distribution, drawn, rows)
            values = self._values(inputs, rows, env_ids, state, watched=obs) if with_values else nothing(rows)
        taken = self._terms.to_env(actions, rows)
        if params is None:
            taken = self._terms.checked(taken)
        return Acted(taken, log_probs, values, params, next_state)

    @agent_errors
    def parameters(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats | None:
        """Distribution parameters [n, P] in memory of their own."""
        with self._session():
            distribution, _ = self._distribution(self._inputs(obs), env_ids, state)
            params = self._params(distribution, rows_of(obs))
        return None if params is None else params.copy()

    @agent_errors
    def evaluate(
        self, obs: Nested, actions: Array, *, env_ids: Ints | None = None, state: Leaves = ()
    ) -> Evaluated:
        """The agent's own log-probabilities, and values."""
        rows = len(actions)
        with self._session():
            inputs = self._inputs(obs)
            distribution, _ = self._distribution(inputs, env_ids, state)
            log_probs = self._log_probs(distribution, self._terms.to_family(actions), rows)
            return Evaluated(log_probs, self._values(inputs, rows, env_ids, state))

    @agent_errors
    def values(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats:
        """Values [n], NaN if the agent has none."""
        if (values := self._fused.values(obs)) is not None:
            return values
        with self._session():
            return self._values(self._inputs(obs), rows_of(obs), env_ids, state, watched=obs)

    def _distribution(
        self, inputs: Nested, env_ids: Ints | None, state: Leaves
    ) -> tuple[AnyDistribution, list[Array]]:
        """The agent's distribution, and leaves of its next state."""
        asked = self._env_ids("distribution", env_ids)
        distribution = self._agent.distribution(inputs, *self._remembered(state), **asked)
        next_state: list[Array] = []
        if self._recurrent:
            if not (isinstance(distribution, tuple) and len(distribution) == 2):
                raise AgentError(
                    "the agent has initial_state, but its distribution(obs, state) gave "
                    f"{type(distribution).__name__}; expected (distribution, next state)"
                )
            next_state = self._next_state(distribution[1], state, len(state[0]))
            distribution = distribution[0]
        if not (isinstance(distribution, list | tuple) or hasattr(distribution, "log_prob")):
            raise AgentError(
                f"the agent's distribution(obs) gave {type(distribution).__name__}; "
                "expected a torch.distributions.Distribution, such as Categorical or Independent(Normal, 1)"
            )
        return distribution, next_state

    def _plain(self, distribution: AnyDistribution) -> AnyDistribution:
        """The distribution of torch that holds the parameters."""
        return distribution

    def _params(self, distribution: AnyDistribution, rows: int) -> Floats | None:
        found = read(distribution, self._terms.family, rows)
        self._family, params = (None, None) if found is None else found
        return params

    def _log_probs(self, distribution: AnyDistribution, actions: Array, rows: int) -> Floats:
        """Log-probabilities [n] of actions in the family's terms; NaN without a distribution."""
        if distribution is None:
            return nothing(rows)
        params = self._params(distribution, rows)
        if params is not None and self._family is not None and self._family.kind is Kind.TANH_GAUSSIAN:
            return distributions.log_prob(self._family, params, actions)  # finite at the ends, unlike torch's
        taken = self._action_tensor(actions)
        if isinstance(distribution, Distribution):
            taken = taken.reshape(distribution.batch_shape + distribution.event_shape)
        return joint_log_prob(distribution, taken, rows)

    def _values(
        self, inputs: Nested, rows: int, env_ids: Ints | None, state: Leaves, *, watched: Nested = None
    ) -> Floats:
        """What the value function says; how it comes from the observations `watched` is remembered."""
        value = getattr(self._agent, "value", None)
        if value is None:
            return nothing(rows)
        remembered, asked = self._remembered(state), self._env_ids("value", env_ids)
        with contextlib.nullcontext() if watched is None else self._fused.watching_values(inputs):
            values = value(inputs, *remembered, **asked)
        if watched is not None:
            self._fused.learn_values(watched, values)
        return to_column(values, rows, "value")


class SB3Adapter(DistributionAdapter):
    """A Stable-Baselines3 policy: `get_distribution(obs)`, which wraps one of torch, and `predict_values`.

    The wrapper may squash or correlate what the inner distribution says, so log-probabilities are compared
    before that one is used.
    """

    _trusted: bool | None = None

    def _state_loaded(self) -> None:
        self._trusted = None

    def _inputs(self, obs: Nested) -> Nested:
        to_tensor = getattr(self._agent, "obs_to_tensor", None)
        return super()._inputs(obs) if to_tensor is None else to_tensor(obs)[0]

    def _has_state(self) -> bool:
        return False

    def _distribution(
        self, inputs: Nested, env_ids: Ints | None, _: Leaves
    ) -> tuple[AnyDistribution, list[Array]]:
        asked = self._env_ids("get_distribution", env_ids)
        return self._agent.get_distribution(inputs, **asked), []

    def _plain(self, distribution: AnyDistribution) -> AnyDistribution:
        return getattr(distribution, "distribution", None)

    def _params(self, distribution: AnyDistribution, rows: int) -> Floats | None:
        params = super()._params(self._plain(distribution), rows)
        if params is None:
            return None
        if self._trusted is None or not self._own:
            self._trusted = self._is_all(distribution, params, rows)
        if not self._trusted:
            self._family = None
            return None
        return params

    def _is_all(self, distribution: AnyDistribution, params: Floats, rows: int) -> bool:
        """Whether the wrapper adds nothing to the distribution inside."""
        if getattr(self._agent, "use_sde", False):
            return False
        count = np.arange(rows, dtype=np.int64)
        assert self._family is not None
        actions, ours = draw(self._family, params, seed=0, env_ids=count, steps=np.zeros_like(count))
        return close(ours, joint_log_prob(distribution, self._action_tensor(actions), rows))

    def _values(
        self, inputs: Nested, rows: int, env_ids: Ints | None, _: Leaves, *, watched: Nested = None
    ) -> Floats:
        values = self._agent.predict_values(inputs, **self._env_ids("predict_values", env_ids))
        return to_column(values, rows, "predict_values")
