from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.batches import ResetBatch, StepBatch
from clusterenv.errors import EnvError, SpaceError, StateError
from clusterenv.infos import batch_infos, decode_infos
from clusterenv.shard import Shard
from tests.envs import Count, Echo, Fails, Nested, Pays, RandomObs, ReusingCount, Sampled, Tells
from tests.long_form import drawn
from tests.spaces import assert_same, fixed_size, with_leaves

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
EnvFns = Sequence[Callable[[], gym.Env]]

PAIR = [partial(Count, 2, "term"), partial(Count, 3, "trunc")]
REUSING_PAIR = [partial(ReusingCount, 2, "term"), partial(ReusingCount, 3, "trunc")]


def decoded(blocks: list[bytes], num_envs: int) -> dict[str, Any]:
    return batch_infos([row for block in blocks for row in decode_infos(block)], num_envs)


class Vector:
    """A shard behind the interface of SyncVectorEnv."""

    def __init__(self, env_fns: EnvFns, mode: AutoresetMode = NEXT_STEP) -> None:
        self.shard = Shard(env_fns, first_env=0, autoreset_mode=mode)
        self.num_envs = len(env_fns)

    def reset(
        self, seeds: list[int | None] | None = None, options: Any = None, mask: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        batch = self.shard.reset(seeds, options, mask)
        assert isinstance(batch, ResetBatch)
        return self.shard.obs_layout.nest(batch.obs), decoded(batch.infos, self.num_envs)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        layout = self.shard.obs_layout
        batch = self.shard.step(self.shard.action_layout.batched_actions(actions, self.num_envs))
        infos = decoded(batch.infos, self.num_envs)
        if len(batch.final_index):
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for row, obs in zip(
                batch.final_index, layout.unpack(batch.final_obs, len(batch.final_index)), strict=True
            ):
                infos["final_obs"][row] = obs
            infos["_final_obs"] = np.isin(np.arange(self.num_envs), batch.final_index)
            infos["final_info"] = decoded(batch.final_infos, self.num_envs)
            infos["_final_info"] = infos["_final_obs"].copy()
        return layout.nest(batch.obs), batch.rewards, batch.terminations, batch.truncations, infos


def walk(vector: Vector, steps: int) -> list[tuple[list[float], list[float], list[bool], list[bool]]]:
    results = []
    for _ in range(steps):
        obs, rewards, terminations, truncations, _ = vector.step([0] * vector.num_envs)
        results.append((obs[:, 0].tolist(), rewards.tolist(), terminations.tolist(), truncations.tolist()))
    return results


# --- some rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_step_of_some_rows_leaves_the_others_alone(mode: AutoresetMode) -> None:
    shard = Shard([partial(Count, 2)] * 3, first_env=4, autoreset_mode=mode)
    shard.reset()
    mask = np.array([True, False, True])
    first = shard.step([np.zeros(2, np.int64)], mask)
    assert first.obs[0][:, 0].tolist() == [1, 1]
    assert [env for block in first.infos for env, _ in decode_infos(block)] == [4, 6]
    shard.step([np.zeros(1, np.int64)], np.array([False, True, False]))
    second = shard.step([np.zeros(2, np.int64)], mask)
    assert second.terminations.tolist() == [True, True]
    if mode is SAME_STEP:
        assert second.final_index.tolist() == [0, 1]
        assert second.final_obs[0][:, 0].tolist() == [2, 2]
        assert shard.obs[0][:, 0].tolist() == [0, 1, 0]
    else:
        assert shard.ended.tolist() == [True, False, True]
        third = shard.step([np.zeros(3, np.int64)])
        assert third.obs[0][:, 0].tolist() == [0, 2, 0]
        assert third.rewards.tolist() == [0, 1, 0]


def test_step_of_no_rows_does_nothing() -> None:
    shard = Shard([partial(Count, 2)] * 2, first_env=0, autoreset_mode=NEXT_STEP)
    shard.reset()
    batch = shard.step([np.zeros(0, np.int64)], np.zeros(2, np.bool_))
    assert (len(batch.rewards), batch.infos, batch.obs[0].shape) == (0, [], (0, 1))
    assert shard.obs[0][:, 0].tolist() == [0, 0]


def test_row_that_was_never_reset_is_refused_only_when_it_steps() -> None:
    shard = Shard([Count] * 2, first_env=0, autoreset_mode=NEXT_STEP)
    shard.reset(mask=np.array([True, False]))
    assert shard.step([np.zeros(1, np.int64)], np.array([True, False])).obs[0].tolist() == [[1]]
    with pytest.raises(StateError, match="environments 1 need a reset"):
        shard.step([np.zeros(2, np.int64)])


# --- autoreset ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_fns", [PAIR, REUSING_PAIR], ids=["fresh", "reusing"])
def test_next_step_autoreset_gives_the_numbers_of_s1(env_fns: EnvFns) -> None:
    vector = Vector(env_fns)
    obs, infos = vector.reset()
    assert obs[:, 0].tolist() == [0, 0]
    assert infos["k"].tolist() == ["reset", "reset"]
    no = [False, False]
    assert walk(vector, 4) == [
        ([1, 1], [1, 1], no, no),
        ([2, 2], [1, 1], [True, False], no),
        ([0, 3], [0, 1], no, [False, True]),
        ([1, 0], [1, 0], no, no),
    ]
    obs, _, terminations, _, infos = vector.step([0, 0])
    assert obs[:, 0].tolist() == [2, 1]
    assert terminations.tolist() == [True, False]
    assert set(infos) == {"k", "_k"}
    assert vector.step([0, 0])[-1]["k"].tolist() == ["reset", "step"]


@pytest.mark.parametrize("env_fns", [PAIR, REUSING_PAIR], ids=["fresh", "reusing"])
def test_same_step_autoreset_gives_the_numbers_of_s2_and_s5(env_fns: EnvFns) -> None:
    vector = Vector(env_fns, SAME_STEP)
    vector.reset()
    assert vector.step([0, 0])[0][:, 0].tolist() == [1, 1]

    obs, rewards, terminations, truncations, infos = vector.step([0, 0])
    assert obs[:, 0].tolist() == [0, 2]
    assert rewards.tolist() == [1, 1]
    assert terminations.tolist() == [True, False]
    assert truncations.tolist() == [False, False]
    assert_same(infos["final_obs"][0], np.array([2.0], np.float32))
    assert infos["final_obs"][1] is None
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_info"]["k"].tolist() == ["step", None]
    assert infos["final_info"]["_k"].tolist() == [True, False]
    assert infos["_final_info"].tolist() == [True, False]
    assert infos["k"].tolist() == ["reset", "step"]

    obs, _, terminations, truncations, infos = vector.step([0, 0])
    assert obs[:, 0].tolist() == [1, 0]
    assert terminations.tolist() == [False, False]
    assert truncations.tolist() == [False, True]
    assert infos["final_obs"][0] is None
    assert infos["final_obs"][1].tolist() == [3]

    assert walk(vector, 2) == [
        ([0, 1], [1, 1], [True, False], [False, False]),
        ([1, 2], [1, 1], [False, False], [False, False]),
    ]


def test_disabled_autoreset_refuses_to_step_an_ended_row_before_any_moves() -> None:
    vector = Vector(PAIR, DISABLED)
    vector.reset()
    assert walk(vector, 2)[1] == ([2, 2], [1, 1], [True, False], [False, False])
    with pytest.raises(StateError, match=r"environments 0 have ended an episode: reset them with options="):
        vector.step([0, 0])
    assert [env.t for env in vector.shard.envs] == [2, 2]
    obs, infos = vector.reset(mask=np.array([True, False]))
    assert obs[:, 0].tolist() == [0, 2]
    assert infos["_k"].tolist() == [True, False]
    assert walk(vector, 1) == [([1, 3], [1, 1], [False, False], [False, True])]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masked_reset_keeps_the_rest(mode: AutoresetMode) -> None:
    vector = Vector([Count, Count], mode)
    vector.reset()
    walk(vector, 2)
    obs, infos = vector.reset(mask=np.array([True, False]))
    assert obs[:, 0].tolist() == [0, 2]
    assert infos["_k"].tolist() == [True, False]
    assert walk(vector, 1)[0][0] == [1, 3]


def test_masked_reset_of_no_row_changes_nothing() -> None:
    vector = Vector(PAIR)
    vector.reset()
    walk(vector, 2)
    obs, infos = vector.reset(mask=np.array([False, False]))
    assert obs[:, 0].tolist() == [2, 2]
    assert infos == {}
    assert walk(vector, 1)[0][0] == [0, 3]


def test_explicit_reset_after_an_end_is_not_followed_by_a_second_one() -> None:
    vector = Vector(PAIR)
    vector.reset()
    walk(vector, 2)
    vector.reset(mask=np.array([True, False]))
    assert walk(vector, 1) == [([1, 3], [1, 1], [False, False], [False, True])]


def test_reset_leaves_the_options_as_they_are_for_every_environment() -> None:
    class Pops(Count):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            obs, _ = super().reset(seed=seed)
            return obs, {"seen": options.pop("x")}

    options = {"x": 1}
    _, infos = Vector([Pops, Pops]).reset(options=options)
    assert infos["seen"].tolist() == [1, 1]
    assert options == {"x": 1}


def test_reset_seeds_each_row_of_the_mask_with_its_own_seed() -> None:
    vector = Vector([RandomObs] * 3)
    first, _ = vector.reset([5, 6, 7])
    again, _ = vector.reset([0, 6, 0], mask=np.array([False, True, False]))
    np.testing.assert_array_equal(first, again)
    unseeded, _ = vector.reset([None, 6, None])
    assert (unseeded[[0, 2]] != first[[0, 2]]).all()
    np.testing.assert_array_equal(unseeded[1], first[1])


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_seeded_episodes_are_those_of_sync_vector_env(mode: AutoresetMode) -> None:
    vector, sync = Vector([RandomObs] * 8, mode), SyncVectorEnv([RandomObs] * 8, autoreset_mode=mode)
    seeds: list[int | None] = list(range(7, 15))
    np.testing.assert_array_equal(vector.reset(seeds)[0], sync.reset(seed=7)[0])
    for _ in range(50):
        assert_unordered(vector.step([0] * 8), sync.step(np.zeros(8, np.int64)))


@drawn(60)
@given(
    space=fixed_size(),
    action_space=with_leaves(),
    mode=st.sampled_from(list(AutoresetMode)),
    num_envs=st.integers(1, 4),
    masks=st.lists(st.none() | st.integers(1, 15), min_size=12, max_size=12),
)
def test_walks_are_those_of_sync_vector_env(
    space: gym.Space,
    action_space: gym.Space,
    mode: AutoresetMode,
    num_envs: int,
    masks: list[int | None],
) -> None:
    env_fns = [partial(Sampled, space, action_space)] * num_envs
    sync, vector = SyncVectorEnv(env_fns, autoreset_mode=mode), Vector(env_fns, mode)
    sync.action_space.seed(1)
    seeds: list[int | None] = list(range(num_envs))
    assert_unordered(vector.reset(seeds, {"x": 1}), sync.reset(seed=seeds, options={"x": 1}))
    for bits in masks:
        actions = sync.action_space.sample()
        seen, expected = vector.step(actions), sync.step(actions)
        assert_unordered(seen, expected)
        assert sync.observation_space.contains(seen[0])
        mask = np.array([bool(bits and bits >> row & 1) for row in range(num_envs)])
        if mode is DISABLED:
            mask |= expected[2] | expected[3]
        if mask.any():
            options = {"y": 2, "reset_mask": mask}
            assert_unordered(vector.reset(None, {"y": 2}, mask), sync.reset(options=options))
    sync.close()


def assert_unordered(seen: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """The same but for the order of keys in the infos."""
    assert_same(seen[:-1], expected[:-1])
    assert_same(by_key(seen[-1]), by_key(expected[-1]))


def by_key(infos: Any) -> Any:
    return {key: by_key(infos[key]) for key in sorted(infos)} if isinstance(infos, dict) else infos


# --- actions and rewards ------------------------------------------------------------------------------------


def test_discrete_actions_reach_the_environments_as_numpy_scalars_from_start_on() -> None:
    received: list[Any] = []

    class Notes(Count):
        action_space = spaces.Discrete(3, start=2)

        def step(self, action: Any) -> Any:
            received.append(action)
            return super().step(action)

    vector = Vector([Notes, Notes])
    vector.reset()
    vector.step([2, 4])
    assert_same(received, [np.int64(2), np.int64(4)])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Dict(
            {"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2)])}
        ),
    ],
    ids=str,
)
def test_actions_reach_the_environments_as_they_were_given(space: gym.Space) -> None:
    env_fns = [partial(Echo, space)] * 3
    vector, sync = Vector(env_fns), SyncVectorEnv(env_fns)
    vector.reset([0, 1, 2])
    sync.reset(seed=[0, 1, 2])
    sync.action_space.seed(3)
    for _ in range(7):
        actions = sync.action_space.sample()
        assert_same(vector.step(actions), sync.step(actions))


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (2, 2.0),
        (True, 1.0),
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int8(3), 3.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (np.array([[2]]), 2.0),
        ([1.5], 1.5),
        (float("nan"), float("nan")),
        (Fraction(1, 4), 0.25),
        (Decimal("1.5"), 1.5),
    ],
    ids=repr,
)
def test_rewards_may_be_numbers_or_arrays_of_size_1(reward: Any, expected: float) -> None:
    vector = Vector([partial(Pays, reward), partial(Pays, 0.0)])
    vector.reset()
    np.testing.assert_array_equal(vector.step([0, 0])[1], [expected, 0.0])
    np.testing.assert_array_equal(
        collect(vector.shard, 1)["rewards"], np.array([[expected, 0.0]], np.float32)
    )


