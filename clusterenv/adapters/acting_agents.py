"""Torch agents with `act(obs)`, which say what to do and not how likely that was."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal

from clusterenv.adapters.base import Acted, Ints, Nested, agent_errors, nothing
from clusterenv.adapters.reading import AnyDistribution, to_array
from clusterenv.adapters.torch_agents import DistributionAdapter
from clusterenv.errors import AgentError


class ActAdapter(DistributionAdapter):
    """An agent whose `act(obs)` gives actions in the environments' terms, and perhaps `value(obs)`.

    With a `noise_std`, a number or one for each number of an action, its policy is a Gaussian around them.
    """

    @agent_errors
    def act(self, obs: Nested, *, seed: int, env_ids: Ints, steps: Ints, with_values: bool = True) -> Acted:
        """What the agent does, with our noise if it asks for noise."""
        if self._terms.noise_std(self._agent) is not None:
            return super().act(obs, seed=seed, env_ids=env_ids, steps=steps, with_values=with_values)
        rows = len(env_ids)
        with self._session():
            inputs = self._inputs(obs)
            actions = self._terms.exact(to_array(self._actions(inputs, env_ids)), rows)
            values = self._values(inputs, rows, env_ids) if with_values else nothing(rows)
        return Acted(self._terms.checked(actions), nothing(rows), values, None)

    def _distribution(self, inputs: Nested, env_ids: Ints | None) -> AnyDistribution:
        std = self._terms.noise_std(self._agent)
        if std is None:
            return None
        means = self._actions(inputs, env_ids).flatten(1)
        return Independent(Normal(means, torch.from_numpy(std.copy()).to(means).expand_as(means)), 1)

    def _actions(self, inputs: Nested, env_ids: Ints | None) -> torch.Tensor:
        actions = self._agent.act(inputs, **self._env_ids("act", env_ids))
        if not isinstance(actions, torch.Tensor):
            raise AgentError(f"the agent's act gave {type(actions).__name__}; expected a tensor of actions")
        return actions
