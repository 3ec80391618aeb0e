"""Torch agents with `act(obs)`, which say what to do and not how likely that was."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal

from clusterenv.adapters.actions import ActionTerms
from clusterenv.adapters.base import (
    Acted,
    Agent,
    Array,
    Ints,
    Leaves,
    Nested,
    agent_errors,
    nothing,
    refuse_state,
)
from clusterenv.adapters.reading import AnyDistribution, to_array
from clusterenv.adapters.torch_agents import DistributionAdapter
from clusterenv.errors import AgentError


class ActAdapter(DistributionAdapter):
    """An agent whose `act(obs)` gives actions in the environments' terms, and perhaps `value(obs)`.

    With a `noise_std`, a number or one for each number of an action, its policy is a Gaussian around them.
    """

    def __init__(self, agent: Agent, terms: ActionTerms, *, own: bool) -> None:
        """Adapt `agent`, whose methods were found to fit.

        Raises:
            AgentError: if it has a state, which `act` does not take.
        """
        super().__init__(agent, terms, own=own)
        refuse_state(agent)

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
        """What the agent does, with our noise if it asks for noise."""
        if self._terms.noise_std(self._agent) is not None:
            return super().act(
                obs, seed=seed, env_ids=env_ids, steps=steps, with_values=with_values, state=state
            )
        rows = len(env_ids)
        with self._session():
            inputs = self._inputs(obs)
            actions = self._terms.exact(to_array(self._actions(inputs, env_ids)), rows)
            values = self._values(inputs, rows, env_ids, state) if with_values else nothing(rows)
        return Acted(self._terms.checked(actions), nothing(rows), values, None)

    def _distribution(
        self, inputs: Nested, env_ids: Ints | None, _: Leaves
    ) -> tuple[AnyDistribution, list[Array]]:
        std = self._terms.noise_std(self._agent)
        if std is None:
            return None, []
        means = self._actions(inputs, env_ids).flatten(1)
        stds = torch.from_numpy(std.copy()).to(means).expand_as(means)
        return Independent(Normal(means, stds), 1), []

    def _actions(self, inputs: Nested, env_ids: Ints | None) -> torch.Tensor:
        actions = self._agent.act(inputs, **self._env_ids("act", env_ids))
        if not isinstance(actions, torch.Tensor):
            raise AgentError(f"the agent's act gave {type(actions).__name__}; expected a tensor of actions")
        return actions