@pytest.mark.parametrize("reward", [None, "1", np.zeros(2), [1.0, 2.0], 1j, np.zeros(0)], ids=repr)
@pytest.mark.parametrize("collecting", [False, True])
def test_rewards_of_another_kind_are_an_error_with_the_environment(reward: Any, collecting: bool) -> None:
    vector = Vector([Count, partial(Pays, reward)])
    vector.reset()
    with pytest.raises(
        EnvError, match=r"^environment 1 failed in step .*expected a number or an array of size 1"
    ):
        collect(vector.shard, 1) if collecting else vector.step([0, 0])


# --- steps in place -----------------------------------------------------------------------------------------


def collect(shard: Shard, steps: int) -> dict[str, Any]:
    """T steps with action 0, as a runner takes them."""
    shard.reset_ended()
    obs = shard.obs_layout.empty(steps, shard.num_envs)
    rewards = np.full((steps, shard.num_envs), np.nan)
    terminations = np.ones((steps, shard.num_envs), np.bool_)
    truncations = np.ones((steps, shard.num_envs), np.bool_)
    final_rows: list[int] = []
    final_obs: list[Any] = []
    for t in range(steps):
        for leaf, now in zip(obs, shard.obs, strict=True):
            leaf[t] = now
        shard.step_into(
            shard.action_layout.zeros(shard.num_envs),
            shard.obs,
            rewards[t],
            terminations[t],
            truncations[t],
            final_rows,
            final_obs,
        )
    return {
        "obs": obs,
        "rewards": rewards,
        "terminations": terminations,
        "truncations": truncations,
        "final_rows": final_rows,
        "final_obs": final_obs,
    }


