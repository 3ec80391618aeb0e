"""Agents without torch: `act(obs)` on NumPy arrays, with `get_parameters()`."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from clusterenv import distributions
from clusterenv.adapters import pickling
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
    column,
    nothing,
    refuse_state,
    rows_of,
    takes_env_ids,
)
from clusterenv.distributions import Family
from clusterenv.errors import AgentError


class NumpyAdapter:
    """An agent whose `act(obs)` gives actions in the environments' terms, or (actions, log_prob, value).

    With a `noise_std` its policy is a Gaussian around the actions, which is drawn here. It may have
    `log_prob(obs, actions) -> [n]` and `value(obs) -> [n]`, without which a learner's agent says nothing of
    actions that were taken and states that were seen: it is never asked to act, since its generator would
    move. Without `set_parameters` it is sent whole whenever weights are pulled.
    """

    def __init__(self, agent: Agent, terms: ActionTerms, *, own: bool) -> None:
        """Adapt `agent`, whose methods were found to fit.

        Raises:
            AgentError: if it has a state, which `act` does not take.
        """
        refuse_state(agent)
        self._agent = agent
        self._terms = terms
        self._own = own
        self._has_values = False
        self._family: Family | None = None
        names = ("act", "log_prob", "value")
        self._takes_env_ids = {name for name in names if takes_env_ids(agent, name)}

    @property
    def agent(self) -> object:
        """The agent itself."""
        return self._agent

    @property
    def family(self) -> Family | None:
        """A Gaussian's, if the agent's `noise_std` asked for noise."""
        return self._family

    def initial_state(self, _: int) -> list[Array]:
        """None: such an agent has no state."""
        return []

    def nest_state(self, _: Leaves) -> Nested:
        """None: such an agent has no state."""
        return None

    @property
    def values_apart(self) -> bool:
        """Whether `value` gives them."""
        return self._has("value")

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
        """What the agent does; its noise is its own affair, unless it has a `noise_std`."""
        rows = len(env_ids)
        params = self._params(obs, env_ids)
        if params is not None and self._family is not None:
            actions, log_probs = draw(self._family, params, seed=seed, env_ids=env_ids, steps=steps)
            values = self.values(obs, env_ids=env_ids) if with_values else nothing(rows)
            return Acted(self._terms.to_env(actions, rows), log_probs, values, params)
        result = self._call("act", obs, env_ids=env_ids)
        self._has_values = isinstance(result, tuple)
        if not isinstance(result, tuple):
            actions = self._actions(result, rows)
            log_probs = self._log_probs(obs, actions, env_ids)
            values = self.values(obs, env_ids=env_ids) if with_values else nothing(rows)
            return Acted(actions, log_probs, values, None)
        if len(result) != 3:
            raise AgentError(
                f"the agent's act gave {len(result)} values; expected actions, or (actions, log_prob, value)"
            )
        actions, log_probs, values = map(np.asarray, result)
        return Acted(
            self._actions(actions, rows),
            column(log_probs, rows, "log_prob"),
            column(values, rows, "value"),
            None,
        )

    def _call(self, name: str, *args: Nested, env_ids: Ints | None) -> Agent:
        """What the agent's method gives for copies, since it may write into its arguments."""
        asked = {}
        if name in self._takes_env_ids:
            assert env_ids is not None
            asked["env_ids"] = env_ids.copy()
        return getattr(self._agent, name)(*copy.deepcopy(args), **asked)

    def _has(self, name: str) -> bool:
        return callable(getattr(self._agent, name, None))

    def _actions(self, actions: object, rows: int) -> Array:
        return self._terms.checked(self._terms.exact(np.asarray(actions), rows))

    def drawing(self) -> None:
        """Nothing: only the agent knows how it acts."""

    def has_drawn(self, acts: int) -> None:
        """See AgentAdapter."""

    @agent_errors
    def parameters(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats | None:
        """Distribution parameters [n, P] of an agent with a `noise_std`; else None."""
        return self._params(obs, env_ids)

    def _params(self, obs: Nested, env_ids: Ints | None) -> Floats | None:
        std = self._terms.noise_std(self._agent)
        self._family = None if std is None else self._terms.family
        if std is None:
            return None
        rows = rows_of(obs)
        means = self._terms.exact(np.asarray(self._call("act", obs, env_ids=env_ids)), rows)
        log_stds = np.broadcast_to(np.log(std), (rows, len(std)))
        return np.concatenate([means.reshape(rows, -1), log_stds], axis=1, dtype=np.float32)

    @agent_errors
    def evaluate(
        self, obs: Nested, actions: Array, *, env_ids: Ints | None = None, state: Leaves = ()
    ) -> Evaluated:
        """What its `log_prob` and `value` say; NaN without them."""
        values = self.values(obs, env_ids=env_ids) if self._has("value") else nothing(len(actions))
        return Evaluated(self._log_probs(obs, actions, env_ids), values)

    def _log_probs(self, obs: Nested, actions: Array, env_ids: Ints | None) -> Floats:
        rows = len(actions)
        params = self._params(obs, env_ids)
        if params is not None and self._family is not None:
            return distributions.log_prob(self._family, params, self._terms.to_family(actions))
        if not self._has("log_prob"):
            return nothing(rows)
        return column(np.asarray(self._call("log_prob", obs, actions, env_ids=env_ids)), rows, "log_prob")

    @agent_errors
    def values(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats:
        """Values [n] by `value`; else those that `act` gives, on a worker's copy; else NaN."""
        rows = rows_of(obs)
        if self._has("value"):
            return column(np.asarray(self._call("value", obs, env_ids=env_ids)), rows, "value")
        if not (self._own and self._has_values):
            return nothing(rows)
        return column(np.asarray(self._call("act", obs, env_ids=env_ids)[2]), rows, "value")

    @agent_errors
    def state(self) -> dict[str, Array]:
        """What `get_parameters` gives."""
        parameters = self._agent.get_parameters()
        if not isinstance(parameters, Mapping):
            raise AgentError(f"get_parameters() gave {type(parameters).__name__}; expected a dict of arrays")
        state = {str(name): np.asarray(value) for name, value in parameters.items()}
        for name, array in state.items():
            if array.dtype.kind not in "biufc":
                raise AgentError(f"get_parameters()[{name!r}] is {array.dtype}; expected an array of numbers")
        return state

    def stamp(self) -> object:
        """None: nobody counts writes."""
        return None

    def transfer_state(self) -> dict[str, Array]:
        """The state, or all of the agent where it has no `set_parameters`."""
        return self.state() if self._settable else pickling.whole_state(self._agent)

    @agent_errors
    def load_state(self, state: Mapping[str, Array]) -> None:
        """Act as the agent whose state this is."""
        if not self._settable:
            self._agent = pickling.whole_agent(state)
            return
        own = {name: (array.dtype, array.shape) for name, array in self.state().items()}
        given = {name: (array.dtype, array.shape) for name, array in state.items()}
        if own != given:
            raise AgentError(f"the weights do not fit the agent: they are {given}; expected {own}")
        self._agent.set_parameters({name: np.array(array) for name, array in state.items()})

    def dumps(self) -> bytes:
        """The agent as it is."""
        return pickling.dumps(self._agent)

    @property
    def _settable(self) -> bool:
        return self._has("set_parameters")
