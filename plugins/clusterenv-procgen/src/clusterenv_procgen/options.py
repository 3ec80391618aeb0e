"""What can be asked of Procgen: its games, and the options of a game."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)

NUM_ACTIONS = 15
"""Nine moves (3 columns of 3: left, none, right by down, none, up), then the keys D, A, W, S, Q and E."""

MAX_LEVEL = 2**31 - 1

_MODES = {"easy": 0, "hard": 1, "extreme": 2, "memory": 10, "exploration": 1}
"""Mode -> the number that the library knows it by; exploration is one level of hard."""

_EXPLORATION_LEVELS = {
    "coinrun": 1949448038,
    "caveflyer": 1259048185,
    "leaper": 1318677581,
    "jumper": 1434825276,
    "maze": 158988835,
    "heist": 876640971,
    "climber": 1561126160,
    "ninja": 1123500215,
}

_GAMES_OF_MODE = {
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": tuple(_EXPLORATION_LEVELS),
}


def id_of(game: str) -> str:
    """The Gymnasium id of a game."""
    return f"procgen-{game}-v0"


def game_of(name: str) -> str:
    """The game that `name` means: `coinrun`, or `procgen-coinrun-v0`.

    Raises:
        ValueError: if it is none of Procgen's; the message has the nearest and the list.
    """
    game = re.sub(r"^procgen[-:]|-v0$", "", name.strip().lower())
    if game in GAMES:
        return game
    near = difflib.get_close_matches(game, GAMES, n=1, cutoff=0.5)
    begin = f"did you mean {near[0]!r}? Its" if near else "its"
    raise ValueError(f"Procgen has no game {name!r}; {begin} games are {', '.join(GAMES)}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a game, with the names and defaults of OpenAI's package; all are checked."""

    num_levels: int = 0
    """How many levels there are, from `start_level` on; 0: all 2**31 - 1, whatever `start_level` says."""
    start_level: int = 0
    distribution_mode: str = "hard"
    """easy, hard, extreme (4 games), memory (6), or exploration (8: one level, which the game gives)."""
    use_sequential_levels: bool = False
    """After a level is solved the episode goes on in the level with the number 997 higher."""
    center_agent: bool = True
    """Show what is around the agent; otherwise the whole level."""
    use_backgrounds: bool = True
    use_generated_assets: bool = False
    """Images made by a random generator instead of the painted ones."""
    restrict_themes: bool = False
    """One look for each kind of thing."""
    use_monochrome_assets: bool = False
    """Things are plain rectangles, a colour for each kind."""
    paint_vel_info: bool = False
    """The agent's velocity is painted into the upper left corner, in some games."""
    debug_mode: int = 0
    """A number that some games read, as in the library."""

    def __post_init__(self) -> None:
        """Refuse what the library would end the process for."""
        if self.distribution_mode not in _MODES:
            modes = ", ".join(_MODES)
            raise ValueError(f"distribution_mode is {self.distribution_mode!r}; expected one of {modes}")
        for name in ("num_levels", "start_level", "debug_mode"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= MAX_LEVEL:
                raise ValueError(f"{name} is {value!r}; expected a whole number from 0 to {MAX_LEVEL}")
        if self.num_levels and self.start_level + self.num_levels > MAX_LEVEL:
            last = self.start_level + self.num_levels
            raise ValueError(f"start_level + num_levels is {last}; expected at most {MAX_LEVEL}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options that are given by name.

        Raises:
            ValueError: if there is no such option, or a value is refused.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                options = ", ".join([*known, "rand_seed"])  # which the environments take out beforehand
                raise ValueError(f"Procgen has no option {name!r}; its options are {options}")
        return cls(**given)

    def for_library(self, game: str) -> dict[str, str | int | bool]:
        """The options as the library wants them.

        Raises:
            ValueError: if the game has no such mode, or it fixes the levels that are asked for.
        """
        mode = self.distribution_mode
        games = _GAMES_OF_MODE.get(mode, GAMES)
        if game not in games:
            raise ValueError(f"{game} has no distribution_mode {mode!r}; it is for {', '.join(games)}")
        start_level, num_levels = self.start_level, self.num_levels
        if mode == "exploration":
            if start_level or num_levels:
                raise ValueError(
                    f"distribution_mode 'exploration' has one level of its own, but start_level is "
                    f"{start_level} and num_levels is {num_levels}; leave them out"
                )
            start_level, num_levels = _EXPLORATION_LEVELS[game], 1
        return {
            "env_name": game,
            "num_levels": num_levels,
            "start_level": start_level,
            "distribution_mode": _MODES[mode],
            "num_actions": NUM_ACTIONS,
            "debug_mode": self.debug_mode,
            **{name: bool(getattr(self, name)) for name in _FLAGS},
        }


_FLAGS = (
    "use_sequential_levels",
    "center_agent",
    "use_backgrounds",
    "use_generated_assets",
    "restrict_themes",
    "use_monochrome_assets",
    "paint_vel_info",
)