@pytest.mark.parametrize("kind", [Count, ReusingCount])
def test_step_into_is_same_step_with_copies_of_final_observations(kind: type[Count]) -> None:
    shard = Shard(
        [partial(kind, 2, "term"), partial(kind, 3, "trunc")], first_env=0, autoreset_mode=NEXT_STEP
    )
    shard.reset()
    taken = collect(shard, 4)
    assert taken["obs"][0][..., 0].tolist() == [[0, 0], [1, 1], [0, 2], [1, 0]]
    assert taken["rewards"].tolist() == [[1, 1]] * 4
    assert taken["terminations"].tolist() == [[False, False], [True, False], [False, False], [True, False]]
    assert taken["truncations"].tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert taken["final_rows"] == [0, 1, 0]
    assert [obs.tolist() for obs in taken["final_obs"]] == [[2], [3], [2]]
    assert shard.obs[0][:, 0].tolist() == [0, 1]
    assert not shard.ended.any()


@pytest.mark.parametrize("env_fn", [RandomObs, Nested, partial(Sampled, Nested.observation_space)])
def test_step_into_takes_the_walk_that_step_takes_in_same_step(env_fn: Callable[[], gym.Env]) -> None:
    one = Shard([env_fn] * 3, first_env=0, autoreset_mode=SAME_STEP)
    other = Shard([env_fn] * 3, first_env=0, autoreset_mode=NEXT_STEP)
    one.reset([1, 2, 3])
    other.reset([1, 2, 3])
    batches: list[StepBatch] = [one.step([np.zeros(3, np.int64)]) for _ in range(12)]
    taken = collect(other, 12)
    for t, batch in enumerate(batches[:-1]):
        assert_same([leaf[t + 1] for leaf in taken["obs"]], batch.obs)
    assert_same(other.obs, batches[-1].obs)
    np.testing.assert_array_equal(taken["rewards"], [b.rewards for b in batches])
    np.testing.assert_array_equal(taken["terminations"], [b.terminations for b in batches])
    np.testing.assert_array_equal(taken["truncations"], [b.truncations for b in batches])
    assert taken["final_rows"] == [row for b in batches for row in b.final_index]
    packed = other.obs_layout.empty(len(taken["final_rows"]))
    other.obs_layout.pack(taken["final_obs"], packed, name="row")
    for leaf, parts in zip(packed, zip(*(b.final_obs for b in batches), strict=True), strict=True):
        np.testing.assert_array_equal(leaf, np.concatenate(parts))


