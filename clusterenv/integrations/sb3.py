"""ClusterEnv as the `VecEnv` of Stable-Baselines3, and of the libraries that build on it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv.config import EnvConfig
from clusterenv.env import ClusterEnv
from clusterenv.errors import ConfigError, EnvError
from clusterenv.integrations.rows import Info, info_rows, single_obs
from clusterenv.session import LauncherConfig
from clusterenv.sources import EnvFn

try:
    from stable_baselines3.common.preprocessing import check_for_nested_spaces
    from stable_baselines3.common.vec_env.base_vec_env import (
        VecEnv,
        VecEnvIndices,
        VecEnvObs,
        VecEnvStepReturn,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'Stable-Baselines3 is not installed: pip install "clusterenv-rl[sb3]"', name=error.name
    ) from error


class ClusterVecEnv(VecEnv):
    """Environments on workers with the interface of Stable-Baselines3: obs, rewards, dones, list of infos.

    An environment is reset in the step that ends its episode. Its info then holds `terminal_observation` and
    what the step told; what the reset told is in `reset_infos`. Rewards are float32, as of `DummyVecEnv`.
    """

    def __init__(
        self,
        env: ClusterEnv | EnvConfig | Mapping[str, Any] | Sequence[EnvFn] | str,
        launcher: LauncherConfig | None = None,
        **options: Any,
    ) -> None:
        """Start the workers.

        Args:
            env: a ClusterEnv with `autoreset_mode="SameStep"`, or what ClusterEnv would be made of, such as
                the list of callables that `make_vec_env` gives to its `vec_env_cls`.
            launcher: where workers run.
            options: any option of `EnvConfig`.

        Raises:
            ConfigError: if the environments do not reset as Stable-Baselines3 expects.
        """
        if not isinstance(env, ClusterEnv):
            env = ClusterEnv(env, launcher, **{"autoreset_mode": AutoresetMode.SAME_STEP, **options})
        elif launcher is not None or options:
            raise ConfigError(
                "env", env, "what a ClusterEnv is made of, when a launcher or options are given"
            )
        if env.config.api != "gymnasium":
            raise ConfigError("api", env.config.api, '"gymnasium" below Stable-Baselines3')
        mode = env.metadata["autoreset_mode"]
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigError("autoreset_mode", mode, '"SameStep" below Stable-Baselines3')
        check_for_nested_spaces(env.single_observation_space)
        self.env = env
        """The environments themselves, whose `step` and `rollout` also take `model.policy`."""
        self._waiting = False
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = env.metadata

    def reset(self) -> VecEnvObs:
        """Observations [N, ...] after a reset of all; seeds and options set before are used, once."""
        if self._waiting:
            self.step_wait()
        obs: VecEnvObs = ()
        for options, mask in self._options_of_rows():
            if mask is not None:
                options = {**options, "reset_mask": mask}
            obs, infos = self.env.reset(seed=self._seed_of_all(), options=options or None)
            for row, info in enumerate(info_rows(infos, self.num_envs)):
                if mask is None or mask[row]:
                    self.reset_infos[row] = info
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: NDArray[Any]) -> None:
        """The environments begin a step; `step_wait` gives its results."""
        self.env.step_async(actions)
        self._waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        """Observations [N, ...], rewards [N] float32, dones [N], and N infos."""
        self._waiting = False
        obs, rewards, terminated, truncated, batched = self.env.step_wait()
        dones = terminated | truncated
        infos = info_rows(batched, self.num_envs)
        for row in np.flatnonzero(dones).tolist():
            if "final_obs" in infos[row]:
                self.reset_infos[row] = infos[row]
                final_obs = infos[row].pop("final_obs")
                infos[row] = infos[row].pop("final_info")
            else:  # its worker was lost
                final_obs = single_obs(obs, row)
            infos[row]["terminal_observation"] = final_obs
        for row, info in enumerate(infos):
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
        return obs, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """End the workers; twice is fine."""
        self.env.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether every environment has the attribute, or one of its wrappers."""
        return all(self._call_on(None, "has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each environment, or of those of `indices`.

        Raises:
            AttributeError: if one has none of that name.
        """
        try:
            return self._call_on(indices, "get_wrapper_attr", attr_name)
        except EnvError as error:
            if all(self._call_on(indices, "has_wrapper_attr", attr_name)):
                raise
            raise AttributeError(f"not every environment has an attribute {attr_name!r}") from error

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:  # noqa: ANN401
        """The attribute has this value in each environment, or in those of `indices`."""
        rows = list(self._get_indices(indices))
        self.env.set_attr(attr_name, [value] * len(rows), rows)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What the method of each environment returns, or of those of `indices`."""
        return self._call_on(indices, method_name, *method_args, **method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each environment, or each of `indices`, has a wrapper of this class or one derived from it.

        Wrappers are told apart by the names of their classes.
        """
        names = {kind.__name__ for kind in _derived(wrapper_class)}
        chains = self._call_on(indices, "__str__")  # "<Outermost<Inner<CartPoleEnv<CartPole-v1>>>>"
        return [not names.isdisjoint(re.findall(r"<(\w+)", chain)) for chain in chains]

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """A picture of each environment; none without the render mode "rgb_array"."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f'The render mode is {self.render_mode}; only "rgb_array" gives images', stacklevel=2
            )
            return [None] * self.num_envs
        return list(self.env.render())

    def _call_on(self, indices: VecEnvIndices, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return list(self.env.call_on(list(self._get_indices(indices)), name, *args, **kwargs))

    def _options_of_rows(self) -> list[tuple[Info, NDArray[np.bool_] | None]]:
        """The options of the next reset, each with the rows that they are for; no mask: all of them."""
        groups: dict[int, tuple[Info, NDArray[np.bool_]]] = {}
        for row, options in enumerate(self._options):
            key = id(options) if options else 0
            groups.setdefault(key, (options, np.zeros(self.num_envs, np.bool_)))[1][row] = True
        if len(groups) == 1:
            return [(self._options[0], None)]
        return list(groups.values())

    def _seed_of_all(self) -> int | list[int | None]:
        """Seeds of the next reset; if consecutive one number, which seeds the policy's noise too."""
        seeds: list[int | None] = self._seeds
        first = seeds[0]
        if first is not None and seeds == list(range(first, first + self.num_envs)):
            return first
        return seeds


def _derived(kind: type[object]) -> Iterator[type[object]]:
    """The class and all that are derived from it."""
    yield kind
    for child in kind.__subclasses__():
        yield from _derived(child)
