"""Many games as one Gymnasium vector environment: the backend `procgen`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from clusterenv_procgen.env import observation_space
from clusterenv_procgen.games import Games, any_seed
from clusterenv_procgen.options import GAMES, NUM_ACTIONS, Options, game_of

Flags = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
_INFOS = {"level_seed": np.int64, "prev_level_seed": np.int64, "prev_level_complete": np.bool_}


class ProcgenVectorEnv(VectorEnv[Pixels, NDArray[np.integer[Any]], NDArray[Any]]):
    """n games of one kind; observations are pixels [n, 64, 64, 3], actions [n] of 0 to 14.

    It does what Gymnasium's `SyncVectorEnv` does with n `ProcgenEnv`, row by row, infos included, whatever
    the number of rows and threads. The last observation of an episode is the true one in each mode.
    """

    def __init__(
        self,
        env_name: str,
        num_envs: int,
        *,
        num_threads: int = 1,
        render_mode: str | None = None,
        rand_seed: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **options: Any,
    ) -> None:
        """Games that are at the start of their first episodes.

        Args:
            env_name: `coinrun`, or `procgen-coinrun-v0`.
            num_envs: n.
            num_threads: how many games are stepped at a time.
            render_mode: "rgb_array" for frames [512, 512, 3].
            rand_seed: row i begins with the seed `rand_seed + i`; None: with any.
            autoreset_mode: when a row whose episode ended is reset.
            copy: without it, observations are overwritten by the next call.
            options: the fields of `Options`.

        Raises:
            ValueError: if there is no such game, or it has no such options.
            LibraryMissing: if the library cannot be used here.
        """
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected None or 'rgb_array'")
        self.game = game_of(env_name)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": 15,
            "autoreset_mode": self.autoreset_mode,
            "reset_mask": True,
        }
        self.single_observation_space = observation_space()
        self.single_action_space = Discrete(NUM_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        first = any_seed() if rand_seed is None else rand_seed
        self._games = Games(
            self.game,
            range(first, first + num_envs),
            Options.of(options),
            num_threads=num_threads,
            render=render_mode is not None,
        )
        self.time_limit = self._games.time_limit
        self._copy = copy
        self._ended: Flags = np.zeros(num_envs, np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Pixels, dict[str, Any]]:
        """The rows of `options["reset_mask"]` [n], or all, are at the start of an episode.

        Args:
            seed: of each row; of row i it is `seed + i` if one number is given. None: the row goes on with
                the sequence of levels that it has.
            options: may have a `reset_mask`.

        Raises:
            ValueError: if seeds or mask do not have n rows.
        """
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ValueError(
                f"reset_mask is {mask.dtype} {list(mask.shape)}; expected bool [{self.num_envs}]"
            )
        seeds = self._seeds(seed)
        for row in np.flatnonzero(mask).tolist():
            self._games.begin(row, seeds[row])
        self._ended[mask] = False
        return self._seen(), self._infos(mask)

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[Pixels, NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """One step of all rows, in the mode.

        Raises:
            ValueError: if an action is not one of 0 to 14, or there are not n; no game has moved.
            RuntimeError: if a row has ended and the mode is DISABLED; no game has moved.
        """
        return self._step(actions, np.arange(self.num_envs))

    def step_rows(
        self, actions: NDArray[np.integer[Any]], rows: NDArray[np.integer[Any]]
    ) -> tuple[Pixels, NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """As `step`, of the k ascending `rows` alone, with k actions; all that is returned has k rows."""
        obs, rewards, terminations, truncations, infos = self._step(actions, rows)
        infos = _of_rows(infos, rows)
        return obs[rows], rewards[rows], terminations[rows], truncations[rows], infos

    def render(self) -> tuple[Pixels, ...] | None:
        """The frames [512, 512, 3] of what is seen now, in the order of the rows; None without a render mode.

        A row that terminated shows the start of its next episode, also before it is reset.
        """
        if self._games.arrays.frames is None:
            return None
        self._games.paint()
        return tuple(self._games.arrays.frames.copy())

    def close_extras(self, **kwargs: Any) -> None:
        """All games and threads are gone."""
        self._games.close()

    def _step(
        self, actions: NDArray[np.integer[Any]], rows: NDArray[np.integer[Any]]
    ) -> tuple[Pixels, NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """The rows have moved; all that is returned has n rows."""
        actions = np.asarray(actions)
        self._refuse(actions, rows)
        games = self._games
        games.arrays.actions[rows] = actions
        moved = rows
        if self._ended.any():  # in NEXT_STEP only; the actions of such rows are ignored
            ended = self._ended[rows]
            for row in rows[ended].tolist():
                games.begin(row)
            self._ended[rows] = False
            moved = rows[~ended]
        terminations, truncations = games.step(None if len(moved) == self.num_envs else moved)
        ended = terminations | truncations
        rewards = games.arrays.rewards.astype(np.float64)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = self._begin_with_finals(np.flatnonzero(ended).tolist(), terminations)
            return self._seen(), rewards, terminations, truncations, infos
        self._ended |= ended
        for row in np.flatnonzero(terminations).tolist():
            games.show_final(row)
        return self._seen(), rewards, terminations, truncations, self._infos(over=terminations)

    def _begin_with_finals(self, rows: list[int], terminations: Flags) -> dict[str, Any]:
        """The rows are in their next episodes; the infos have what was last seen of those before."""
        finals: dict[str, Any] = {}
        if rows:
            last = self._infos(over=terminations)
            for row in rows:
                final_info = {name: last[name][row].item() for name in _INFOS}
                final_obs = self._games.final_obs[row].copy()
                finals = self._add_info(finals, {"final_obs": final_obs, "final_info": final_info}, row)
                self._games.begin(row)
        return {**finals, **self._infos()}

    def _seen(self) -> Pixels:
        obs = self._games.arrays.obs
        return obs.copy() if self._copy else obs

    def _infos(self, mask: Flags | None = None, over: Flags | None = None) -> dict[str, Any]:
        """The infos of the rows of `mask`, or all; rows that are `over` are seen in their last level."""
        infos: dict[str, Any] = {}
        for name, dtype in _INFOS.items():
            infos[name] = getattr(self._games.arrays, name).astype(dtype)
            infos[f"_{name}"] = np.ones(self.num_envs, np.bool_) if mask is None else mask.copy()
        if over is not None:
            infos["level_seed"][over] = infos["prev_level_seed"][over]
        return infos

    def _refuse(self, actions: NDArray[Any], rows: NDArray[np.integer[Any]]) -> None:
        if actions.shape != rows.shape or actions.dtype.kind not in "iu":
            seen = f"{actions.dtype} {list(actions.shape)}"
            raise ValueError(f"actions are {seen}; expected whole numbers [{len(rows)}]")
        if actions.min() < 0 or actions.max() >= NUM_ACTIONS:
            raise ValueError(f"actions are {actions.tolist()}; expected numbers from 0 to {NUM_ACTIONS - 1}")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended[rows].any():
            ended = rows[self._ended[rows]].tolist()
            raise RuntimeError(f'rows {ended} have ended: reset them with options={{"reset_mask": mask}}')

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given; expected {self.num_envs}, one for each row")
        return [None if one is None else int(one) for one in seed]


def make(env_name: str, num_envs: int, *, num_threads: int, **env_kwargs: Any) -> ProcgenVectorEnv:
    """The backend's vector of n games; `env_kwargs` are those of `ProcgenVectorEnv`."""
    return ProcgenVectorEnv(env_name, num_envs, num_threads=num_threads, **{"copy": False, **env_kwargs})


make.env_names = lambda: list(GAMES)  # type: ignore[attr-defined]


def _of_rows(infos: dict[str, Any], rows: NDArray[np.integer[Any]]) -> dict[str, Any]:
    return {name: _of_rows(of, rows) if isinstance(of, dict) else of[rows] for name, of in infos.items()}
