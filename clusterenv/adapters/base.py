"""What every kind of agent looks like to the rest of ClusterEnv."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterenv.distributions import Family
from clusterenv.errors import AgentError, ClusterEnvError
from clusterenv.native import Drawing as Drawing

Array = NDArray[Any]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")
Leaves = Sequence[Array]
"""The parts of an agent's state, [n, ...] each; none for an agent without one."""
Nested = Any
"""A batch nested as its space nests: an array or tensor, or a dict or tuple of them."""
Agent = Any
"""Any object with the methods of one of the styles."""


@dataclass(frozen=True, slots=True)
class Acted:
    """What an agent did in n environments."""

    actions: Array
    """[n, *shape] in the environments' terms: `Discrete.start` added, the space's dtype, Box not clipped."""
    log_probs: Floats
    """[n], NaN where the agent has none."""
    values: Floats
    """[n], NaN where the agent has none."""
    params: Floats | None
    """[n, P] of the distribution that the actions were drawn from, where its family is known."""
    state: list[Array] = field(default_factory=list)
    """Leaves [n, ...] of what the agent remembers from here on; none for an agent without state."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What an agent thinks of n actions that were taken, and of the observations."""

    log_probs: Floats
    """[n], NaN where the agent has none."""
    values: Floats
    """[n], NaN where the agent has none."""


class AgentAdapter(Protocol):
    """An agent of any style. `obs` is a nested batch of NumPy arrays.

    `env_ids` [n] are the global numbers of the environments that the rows come from; a method of the agent
    that has a parameter of this name is given them. `state` is what a recurrent agent remembers of what came
    before `obs`.

    No call but `load_state` changes a learner's own agent, its gradients, its train or eval mode, or torch's
    global generators.
    """

    @property
    def agent(self) -> object:
        """The agent itself."""

    @property
    def family(self) -> Family | None:
        """The family of its distributions, once `act` or `parameters` has found one with a closed-form KL."""

    @property
    def values_apart(self) -> bool:
        """Whether values cost a pass of their own, so that those of many observations at once are cheaper."""

    def initial_state(self, rows: int) -> list[Array]:
        """Leaves [rows, ...] of a recurrent agent's state at the begin of an episode; none for others."""

    def nest_state(self, leaves: Leaves) -> Nested:
        """Leaves [n, ...] nested as the agent nests its state, the environments first; None for others."""

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
        """Actions for n environments.

        Where the family is known, the noise of row i depends on `seed`, `env_ids[i]` and `steps[i]` alone.
        Without `with_values`, values are NaN where they would cost a pass of their own.
        """

    def drawing(self) -> tuple[Drawing, int] | None:
        """What acts as `act` without values would, and for how many acts at most; None: `act` is needed."""

    def has_drawn(self, acts: int) -> None:
        """So many acts were made with `drawing`."""

    def parameters(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats | None:
        """Distribution parameters [n, P], if the family is known."""

    def evaluate(
        self, obs: Nested, actions: Array, *, env_ids: Ints | None = None, state: Leaves = ()
    ) -> Evaluated:
        """Log-probabilities of `actions` (in the environments' terms) and values."""

    def values(self, obs: Nested, *, env_ids: Ints | None = None, state: Leaves = ()) -> Floats:
        """Values [n], NaN if the agent has none."""

    def state(self) -> dict[str, Array]:
        """Parameters and buffers, tied ones once: all that learning changes. May share the agent's memory."""

    def stamp(self) -> object:
        """A value that changes when torch writes to the state; None if that cannot be told.

        Writes through `tensor.data` or NumPy do not change it.
        """

    def transfer_state(self) -> dict[str, Array]:
        """What `load_state` of a copy needs to act as this agent does now."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """The agent acts as the one whose `transfer_state` this is.

        Raises:
            AgentError: if names, shapes or dtypes are not those of this agent; nothing was changed.
        """

    def dumps(self) -> bytes:
        """Bytes for `loads`: the agent on the CPU, its state (where it can be loaded later) left out.

        Raises:
            AgentError: if a part cannot be pickled; names it.
        """


def agent_errors(method: Callable[P, R]) -> Callable[P, R]:
    """`method` of an adapter, with whatever the agent's code raises turned into an AgentError."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except ClusterEnvError:
            raise
        except (Exception, SystemExit) as error:
            adapter: Any = args[0]
            name = type(adapter.agent).__name__
            raise AgentError(f"the agent ({name}) failed: {type(error).__name__}: {error}") from error

    return guarded


def refuse_state(agent: Agent) -> None:
    """Return if the agent has no state.

    Raises:
        AgentError: if it has.
    """
    if callable(getattr(agent, "initial_state", None)):
        raise AgentError(
            "the agent has initial_state, but only act, which takes no state; recurrent agents have "
            "distribution(obs, state), or get_action_and_value(obs, state, done, action=None)"
        )


def takes_env_ids(agent: Agent, name: str) -> bool:
    """Whether the agent's method `name` has a parameter `env_ids`."""
    try:
        return "env_ids" in inspect.signature(getattr(agent, name)).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def rows_of(obs: Nested) -> int:
    """Observations in a nested batch."""
    while isinstance(obs, Mapping | tuple):
        obs = next(iter(obs.values())) if isinstance(obs, Mapping) else obs[0]
    return len(obs)


def column(array: Array, rows: int, what: str) -> Floats:
    """Numbers [rows] or [rows, 1] as float32 [rows].

    Raises:
        AgentError: if they have another shape.
    """
    if array.shape not in ((rows,), (rows, 1)):
        raise AgentError(f"the agent's {what} has shape {array.shape}; expected {(rows,)}")
    return np.ascontiguousarray(array.reshape(rows), dtype=np.float32)


def nothing(rows: int) -> Floats:
    """NaN [rows], for what an agent does not have."""
    return np.full(rows, np.nan, np.float32)
