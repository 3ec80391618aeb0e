"""ClusterEnv as the vector environment of Tianshou, for its collectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv.config import EnvConfig
from clusterenv.env import ClusterEnv
from clusterenv.errors import ConfigError, SpaceError
from clusterenv.integrations.rows import Info, info_rows, single_obs
from clusterenv.session import LauncherConfig
from clusterenv.sources import EnvFn

try:
    from tianshou.env import BaseVectorEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'Tianshou is not installed: pip install "clusterenv-rl[tianshou]"', name=error.name
    ) from error

Array = NDArray[Any]
Ids = int | list[int] | Array | None
StepReturn = tuple[Array, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Array]


class ClusterVectorEnv(BaseVectorEnv):
    """Environments on workers with the interface of Tianshou: those of some ids are stepped or reset.

    Nothing is reset unasked, which is what Tianshou's collectors expect.
    """

    def __init__(
        self,
        env: EnvConfig | Mapping[str, Any] | Sequence[EnvFn] | str,
        launcher: LauncherConfig | None = None,
        **options: Any,
    ) -> None:
        """Make the environments; they start with the first `reset`.

        Args:
            env: what ClusterEnv is made of, such as the list of callables that Tianshou's own classes take.
            launcher: where workers run.
            options: any option of `EnvConfig` but `api`, `autoreset_mode` and `batch_size`.

        Raises:
            ConfigError: if an option cannot work; SpaceError for tuples as observations.
        """
        for name, value in (
            ("api", "gymnasium"),
            ("autoreset_mode", AutoresetMode.DISABLED),
            ("batch_size", 1),
        ):
            if options.setdefault(name, value) != value:
                raise ConfigError(name, options[name], "nothing: Tianshou's collectors need it their way")
        self.env = ClusterEnv(env, launcher, **options)
        """The environments themselves."""
        if isinstance(self.env.single_observation_space, spaces.Tuple):
            raise SpaceError(
                "observation space is a Tuple; Tianshou's vector environments have none of these"
            )
        self.env_num = self.wait_num = self.env.num_envs
        self.timeout = None
        self.is_async = False
        self.is_closed = False
        self.workers: list[Any] = []
        self.waiting_conn: list[Any] = []
        self.waiting_id: list[int] = []
        self.ready_id = list(range(self.env_num))
        self._action_spaces = [deepcopy(self.env.single_action_space) for _ in self.ready_id]

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[Array, Array]:
        """Observations and infos [k] of the environments `env_id` (all without) after a reset.

        A `seed` is that of each of them, as in Tianshou's own classes.
        """
        self._assert_is_not_closed()
        ids = self._ids(env_id)
        options = kwargs.pop("options", None)
        if len(ids) < self.env_num:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            options = {**(options or {}), "reset_mask": mask}
        seed = kwargs.pop("seed", None)
        obs, infos = self.env.reset(seed=[seed] * self.env_num, options=options, **kwargs)
        rows = info_rows(infos, self.env_num)
        return _observations(obs, ids), _objects([rows[i] for i in ids])

    def step(self, action: Any, id: Ids = None) -> StepReturn:  # noqa: ANN401
        """What one step of the environments `id` (all without) gives, in their order."""
        self._assert_is_not_closed()
        ids = self._ids(id)
        actions = np.asarray(action)
        if len(ids) == self.env_num:
            order = np.argsort(ids)
            return _stepped(self.env.step(actions[order]), ids, ids)
        self.env.send(actions, ids)
        parts = [self.env.recv() for _ in ids]  # one environment each
        parts.sort(key=lambda part: ids.index(part[4]["env_id"][0]))
        steps = [_stepped(part, [0], [i]) for part, i in zip(parts, ids, strict=True)]
        obs, rewards, terminated, truncated, infos = (
            np.concatenate(column) for column in zip(*steps, strict=True)
        )
        return obs, rewards, terminated, truncated, infos

    def seed(self, seed: int | list[int] | None = None) -> list[list[int] | None]:
        """The environments are reset with these seeds, s + i for a number s."""
        self._assert_is_not_closed()
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + i for i in self.ready_id]
        else:
            seeds = list(seed)
        for space, own in zip(self._action_spaces, seeds, strict=True):
            space.seed(own)
        self.env.reset(seed=seeds)
        return [None if own is None else [own] for own in seeds]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """An attribute of the environments `id`, all without."""
        self._assert_is_not_closed()
        ids = self._ids(id)
        if key == "action_space":
            return [self._action_spaces[i] for i in ids]
        if key in ("observation_space", "metadata", "spec"):
            name = "single_observation_space" if key == "observation_space" else key
            return [getattr(self.env, name)] * len(ids)
        return list(self.env.call_on(ids, "get_wrapper_attr", key))

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: ANN401
        """An attribute is set in the environments `id`, all without."""
        self._assert_is_not_closed()
        ids = self._ids(id)
        self.env.set_attr(key, [value] * len(ids), ids)

    def render(self, **kwargs: Any) -> list[Any]:
        """What each environment renders."""
        self._assert_is_not_closed()
        return list(self.env.call("render", **kwargs))

    def close(self) -> None:
        """End the workers."""
        self._assert_is_not_closed()
        self.is_closed = True
        self.env.close()

    def _ids(self, ids: Ids) -> list[int]:
        return [int(i) for i in self._wrap_id(ids)]


def _stepped(step: tuple[Any, ...], rows: list[int], ids: list[int]) -> StepReturn:
    """Some rows of a step in Tianshou's form; `ids` are the environments of these rows."""
    obs, rewards, terminated, truncated, batched = step
    infos = info_rows(batched, len(rewards))
    picked = [infos[row] | {"env_id": i} for row, i in zip(rows, ids, strict=True)]
    return _observations(obs, rows), rewards[rows], terminated[rows], truncated[rows], _objects(picked)


def _observations(obs: Any, rows: list[int]) -> Array:  # noqa: ANN401
    """Rows of a batch; of a Dict as an array of dicts."""
    if isinstance(obs, dict):
        return _objects([single_obs(obs, row) for row in rows])
    picked: Array = obs[rows]
    return picked


def _objects(values: Sequence[Info]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