def test_reset_ended_performs_the_resets_that_step_left_pending() -> None:
    vector = Vector(PAIR)
    vector.reset()
    walk(vector, 2)
    assert vector.shard.ended.tolist() == [True, False]
    taken = collect(vector.shard, 1)
    assert taken["obs"][0][0, :, 0].tolist() == [0, 2]
    assert taken["rewards"].tolist() == [[1, 1]]
    assert walk(vector, 1)[0][0] == [2, 1]  # row 1 ended inside the collected step and was reset there
    with pytest.raises(StateError, match=r"environments 4, 5 need a reset before they can act"):
        Shard(PAIR, first_env=4, autoreset_mode=NEXT_STEP).reset_ended()


def test_batches_are_not_overwritten_by_later_steps() -> None:
    shard = Shard(PAIR, first_env=0, autoreset_mode=SAME_STEP)
    kept: list[Any] = [shard.reset()]
    kept += [shard.step([np.zeros(2, np.int64)]) for _ in range(4)]
    copies = deepcopy(kept)
    for _ in range(4):
        shard.step([np.zeros(2, np.int64)])
    collect(shard, 3)
    shard.reset()
    for batch, copy in zip(kept, copies, strict=True):
        assert_same(batch.frames(), copy.frames())


def test_writing_into_a_batch_does_not_change_what_the_policy_sees() -> None:
    shard = Shard(PAIR, first_env=0, autoreset_mode=NEXT_STEP)
    shard.reset().obs[0].fill(9)
    assert shard.obs[0].tolist() == [[0], [0]]
    shard.step([np.zeros(2, np.int64)]).obs[0].fill(9)
    assert shard.obs[0].tolist() == [[1], [1]]


