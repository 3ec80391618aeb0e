"""The state of recurrent agents: nested as the agent nests it, or as leaves with the environments first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clusterenv.adapters.base import Agent, Array, Leaves, Nested
from clusterenv.adapters.reading import to_array
from clusterenv.adapters.tensors import modules_of, to_tensors
from clusterenv.errors import AgentError


class AgentState:
    """Translates the state of one agent, whose leaves have the environments at `axis`."""

    def __init__(self, agent: Agent, axis: int) -> None:
        """`axis` is 0, or 1 as in the states of torch.nn.LSTM."""
        self._agent = agent
        self._axis = axis
        self._template: Nested = None

    def initial(self, rows: int) -> list[Array]:
        """Leaves [rows, ...] of the state at the begin of an episode.

        Raises:
            AgentError: if the agent's is not made of tensors for so many environments.
        """
        make = getattr(self._agent, "initial_state", None)
        self._template = zeros_of(self._agent, rows) if make is None else make(rows)
        return self.leaves(self._template, rows)

    def leaves(self, state: Nested, rows: int) -> list[Array]:
        """Leaves [rows, ...] in memory of their own."""
        leaves = []
        for leaf in _walk(state):
            array = to_array(leaf)
            if array.ndim <= self._axis or array.shape[self._axis] != rows:
                raise AgentError(
                    f"the agent's state has a part of shape {array.shape}; expected {rows} environments "
                    f"at axis {self._axis}"
                )
            leaves.append(np.array(np.moveaxis(array, self._axis, 0), order="C"))
        return leaves

    def nest(self, leaves: Leaves) -> Nested:
        """Leaves [n, ...] nested as the agent's state nests, the environments still first."""
        if self._template is None:
            self.initial(1)
        parts = iter(leaves)
        return _mapped(lambda _: next(parts), self._template)

    def tensors(self, leaves: Leaves, device: torch.device, dtype: torch.dtype) -> Nested:
        """Leaves [n, ...] as the agent takes its state."""
        own_axis = [np.moveaxis(leaf, 0, self._axis) for leaf in leaves]
        return _mapped(lambda array: to_tensors(array, device, dtype), self.nest(own_axis))


def zeros_of(agent: Agent, rows: int) -> Nested:
    """Zeros for the only recurrent module of the agent, [layers, rows, hidden].

    Raises:
        AgentError: if it has none, or several.
    """
    found = [
        module for part in modules_of(agent) for module in part.modules() if isinstance(module, nn.RNNBase)
    ]
    if len(found) != 1:
        raise AgentError(
            f"the agent takes a state and has {len(found)} recurrent modules; expected one LSTM or GRU, or a "
            "method initial_state(n) that gives the state at the begin of an episode"
        )
    module = found[0]
    weight = next(module.parameters())
    layers = module.num_layers * (2 if module.bidirectional else 1)
    hidden = weight.new_zeros(layers, rows, module.proj_size or module.hidden_size)
    if not isinstance(module, nn.LSTM):
        return hidden
    return hidden, weight.new_zeros(layers, rows, module.hidden_size)


def takes_state_and_done(agent: object) -> bool:
    """Whether the agent has `get_action_and_value(x, state, done, action=None)`."""
    method = getattr(agent, "get_action_and_value", None)
    if not callable(method):
        return False
    parameters = [p for name, p in inspect.signature(method).parameters.items() if name != "env_ids"]
    if len(parameters) < 4 or parameters[3].name not in ("action", "actions"):
        return False
    needed = [parameter.default is inspect.Parameter.empty for parameter in parameters]
    return all(needed[:3]) and not any(needed[3:])


def _walk(state: Nested) -> Iterator[Tensor]:
    if isinstance(state, dict):
        state = tuple(state.values())
    if isinstance(state, tuple | list):
        for part in state:
            yield from _walk(part)
    else:
        yield state


def _mapped(function: Callable[[Any], Any], state: Nested) -> Nested:
    if isinstance(state, dict):
        return {key: _mapped(function, part) for key, part in state.items()}
    if isinstance(state, tuple | list):
        return tuple(_mapped(function, part) for part in state)
    return function(state)


def same_shapes(state: Sequence[Array], expected: Sequence[Array]) -> None:
    """Return if the leaves are those that a state has.

    Raises:
        AgentError: if not.
    """
    seen = [(leaf.shape, leaf.dtype) for leaf in state]
    wanted = [(leaf.shape, leaf.dtype) for leaf in expected]
    if seen != wanted:
        raise AgentError(f"the agent's next state has parts {seen}; expected {wanted}")
