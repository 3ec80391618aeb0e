"""Scores that can be compared over games."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterenv_procgen.options import game_of

Score = TypeVar("Score", float, NDArray[np.floating])

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "easy": {
        "coinrun": (5, 10),
        "starpilot": (2.5, 64),
        "caveflyer": (3.5, 12),
        "dodgeball": (1.5, 19),
        "fruitbot": (-1.5, 32.4),
        "chaser": (0.5, 13),
        "miner": (1.5, 13),
        "jumper": (3, 10),
        "leaper": (3, 10),
        "maze": (5, 10),
        "bigfish": (1, 40),
        "heist": (3.5, 10),
        "climber": (2, 12.6),
        "plunder": (4.5, 30),
        "ninja": (3.5, 10),
        "bossfight": (0.5, 13),
    },
    "hard": {
        "coinrun": (5, 10),
        "starpilot": (1.5, 35),
        "caveflyer": (2, 13.4),
        "dodgeball": (1.5, 19),
        "fruitbot": (-0.5, 27.2),
        "chaser": (0.5, 14.2),
        "miner": (1.5, 20),
        "jumper": (1, 10),
        "leaper": (1.5, 10),
        "maze": (4, 10),
        "bigfish": (0, 40),
        "heist": (2, 10),
        "climber": (1, 12.6),
        "plunder": (3, 30),
        "ninja": (2, 10),
        "bossfight": (0.5, 13),
    },
}
"""Mode -> game -> (lowest, highest) return.

From Cobbe, Hesse, Hilton and Schulman, "Leveraging Procedural Generation to Benchmark Reinforcement
Learning", 2020 (arXiv:1912.01588), appendix C. The lowest is what an agent gets without seeing, the highest
what can be had, or what the best agents trained for long got. (The code of that paper has 1 and 1.5 as the
lowest of jumper and leaper in easy, as in hard.)
"""


def normalized_score(game: str, mode: str, score: Score) -> Score:
    """(score - lowest) / (highest - lowest) of the game: 0 is blind play, 1 the best known; not clipped.

    Args:
        game: `coinrun`, or `procgen-coinrun-v0`.
        mode: the `distribution_mode`, easy or hard.
        score: a mean return, or an array of returns.

    Raises:
        ValueError: if there is no such game, or no range for the mode.
    """
    if mode not in RANGES:
        raise ValueError(f"there are no ranges for the mode {mode!r}; expected one of {', '.join(RANGES)}")
    lowest, highest = RANGES[mode][game_of(game)]
    return (score - lowest) / (highest - lowest)