def test_progress_goes_up_before_each_call_into_an_environment() -> None:
    seen: list[int] = []

    class Watches(Count):
        def reset(self, **kwargs: Any) -> Any:
            seen.append(shard.progress)
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            seen.append(shard.progress)
            return super().step(action)

    shard = Shard([Watches, partial(Watches, 1)], first_env=0, autoreset_mode=SAME_STEP)
    before = shard.progress
    shard.reset()
    shard.step([np.zeros(2, np.int64)])
    collect(shard, 1)
    assert seen == list(range(before + 1, before + 9))


# --- errors -------------------------------------------------------------------------------------------------


def test_step_before_reset_is_refused() -> None:
    vector = Vector([Count] * 12)
    with pytest.raises(
        StateError, match=r"environments 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. need a reset before they can"
    ):
        vector.step([0] * 12)
    vector.reset(mask=np.arange(12) != 3)
    with pytest.raises(StateError, match=r"environments 3 need a reset"):
        vector.step([0] * 12)
    assert all(env.t == 0 for env in vector.shard.envs)


@pytest.mark.parametrize("where", ["init", "reset"])
def test_errors_outside_of_step_name_the_environment_and_carry_its_traceback(where: str) -> None:
    with pytest.raises(EnvError, match="RuntimeError: on purpose") as caught:
        Shard([Count, partial(Fails, where)], first_env=6, autoreset_mode=NEXT_STEP).reset()
    what = {"init": "environment 7 could not be made: ", "reset": "environment 7 failed in reset: "}[where]
    assert str(caught.value).startswith(what)
    assert caught.value.env_index == 7
    assert caught.value.action is None
    assert "in _fail" in caught.value.remote_traceback
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("collecting", [False, True])
def test_error_in_step_names_environment_and_action_and_leaves_the_others(collecting: bool) -> None:
    shard = Shard([Count, partial(Fails, "step", at=2), Count], first_env=4, autoreset_mode=NEXT_STEP)
    shard.reset()
    shard.step([np.array([0, 0, 0])])
    with pytest.raises(
        EnvError, match=r"environment 5 failed in step with action .*: RuntimeError: on purpose"
    ) as caught:
        collect(shard, 1) if collecting else shard.step([np.array([0, 1, 0])])
    assert caught.value.env_index == 5
    assert caught.value.action == ("np.int64(0)" if collecting else "np.int64(1)")
    assert "in _fail" in caught.value.remote_traceback
    assert shard.obs[0][:, 0].tolist() == [2, 1, 1]

    with pytest.raises(StateError, match="environments 5 need a reset"):
        shard.step([np.array([0, 0, 0])])
    assert shard.reset(mask=np.array([False, True, False])).obs[0][:, 0].tolist() == [2, 0, 1]
    assert shard.step([np.array([0, 0, 0])]).obs[0][:, 0].tolist() == [3, 1, 2]


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_error_in_an_automatic_reset_says_reset(mode: AutoresetMode) -> None:
    class FailsLater(Count):
        def reset(self, **kwargs: Any) -> Any:
            if self.t:
                raise RuntimeError("on purpose")
            return super().reset(**kwargs)

    vector = Vector([partial(FailsLater, 1), Count], mode)
    vector.reset()
    with pytest.raises(EnvError, match=r"^environment 0 failed in reset: RuntimeError: on purpose"):
        walk(vector, 2)
    assert vector.shard.unready.tolist() == [True, False]


