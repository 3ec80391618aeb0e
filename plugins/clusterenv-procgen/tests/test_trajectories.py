"""Games step exactly as Procgen's own library does, and what is added to it is true."""

from __future__ import annotations

import numpy as np
import pytest
from clusterenv_procgen.env import ProcgenEnv
from clusterenv_procgen.games import Games
from clusterenv_procgen.library import Arrays, Handle
from clusterenv_procgen.options import GAMES, Options, game_of
from clusterenv_procgen.vector import ProcgenVectorEnv
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

NOTHING = 4  # the action of a game that is told to end its level
SOME_GAMES = ("coinrun", "caveflyer", "leaper", "starpilot")
EVERY_OPTION = {
    "num_levels": 50,
    "start_level": 7,
    "distribution_mode": "easy",
    "center_agent": False,
    "use_backgrounds": False,
    "restrict_themes": True,
    "use_monochrome_assets": True,
    "paint_vel_info": True,
}


def actions_for(steps: int, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 15, (steps, n))


@pytest.mark.parametrize(
    ("game", "options"),
    [(game, {"distribution_mode": "easy"}) for game in GAMES]
    + [
        ("maze", {"distribution_mode": "memory"}),
        ("chaser", {"distribution_mode": "extreme"}),
        ("coinrun", {"distribution_mode": "exploration"}),
        ("bigfish", {"use_generated_assets": True}),
        ("fruitbot", {"use_sequential_levels": True}),
        ("jumper", EVERY_OPTION),
    ],
)
def test_every_row_is_the_game_that_the_bare_library_plays(game: str, options: dict[str, object]) -> None:
    arrays = Arrays(1)
    bare = Handle(arrays, range(1), Options.of(options).for_library(game), rand_seed=12)
    env = ProcgenVectorEnv(game, 2, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    obs, infos = env.reset(seed=11)
    assert np.array_equal(obs[1], arrays.obs[0])
    ends = 0
    for actions in actions_for(1100, 2):
        arrays.actions[:] = actions[1]
        bare.act()
        obs, rewards, terminations, truncations, infos = env.step(actions)
        assert np.array_equal(obs[1], arrays.obs[0])
        assert rewards[1] == arrays.rewards[0]
        assert (terminations[1] or truncations[1]) == arrays.first[0]
        assert infos["level_seed"][1] == arrays.level_seed[0]
        played = infos["final_info"] if arrays.first[0] else infos
        assert played["prev_level_seed"][1] == arrays.prev_level_seed[0]
        assert played["prev_level_complete"][1] == arrays.prev_level_complete[0]
        ends += arrays.first[0]
    assert ends or env.time_limit > 1100
    env.close()
    bare.close()


@pytest.mark.parametrize("game", GAMES)
def test_last_observation_is_what_the_game_looks_like_before_its_next_level(game: str) -> None:
    options = Options(distribution_mode="easy")
    ended, twin = Games(game, [3], options), Games(game, [3], options)
    for action in actions_for(20, 1):
        for games in (ended, twin):
            games.arrays.actions[:] = action
            terminations, _ = games.step()
        if terminations.any():
            assert np.array_equal(ended.final_obs, twin.final_obs)
    ended.arrays.actions[0], twin.arrays.actions[0] = -1, NOTHING
    ended.step()
    terminations, _ = twin.step()
    assert not terminations.any()
    assert np.array_equal(ended.final_obs, twin.arrays.obs)
    assert not np.array_equal(ended.arrays.obs, twin.arrays.obs)


@pytest.mark.parametrize(
    ("game", "time_limit"), [("maze", 500), ("coinrun", 1000), ("procgen-leaper-v0", 500)]
)
def test_time_limit_truncates_and_does_not_terminate(game: str, time_limit: int) -> None:
    mode = AutoresetMode.SAME_STEP
    env = ProcgenVectorEnv(game, 1, distribution_mode="hard", rand_seed=1, autoreset_mode=mode)
    assert env.time_limit == time_limit
    level = env.reset()[1]["level_seed"][0]
    for step in range(1, time_limit + 1):
        obs, _, terminations, truncations, infos = env.step(np.array([NOTHING]))
        assert (terminations[0], truncations[0]) == (False, step == time_limit)
    assert infos["final_info"]["level_seed"][0] == level != infos["level_seed"][0]
    assert not np.array_equal(infos["final_obs"][0], obs[0])
    assert not env.step(np.array([NOTHING]))[3][0]
    env.close()


@pytest.mark.parametrize("game", SOME_GAMES)
def test_trajectories_do_not_depend_on_rows_and_threads(game: str) -> None:
    steps = actions_for(300, 8)

    def played(layout: list[int], num_threads: int) -> list[list[np.ndarray]]:
        shards = [ProcgenVectorEnv(game, n, num_threads=num_threads) for n in layout]
        first = 0
        for shard in shards:
            shard.reset(seed=list(range(100 + first, 100 + first + shard.num_envs)))
            first += shard.num_envs
        out = []
        for actions in steps:
            parts = np.split(actions, np.cumsum(layout)[:-1])
            results = [shard.step(part) for shard, part in zip(shards, parts, strict=True)]
            out.append([np.concatenate([result[leaf] for result in results]) for leaf in range(4)])
        for shard in shards:
            shard.close()
        return out

    expected = played([8], 1)
    for layout, num_threads in (([8], 3), ([4, 4], 1), ([1] * 8, 1)):
        for seen, wanted in zip(played(layout, num_threads), expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(seen, wanted, strict=True))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("game", "options"),
    [(game, {"distribution_mode": "easy"}) for game in SOME_GAMES]
    + [("fruitbot", {"use_sequential_levels": True, "num_levels": 3})],
)
def test_vector_does_what_gymnasiums_own_does(
    game: str, options: dict[str, object], mode: AutoresetMode
) -> None:
    ours = ProcgenVectorEnv(game, 3, num_threads=2, autoreset_mode=mode, **options)
    theirs = SyncVectorEnv([lambda: ProcgenEnv(game, **options)] * 3, autoreset_mode=mode)
    assert data_equivalence(ours.reset(seed=[5, 6, 7]), theirs.reset(seed=[5, 6, 7]))
    endings = 0
    for actions in actions_for(1100, 3):
        mine, wanted = ours.step(actions), theirs.step(actions)
        assert data_equivalence(mine, wanted, exact=True)
        ended = mine[2] | mine[3]
        endings += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            with pytest.raises(RuntimeError, match="have ended: reset them"):
                ours.step(actions)
            resets = [envs.reset(options={"reset_mask": ended}) for envs in (ours, theirs)]
            assert np.array_equal(resets[0][0], resets[1][0])
            for name in ("level_seed", "prev_level_seed", "prev_level_complete", "_level_seed"):
                assert np.array_equal(resets[0][1][name][ended], resets[1][1][name][ended])
    assert endings
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rows_may_be_stepped_apart(mode: AutoresetMode) -> None:
    whole, parts = (
        ProcgenVectorEnv("starpilot", 3, autoreset_mode=mode, distribution_mode="easy") for _ in range(2)
    )
    whole.reset(seed=1)
    parts.reset(seed=1)
    for actions in actions_for(400, 3):
        wanted = whole.step(actions)
        for rows in (np.array([0, 2]), np.array([1])):
            seen = parts.step_rows(actions[rows], rows)
            assert all(np.array_equal(a, b[rows]) for a, b in zip(seen[:4], wanted[:4], strict=True))
            assert np.array_equal(seen[4]["level_seed"], wanted[4]["level_seed"][rows])
    whole.close()
    parts.close()


