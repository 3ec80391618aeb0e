"""One game as a Gymnasium environment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from clusterenv_procgen.games import Games, any_seed
from clusterenv_procgen.library import OBS_SHAPE
from clusterenv_procgen.options import GAMES, NUM_ACTIONS, Options, game_of

Observation = NDArray[np.uint8]


def observation_space() -> gym.Space[Observation]:
    """Of each game: pixels [64, 64, 3]."""
    space: gym.Space[Any] = gym.spaces.Box(0, 255, OBS_SHAPE, np.uint8)
    return space


class ProcgenEnv(gym.Env[Observation, np.int64]):
    """A game; observations are pixels [64, 64, 3], actions 0 to 14.

    `info` has `level_seed`, the level that is seen, `prev_level_seed`, the level that the action was for, and
    `prev_level_complete`, whether the action solved it. After the time limit of the game (1000 steps in most)
    an episode is truncated.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  # as gymnasium.Env has it

    def __init__(
        self, env_name: str, *, render_mode: str | None = None, rand_seed: int | None = None, **options: Any
    ) -> None:
        """A game that is at the start of its first episode.

        Args:
            env_name: `coinrun`, or `procgen-coinrun-v0`.
            render_mode: "rgb_array" for frames [512, 512, 3].
            rand_seed: of the sequence of levels before the first `reset` with a seed; None: any.
            options: the fields of `Options`.

        Raises:
            ValueError: if there is no such game, or it has no such options.
            LibraryMissing: if the library cannot be used here.
        """
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected None or 'rgb_array'")
        self.render_mode = render_mode
        self.game = game_of(env_name)
        self.observation_space = observation_space()
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        seed = any_seed() if rand_seed is None else rand_seed
        render = render_mode is not None
        self._games = Games(self.game, [seed], Options.of(options), render=render, paint_final=render)
        self.time_limit = self._games.time_limit
        self._terminated = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """At the start of the next episode; with a seed, of the first in the sequence of that seed."""
        super().reset(seed=seed)
        self._games.begin(0, None if seed is None else int(seed))
        self._terminated = False
        return self._games.arrays.obs[0].copy(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One step, of 1/15 s in a game that a person plays.

        Raises:
            ValueError: if the action is not one of 0 to 14.
        """
        if not 0 <= action < NUM_ACTIONS:
            raise ValueError(f"action is {action!r}; expected a whole number from 0 to {NUM_ACTIONS - 1}")
        games = self._games
        games.arrays.actions[0] = action
        terminations, truncations = games.step()
        self._terminated = bool(terminations[0])
        obs = games.final_obs if self._terminated else games.arrays.obs
        return (
            obs[0].copy(),
            float(games.arrays.rewards[0]),
            self._terminated,
            bool(truncations[0]),
            self._info(),
        )

    def render(self) -> NDArray[np.uint8] | None:
        """The frame [512, 512, 3] of the last observation; None without a render mode."""
        frames = self._games.arrays.frames
        if frames is None:
            return None
        if not self._terminated:  # else the game has gone on, and the frame was painted before
            self._games.paint()
        frame: NDArray[np.uint8] = frames[0].copy()
        return frame

    def close(self) -> None:
        """The game is gone."""
        self._games.close()

    def _info(self) -> dict[str, Any]:
        arrays = self._games.arrays
        seen = arrays.prev_level_seed if self._terminated else arrays.level_seed
        return {
            "level_seed": int(seen[0]),
            "prev_level_seed": int(arrays.prev_level_seed[0]),
            "prev_level_complete": bool(arrays.prev_level_complete[0]),
        }


def __getattr__(name: str) -> Callable[..., ProcgenEnv]:
    """`clusterenv_procgen.env:coinrun` makes that game."""
    if name in GAMES:
        return functools.partial(ProcgenEnv, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
