"""Which levels of Procgen an agent is tried on; tests/plugins/test_procgen.py plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.procgen_levels import game_of, score_range, with_levels

PROCGEN = Path(__file__).parents[2] / "plugins" / "clusterenv-procgen" / "src"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "game"),
    [
        ("procgen:coinrun", {"distribution_mode": "easy"}, ("coinrun", "easy")),
        ("procgen:procgen-maze-v0", {}, ("maze", "hard")),
        ("procgen-ninja-v0", {}, ("ninja", "hard")),
        ("envpool:BigfishEasy-v0", {}, ("bigfish", "easy")),
        ("envpool:Pong-v5", {}, None),
        ("CartPole-v1", {}, None),
    ],
)
def test_games_are_known_by_each_of_their_names(env_id: str, kwargs: dict[str, Any], game: object) -> None:
    assert game_of(env_id, kwargs) == game


def test_held_out_levels_are_all_above_those_of_the_run() -> None:
    kwargs = {"distribution_mode": "easy", "start_level": 100, "num_levels": 200}

    assert with_levels("procgen:coinrun", kwargs, "train") == kwargs
    assert with_levels("procgen:coinrun", kwargs, "all") == {"distribution_mode": "easy"}
    held_out = with_levels("procgen:coinrun", kwargs, "held-out")
    assert held_out == {"distribution_mode": "easy", "start_level": 300, "num_levels": 2**31 - 1 - 300}


def test_levels_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="levels is 'train'; expected nothing for CartPole-v1"):
        with_levels("CartPole-v1", {}, "train")
    with pytest.raises(ConfigError, match="levels is 'held-out'; expected 'all', since"):
        with_levels("procgen:coinrun", {}, "held-out")


def test_ranges_are_those_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROCGEN))

    assert score_range("procgen:bigfish", {"distribution_mode": "easy"}) == (1, 40)
    assert score_range("procgen:chaser", {"distribution_mode": "extreme"}) is None
    assert score_range("CartPole-v1", {}) is None
