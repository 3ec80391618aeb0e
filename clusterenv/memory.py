"""What a recurrent agent remembers of each environment while it acts there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.adapters import AgentAdapter

Array = NDArray[Any]
Flags = NDArray[np.bool_]


class Memory:
    """The agent's state in n environments; nothing for an agent without one.

    It is the initial one at the first observation of each episode, and whenever another agent comes. Steps
    with actions of the caller leave it as it is: the agent has not seen them.
    """

    def __init__(self, num_envs: int) -> None:
        """No agent yet."""
        self.begins: Flags = np.ones(num_envs, np.bool_)
        """[n] rows whose present observation is the first of an episode."""
        self.initial: list[Array] = []
        """Leaves [n, ...] of the state at the begin of an episode."""
        self._leaves: list[Array] = []

    def agent_changed(self) -> None:
        """Another agent acts from now on."""
        self.begins[:] = True

    def weights_changed(self, adapter: AgentAdapter) -> None:
        """The agent may begin episodes in another state."""
        self.initial = adapter.initial_state(len(self.begins))
        if [leaf.shape for leaf in self._leaves] != [leaf.shape for leaf in self.initial]:
            self._leaves = [leaf.copy() for leaf in self.initial]

    def before_act(self) -> list[Array]:
        """Leaves [n, ...] that the next act starts from, with rows that begin an episode as they begin it."""
        if self._leaves and self.begins.any():
            for leaf, first in zip(self._leaves, self.initial, strict=True):
                leaf[self.begins] = first[self.begins]
        self.begins[:] = False
        return self._leaves

    def moves_on(self, leaves: list[Array]) -> None:
        """An act has led to these; they are the memory's own from now on."""
        self._leaves = leaves
