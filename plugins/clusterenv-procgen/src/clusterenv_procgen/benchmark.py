"""How fast the backend steps, against bare loops over Procgen's library.

    python -m clusterenv_procgen.benchmark --games coinrun starpilot --num-envs 64 --num-threads 2

All take the same random actions, in turns, and the figures are ratios to the first within one turn:

    library  one handle of n games, which the library's own threads step, as in OpenAI's package
    handles  n handles of one game each, in one thread: what seeds of their own cost
    backend  the vector that workers step: that, with Gymnasium's contract
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clusterenv_procgen.library import Arrays, Handle
from clusterenv_procgen.options import GAMES, Options
from clusterenv_procgen.vector import make

Step = Callable[[NDArray[np.int64]], object]


def main(argv: list[str] | None = None) -> None:
    """Write a line for each game and kind of loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["coinrun"], choices=GAMES, metavar="GAME")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="of each environment in a turn")
    parser.add_argument("--turns", type=int, default=7)
    words = parser.parse_args(argv)
    sys.stdout.write("game        loop      steps/s  of library [range]    steps/CPU s  of library [range]\n")
    for game in words.games:
        for line in measured(game, words.num_envs, words.num_threads, words.steps, words.turns):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def measured(game: str, num_envs: int, num_threads: int, steps: int, turns: int) -> list[str]:
    """The lines of one game."""
    loops = {
        "library": _library(game, num_envs, num_threads),
        "handles": _handles(game, num_envs),
        "backend": make(game, num_envs, num_threads=num_threads, rand_seed=0).step,
    }
    rng = np.random.default_rng(0)
    rates: dict[str, list[NDArray[np.float64]]] = {name: [] for name in loops}
    for turn in range(turns + 1):
        actions = rng.integers(0, 15, (steps, num_envs))
        for name, step in loops.items():
            rate = num_envs * steps / _seconds(step, actions)
            if turn:  # the first one warms up
                rates[name].append(rate)
    return [f"{game:11} {name:9}{_cells(rates[name], rates['library'])}" for name in loops]


def _library(game: str, num_envs: int, num_threads: int) -> Step:
    arrays = Arrays(num_envs)
    threads = num_threads if num_threads > 1 else 0
    options = Options().for_library(game)
    handle = Handle(arrays, range(num_envs), options, rand_seed=0, num_threads=threads)

    def step(actions: NDArray[np.int64]) -> None:
        arrays.actions[:] = actions
        handle.act()
        handle.observe()

    return step


def _handles(game: str, num_envs: int) -> Step:
    arrays = Arrays(num_envs)
    options = Options().for_library(game)
    handles = [Handle(arrays, range(row, row + 1), options, rand_seed=row) for row in range(num_envs)]

    def step(actions: NDArray[np.int64]) -> None:
        arrays.actions[:] = actions
        for handle in handles:
            handle.act()

    return step


def _seconds(step: Step, actions: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the steps took, of time and of the process's CPU time."""
    began = np.array([time.perf_counter(), time.process_time()])
    for row in actions:
        step(row)
    taken: NDArray[np.float64] = np.array([time.perf_counter(), time.process_time()]) - began
    return taken


def _cells(rates: list[NDArray[np.float64]], bare: list[NDArray[np.float64]]) -> str:
    cells = ""
    for clock in range(2):
        ratios = [one[clock] / other[clock] for one, other in zip(rates, bare, strict=True)]
        rate = statistics.median(one[clock] for one in rates)
        cells += f"{rate:9,.0f}  {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]    "
    return cells.rstrip()


if __name__ == "__main__":
    main()