@pytest.mark.parametrize("collecting", [False, True])
def test_environment_that_exits_is_an_error_of_that_environment(collecting: bool) -> None:
    class Exits(Count):
        def step(self, action: Any) -> Any:
            raise SystemExit(3)

    vector = Vector([Count, Exits])
    vector.reset()
    with pytest.raises(EnvError, match=r"^environment 1 failed in step .*: SystemExit: 3"):
        collect(vector.shard, 1) if collecting else vector.step([0, 0])


def test_error_shows_a_long_action_in_short() -> None:
    class Refuses(Count):
        action_space = spaces.Box(-1, 1, (5000,))

        def step(self, action: Any) -> Any:
            raise RuntimeError

    vector = Vector([Refuses])
    vector.reset()
    with pytest.raises(EnvError) as caught:
        vector.step(np.zeros((1, 5000)))
    assert caught.value.action is not None
    assert len(caught.value.action) <= 200


def test_error_names_the_id_of_a_registered_environment() -> None:
    env_fn = partial(gym.make, "CartPole-v1")
    vector = Vector([env_fn])
    vector.reset()
    with pytest.raises(
        EnvError, match=r"^environment 0 \(CartPole-v1\) failed in step with action np.int64\(7\)"
    ):
        vector.step([7])


@pytest.mark.parametrize("collecting", [False, True])
def test_wrong_observation_names_the_environment(collecting: bool) -> None:
    class Grows(Count):
        def _obs(self) -> np.ndarray:
            return np.zeros(1 + self.t, np.float32)

    shard = Shard([Count, Grows], first_env=8, autoreset_mode=NEXT_STEP)
    shard.reset()
    what = r"^observation of environment 9 is float32 of shape \(2,\); expected float32 of shape \(1,\)"
    with pytest.raises(SpaceError, match=what):
        collect(shard, 1) if collecting else shard.step([np.zeros(2, np.int64)])


