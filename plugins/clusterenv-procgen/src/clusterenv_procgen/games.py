"""Several games side by side, stepped by threads, with arrays [n, ...]: both interfaces stand on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv_procgen.game import Game
from clusterenv_procgen.library import Address, Arrays, load
from clusterenv_procgen.options import MAX_LEVEL, Options


class Games:
    """n games of one kind, and the arrays that they read and write.

    A game that ends is at the start of its next level when `step` returns, with its last observation in
    `final_obs`; one at its time limit stays where it is until `begin`. Not thread-safe.
    """

    def __init__(
        self,
        game: str,
        seeds: Iterable[int],
        options: Options,
        *,
        num_threads: int = 1,
        render: bool = False,
        paint_final: bool = False,
    ) -> None:
        """All games are at the start of an episode.

        Args:
            game: one of `GAMES`.
            seeds: of each game.
            options: of all games.
            num_threads: how many step games at a time, the caller's own among them.
            render: frames can be painted.
            paint_final: when a game ends, that of its last observation is.

        Raises:
            ValueError: if the game has no such options, or there are no games or threads.
            LibraryMissing: if the library cannot be used here.
        """
        seeds = tuple(seeds)
        n = len(seeds)
        if n < 1 or num_threads < 1:
            raise ValueError(
                f"{n} games and {num_threads} threads were asked for; expected at least 1 of each"
            )
        self._options = options.for_library(game)
        self._sequential = options.use_sequential_levels
        self.arrays = arrays = Arrays(n, render=render)
        """What the games read and write; of those that ended, the start of the next level."""
        self.final_obs = np.zeros_like(arrays.obs)
        """[n, 64, 64, 3] the last observations of those that ended, until they are shown."""
        self._shown = np.zeros(n, np.bool_)
        self.fresh = np.ones(n, np.bool_)
        """[n] at the start of an episode that nobody was told of."""
        self._elapsed = np.zeros(n, np.int64)
        self._paint_final = paint_final
        self._games: list[Game] = []
        self._threads = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None
        self._helpers = num_threads - 1
        self._act_one = load().libenv_act  # called in a loop without a frame of Python's for each game
        for row, seed in enumerate(seeds):
            self._games.append(self._made(row, seed))
        self._handles = [game.handle for game in self._games]
        self.time_limit = self._games[0].time_limit
        """Steps after which an episode is truncated."""

    def __len__(self) -> int:
        """How many games."""
        return len(self._games)

    def step(
        self, rows: NDArray[np.integer[Any]] | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The games of `rows`, or all, have taken a step; which have terminated, which are at their limit."""
        if rows is None:
            self._act(self._handles)
            return self._ended(slice(None))
        self._act([self._handles[row] for row in rows])
        return self._ended(rows)

    def show_final(self, row: int) -> None:
        """Until `begin`, the last observation of a game that terminated is in the arrays, not the next."""
        following = self.arrays.obs[row].copy()
        self.arrays.obs[row] = self.final_obs[row]
        self.final_obs[row] = following
        self._shown[row] = True

    def begin(self, row: int, seed: int | None = None) -> None:
        """The game is at the start of an episode: with a seed, of the first in the sequence of that seed."""
        if seed is not None:
            self._games[row].close()
            self._games[row] = self._made(row, seed)
            self._handles[row] = self._games[row].handle
        elif not self.fresh[row]:
            self.arrays.actions[row] = -1
            self._games[row].act()
        elif self._shown[row]:
            self.arrays.obs[row] = self.final_obs[row]
        self._shown[row] = False
        self.arrays.rewards[row] = 0.0
        self.arrays.prev_level_seed[row] = self.arrays.level_seed[row]
        self.arrays.prev_level_complete[row] = False
        self.fresh[row] = False
        self._elapsed[row] = 0

    def paint(self) -> None:
        """The frames are of what is in the arrays now."""
        for game in self._games:
            game.observe()

    def close(self) -> None:
        """All games and threads are gone. May be called again."""
        if self._threads is not None:
            self._threads.shutdown()
        for game in self._games:
            game.close()

    def _made(self, row: int, seed: int) -> Game:
        return Game(
            self.arrays,
            row,
            self._options,
            rand_seed=as_rand_seed(seed),
            final_obs=self.final_obs,
            paint_final=self._paint_final,
        )

    def _act(self, handles: list[Address]) -> None:
        """Each thread takes the next game that none has taken: a slow level does not hold up the rest."""
        waiting = iter(handles)
        if self._threads is None or len(handles) == 1:
            self._act_all(waiting)
            return
        helpers = min(self._helpers, len(handles) - 1)
        working = [self._threads.submit(self._act_all, waiting) for _ in range(helpers)]
        self._act_all(waiting)
        for helper in working:
            helper.result()

    def _act_all(self, handles: Iterator[Address]) -> None:
        deque(map(self._act_one, handles), maxlen=0)

    def _ended(self, rows: NDArray[np.integer[Any]] | slice) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated = np.zeros(len(self), np.bool_)
        truncated = np.zeros(len(self), np.bool_)
        terminated[rows] = self.arrays.first[rows]
        self.fresh[rows] = terminated[rows]
        self._elapsed[rows] += 1
        if self._sequential:
            self._elapsed[self.arrays.prev_level_complete] = 0
        truncated[rows] = (self._elapsed[rows] >= self.time_limit) & ~terminated[rows]
        if truncated.any():
            self.final_obs[truncated] = self.arrays.obs[truncated]
        return terminated, truncated


def as_rand_seed(seed: int) -> int:
    """The library's `rand_seed` of a seed: itself up to 2**31 - 1, a hash of larger ones.

    Raises:
        ValueError: if it is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected a whole number from 0")
    return seed if seed <= MAX_LEVEL else int(np.random.SeedSequence(seed).generate_state(1)[0]) & MAX_LEVEL


def any_seed() -> int:
    """A seed that nobody else has."""
    return int(np.random.SeedSequence().generate_state(1)[0]) & MAX_LEVEL
