"""What is known of the environments before anything is launched: spaces, metadata, spec."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from clusterenv.config import EnvConfig
from clusterenv.errors import ConfigError, SpaceError, UseAfterClose
from clusterenv.layout import SpaceLayout
from clusterenv.pickling import can_pickle
from clusterenv.probe import ProbeResult, probe, probe_inline
from clusterenv.sources import EnvFn, EnvSource, autoreset_modes, backend_of, pickled
from clusterenv.vector_spec import vector_spec

Space = gym.Space[Any]


class EnvFacts:
    """Facts found on first use, from one environment that is built apart and closed again."""

    def __init__(
        self, env_fns: Sequence[EnvFn], config: EnvConfig, sys_path: Sequence[str], *, inline: bool
    ) -> None:
        """Find out nothing yet; `inline` environments are built in this process, others in a child."""
        self._env_fns = env_fns
        self._config = config
        self._sys_path = sys_path
        self._inline = inline

    @property
    def are_known(self) -> bool:
        """Whether the environment has been built that was needed to find them out."""
        return "one" in vars(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles to the facts alone; what nobody has asked for and is dear to find out stays unknown."""
        names = ["one", "observation_space", "action_space", "spec"]
        if self._config.observation_mode == "different" and "observation_space" not in vars(self):
            names.remove("observation_space")
        known = {name: getattr(self, name) for name in names} if self._env_fns or self.are_known else {}
        if not can_pickle(known.get("spec"), pickle.dumps):
            known["spec"] = None
        return _found, (known, self.autoreset_mode, self._config.observation_mode)

    @cached_property
    def source(self) -> EnvSource:
        """The callables as workers get them."""
        return pickled(self._env_fns)

    @cached_property
    def one(self) -> ProbeResult:
        """What the first environment looks like."""
        return self._probed(self._env_fns[0])

    def _probed(self, env_fn: EnvFn) -> ProbeResult:
        if self._inline:
            return probe_inline(env_fn)
        source = self.source
        known = env_fn is self._env_fns[0]
        blob = source.blobs[source.blob_of[0]] if known else cloudpickle.dumps(env_fn)
        return probe(blob, sys_path=self._sys_path, timeout_s=self._config.setup_timeout_s)

    @property
    def _given(self) -> tuple[Space, Space] | None:
        """The spaces of `observation_mode`, if it is a pair: batched, single."""
        mode = self._config.observation_mode
        return None if isinstance(mode, str) else mode

    @property
    def single_observation_space(self) -> Space:
        """Of the first environment, or what `observation_mode` gives."""
        return self.one.single_observation_space if self._given is None else self._given[1]

    @property
    def single_action_space(self) -> Space:
        """Of every environment."""
        return self.one.single_action_space

    @cached_property
    def observation_space(self) -> Space:
        """Of a batch; with `observation_mode="different"` every distinct callable builds an environment."""
        if self._given is not None:
            return self._given[0]
        if self._config.observation_mode == "same":
            return batch_space(self.single_observation_space, len(self._env_fns))
        if not self._env_fns:
            raise UseAfterClose("the batched observation space was not known when these were pickled")
        distinct = list({id(env_fn): env_fn for env_fn in self._env_fns}.values())
        seen = self._probed(partial(_Several, distinct)).single_observation_space
        assert isinstance(seen, gym.spaces.Tuple)
        by_fn = dict(zip(map(id, distinct), seen.spaces, strict=True))
        try:
            return batch_differing_spaces([by_fn[id(env_fn)] for env_fn in self._env_fns])
        except (ValueError, TypeError) as error:
            raise SpaceError(
                f"the observation spaces differ in more than their bounds, and cannot be batched: {error}"
            ) from error

    @cached_property
    def action_space(self) -> Space:
        """Of a batch."""
        return batch_space(self.single_action_space, len(self._env_fns))

    @cached_property
    def layouts(self) -> tuple[SpaceLayout, SpaceLayout]:
        """Of one environment's observations and actions."""
        bounds = self._config.observation_mode == "same"
        return (
            SpaceLayout.of(self.single_observation_space, bounds=bounds),
            SpaceLayout.of(self.single_action_space),
        )

    @cached_property
    def autoreset_mode(self) -> AutoresetMode:
        """Of `step`.

        Raises:
            ConfigError: if a backend cannot do what was asked for.
        """
        asked = AutoresetMode.SAME_STEP if self._config.api == "gym" else self._config.autoreset_mode
        backend = backend_of(self._env_fns)
        if backend is None:
            return asked or AutoresetMode.NEXT_STEP
        modes = autoreset_modes(self.one.metadata)
        if asked is not None and asked not in modes:
            can = " or ".join(f'"{mode.value}"' for mode in modes)
            raise ConfigError("autoreset_mode", asked.value, f"{can}, which backend {backend!r} can do")
        return asked or modes[0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the first environment, with the autoreset mode as Gymnasium wants it."""
        return {**self.one.metadata, "autoreset_mode": self.autoreset_mode}

    @cached_property
    def spec(self) -> EnvSpec | None:
        """From which `gymnasium.make_vec` builds the same environments; None where there is none."""
        options: dict[str, Any] = {"autoreset_mode": self.autoreset_mode.value}
        if self._config.observation_mode != "same":
            options["observation_mode"] = self._config.observation_mode
        return vector_spec(self._env_fns, self.one.spec, options)


class _Several(gym.Env[Any, Any]):
    """Stands for several environments where one is described: its observation space holds all of theirs."""

    action_space = gym.spaces.Discrete(1)

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        spaces = []
        for env_fn in env_fns:
            env = env_fn()
            spaces.append(env.observation_space)
            env.close()
        self.observation_space = gym.spaces.Tuple(spaces)


def _found(
    values: Mapping[str, Any], mode: AutoresetMode, observation_mode: str | tuple[Space, Space]
) -> EnvFacts:
    """Facts that need no environment any more."""
    config = EnvConfig(autoreset_mode=mode, observation_mode=observation_mode)
    facts = EnvFacts((), config, (), inline=True)
    vars(facts).update(values)
    return facts