def test_wrong_info_names_the_environment() -> None:
    class Silent(Count):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], None

    with pytest.raises(EnvError, match=r"^info of environment 1 is None; expected a dict"):
        Vector([Count, Silent]).reset()


def test_environments_with_different_spaces_are_refused_and_closed() -> None:
    closed: list[str] = []

    class Closes(Count):
        def close(self) -> None:
            closed.append(type(self).__name__)

    class Acts(Closes):
        action_space = spaces.Discrete(3)

    class Sees(Closes):
        observation_space = spaces.Box(0, 1, (1,))

    with pytest.raises(
        SpaceError, match=r"action space of environment 6 is Discrete\(3\); expected Discrete\(2\)"
    ):
        Shard([Closes, Acts], first_env=5, autoreset_mode=NEXT_STEP)
    with pytest.raises(SpaceError, match=r"observation space of environment 6 is Box"):
        Shard([Closes, Sees], first_env=5, autoreset_mode=NEXT_STEP)
    assert closed == ["Closes", "Acts", "Closes", "Sees"]


def test_environments_built_before_one_that_fails_are_closed() -> None:
    closed: list[int] = []

    class Closes(Count):
        def close(self) -> None:
            closed.append(self.n)

    with pytest.raises(EnvError, match="environment 2 could not be made"):
        Shard(
            [partial(Closes, 1), partial(Closes, 2), partial(Fails, "init")],
            first_env=0,
            autoreset_mode=NEXT_STEP,
        )
    assert closed == [1, 2]


def test_callable_that_makes_no_environment_is_refused() -> None:
    with pytest.raises(EnvError, match=r"callable of environment 3 returned None; expected a gymnasium.Env"):
        Shard([lambda: None], first_env=3, autoreset_mode=NEXT_STEP)  # type: ignore[arg-type, return-value]


def test_shard_without_environments_is_refused() -> None:
    with pytest.raises(SpaceError, match="a shard has 0 environments; expected at least 1"):
        Shard([], first_env=0, autoreset_mode=NEXT_STEP)


@pytest.mark.parametrize("raised", [RuntimeError("on purpose"), SystemExit(3)], ids=repr)
def test_close_closes_all_even_if_one_raises_and_may_be_called_again(
    caplog: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    closed: list[int] = []

    class Closes(Count):
        def close(self) -> None:
            if self.n == 1:
                raise raised
            closed.append(self.n)

    shard = Shard([partial(Closes, 1), partial(Closes, 2)], first_env=3, autoreset_mode=NEXT_STEP)
    shard.close()
    shard.close()
    assert closed == [2]
    assert [record.getMessage() for record in caplog.records] == ["environment 3 raised in close"]


def test_infos_carry_global_indices_and_their_types() -> None:
    shard = Shard(
        [partial(Tells, [{"x": 1}]), Count, partial(Tells, [{"x": 2.7}])],
        first_env=5,
        autoreset_mode=NEXT_STEP,
    )
    (block,) = shard.reset().infos
    assert decode_infos(block) == [(5, {"x": 1}), (6, {"k": "reset"}), (7, {"x": 2.7})]
    assert batch_infos(decode_infos(block), 8)["x"][[5, 7]].tolist() == [1.0, 2.7]


def test_empty_infos_make_no_block() -> None:
    shard = Shard([partial(Tells, [{}], n=1)] * 2, first_env=0, autoreset_mode=SAME_STEP)
    assert shard.reset().infos == []
    batch = shard.step([np.zeros(2, np.int64)])
    assert (batch.infos, batch.final_infos) == ([], [])
    assert batch.final_index.tolist() == [0, 1]
