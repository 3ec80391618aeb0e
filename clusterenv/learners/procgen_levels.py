"""Which levels of a Procgen game an agent is tried on, and what its scores are compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from clusterenv.errors import ConfigError

Levels = Literal["train", "held-out", "all"]
MAX_LEVEL = 2**31 - 1
"""Procgen's levels have numbers below this."""
SOURCE = "Cobbe, Hesse, Hilton and Schulman, 2020 (arXiv:1912.01588), appendix C"

_OURS = re.compile(r"(?:procgen:(?:procgen-)?|procgen-)([a-z]+)(?:-v0)?")
_ENVPOOLS = re.compile(r"envpool:([A-Z][A-Za-z]+?)(Easy|Hard|Extreme|Memory|Exploration)-v0")


def game_of(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Procgen's game and its mode, such as ("coinrun", "easy"); None for another environment."""
    if ours := _OURS.fullmatch(env_id):
        return ours[1], str(env_kwargs.get("distribution_mode", "hard"))
    if envpools := _ENVPOOLS.fullmatch(env_id):
        return envpools[1].lower(), envpools[2].lower()
    return None


def with_levels(env_id: str, env_kwargs: Mapping[str, Any], levels: Levels) -> dict[str, Any]:
    """The arguments of the environment, for the levels it was trained on, all above these, or all.

    Raises:
        ConfigError: if it is not Procgen's, or training has left no level out.
    """
    if game_of(env_id, env_kwargs) is None:
        raise ConfigError("levels", levels, f"nothing for {env_id}, since only Procgen's games have levels")
    kwargs = dict(env_kwargs)
    if levels == "train":
        return kwargs
    first, count = int(kwargs.pop("start_level", 0)), int(kwargs.pop("num_levels", 0))
    if levels == "all":
        return kwargs
    if not count:
        raise ConfigError("levels", levels, "'all', since the run was trained on all levels (num_levels 0)")
    following = first + count
    return kwargs | {"start_level": following, "num_levels": MAX_LEVEL - following}


def score_range(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[float, float] | None:
    """The returns that count as 0 and 1 in normalised scores; None where none are published.

    Raises:
        ImportError: if the plugin that has them is not installed.
    """
    named = game_of(env_id, env_kwargs)
    if named is None:
        return None
    ranges = import_module("clusterenv_procgen.scores").RANGES
    game, mode = named
    found: tuple[float, float] | None = ranges.get(mode, {}).get(game)
    return found
