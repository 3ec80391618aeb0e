"""What a vector of environments tells of itself, before and after it is launched."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.errors import UseAfterClose
from clusterenv.facts import EnvFacts

Space = gym.Space[Any]


class Described(VectorEnv[Any, Any, Any]):
    """Spaces, metadata and spec; on first use one environment is built apart and closed again."""

    _facts: EnvFacts
    _closed: bool

    def _known(self) -> EnvFacts:
        """The facts, which a closed vector does not begin to find out."""
        if self._closed and not self._facts.are_known:
            raise UseAfterClose("these environments are closed; make a new ClusterEnv")
        return self._facts

    @property
    def single_observation_space(self) -> Space:  # type: ignore[override]
        """The observation space of one environment."""
        return self._known().single_observation_space

    @property
    def single_action_space(self) -> Space:  # type: ignore[override]
        """The action space of one environment."""
        return self._known().single_action_space

    @property
    def observation_space(self) -> Space:  # type: ignore[override]
        """The space of a batch of observations."""
        return self._known().observation_space

    @property
    def action_space(self) -> Space:  # type: ignore[override]
        """The space of a batch of actions; seed it yourself to sample from it reproducibly."""
        return self._known().action_space

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """The environment's metadata, with the autoreset mode of `step`."""
        return dict(self._known().metadata)

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """When `step` resets an environment whose episode has ended."""
        return self._facts.autoreset_mode

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """From which `gymnasium.make_vec` builds the same environments locally; None where there is none."""
        return self._known().spec

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """The render mode of one environment."""
        return self._known().one.render_mode

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether `close` was called or a worker was lost."""
        return self._closed