@pytest.mark.parametrize("game", ["fruitbot", "heist"])
def test_training_levels_and_test_levels_never_meet(game: str) -> None:
    def levels(**options: object) -> set[int]:
        env = ProcgenVectorEnv(game, 8, distribution_mode="easy", **options)
        seen = set(env.reset(seed=0)[1]["level_seed"].tolist())
        for actions in actions_for(150, 8):
            seen |= set(env.step(actions)[4]["level_seed"].tolist())
        for _ in range(40):
            seen |= set(env.reset()[1]["level_seed"].tolist())
        env.close()
        return seen

    train, test = levels(num_levels=50), levels(num_levels=1000, start_level=50)
    assert train == set(range(50))
    assert min(test) >= 50
    assert max(test) < 1050


def test_a_seed_gives_the_same_levels_again_and_without_one_they_go_on() -> None:
    env = ProcgenVectorEnv("ninja", 2, num_threads=2)
    first = [env.reset(seed=4)[1]["level_seed"].tolist()]
    first += [env.reset()[1]["level_seed"].tolist() for _ in range(3)]
    again = [env.reset(seed=[4, 5])[1]["level_seed"].tolist()]
    again += [env.reset()[1]["level_seed"].tolist() for _ in range(3)]
    assert first == again
    assert len({level for row in first for level in row}) == 8
    assert env.reset(seed=2**40)[1]["level_seed"].tolist() != env.reset(seed=0)[1]["level_seed"].tolist()
    env.close()


def test_only_rows_of_the_mask_are_reset() -> None:
    env = ProcgenVectorEnv("plunder", 3, rand_seed=2)
    env.reset()
    before = env.step(np.array([0, 1, 2]))
    obs, infos = env.reset(seed=[9, 9, 9], options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(obs[[0, 2]], before[0][[0, 2]])
    assert not np.array_equal(obs[1], before[0][1])
    assert infos["_level_seed"].tolist() == [False, True, False]
    env.close()


def test_what_the_library_would_end_the_process_for_is_refused() -> None:
    for name, words in (("coinrum", "did you mean 'coinrun'"), ("pong", "its games are bigfish, bossfight")):
        with pytest.raises(ValueError, match=words):
            game_of(name)
    for options, words in (
        ({"distribution_mode": "memory"}, "it is for caveflyer, dodgeball"),
        ({"distribution_mode": "medium"}, "expected one of easy, hard"),
        ({"num_levels": -1}, "num_levels is -1"),
        ({"start_level": 2**31 - 5, "num_levels": 9}, "start_level . num_levels is"),
        ({"distribution_mode": "exploration", "num_levels": 5}, "leave them out"),
        ({"levels": 5}, "no option 'levels'; its options are num_levels, .*, rand_seed"),
        ({"num_threads": 0}, "expected at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            ProcgenVectorEnv("coinrun", 1, **options)
    env = ProcgenVectorEnv("coinrun", 2)
    for actions in (np.array([0, 15]), np.array([-1, 0]), np.array([0]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="actions are"):
            env.step(actions)
    env.close()
