from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.batches import EpisodeRecord, Fragment, StepBatch, unmoved_step
from clusterenv.commands import (
    Abandoned,
    Act,
    Call,
    CallBatch,
    Done,
    Reset,
    RunnerReady,
    RunnerSetup,
    SetAttr,
    Step,
)
from clusterenv.errors import SpaceError
from clusterenv.layout import SpaceLayout
from clusterenv.slices import contiguous, merge, merge_ready, split, split_setup
from tests.envs import Count

counts_and_parts = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(counts_and_parts)
def test_slices_are_neighbours_of_nearly_equal_size(case: tuple[int, int]) -> None:
    count, parts = case
    slices = contiguous(count, parts)
    rows = [row for part in slices for row in range(count)[part]]
    sizes = [part.stop - part.start for part in slices]
    assert rows == list(range(count))
    assert len(slices) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(counts_and_parts, st.integers(0, 2**32))
def test_merging_the_slices_of_a_fragment_gives_the_fragment(case: tuple[int, int], seed: int) -> None:
    count, parts = case
    whole = _fragment(np.random.default_rng(seed), count)
    slices = contiguous(count, parts)

    merged = merge([_part(whole, rows) for rows in slices], slices)

    assert isinstance(merged, Fragment)
    assert all(np.array_equal(a, b) for a, b in zip(whole.frames(), merged.frames(), strict=True))
    assert np.array_equal(whole.params, merged.params)
    assert merged.episodes == whole.episodes


def test_versions_of_fragments_are_told_row_by_row_where_they_differ() -> None:
    slices = contiguous(3, 2)
    parts = [_fragment(np.random.default_rng(0), rows.stop - rows.start) for rows in slices]
    for part, version in zip(parts, (3, 4), strict=True):
        part.policy_version = version
    merged = merge(parts, slices)
    assert isinstance(merged, Fragment)
    assert merged.policy_version == 4
    assert merged.versions is not None
    assert merged.versions.tolist() == [[3, 3, 4]] * 5
    assert merged.comparable.tolist() == (merged.valid & [False, False, True]).tolist()


def test_fragment_that_one_runner_gave_up_is_given_up() -> None:
    slices = contiguous(3, 2)
    assert merge([_fragment(np.random.default_rng(0), 2), Abandoned()], slices) == Abandoned()


def test_fragments_of_which_one_has_no_parameters_have_none_together() -> None:
    whole = _fragment(np.random.default_rng(0), 4)
    slices = contiguous(4, 2)
    parts = [_part(whole, rows) for rows in slices]
    parts[1].params = None
    assert merge(parts, slices).params is None


def test_setup_is_dealt_with_the_blobs_that_each_runner_needs() -> None:
    whole = _setup(env_blobs=[b"a", b"b", b"c"], env_blob_of=[0, 0, 2, 1, 2], num_envs=5, first_env=10)
    first, second = split_setup(whole, contiguous(5, 2))
    assert (first.first_env, first.num_envs) == (10, 3)
    assert [first.env_blobs[blob] for blob in first.env_blob_of] == [b"a", b"a", b"c"]
    assert (second.first_env, second.num_envs) == (13, 2)
    assert [second.env_blobs[blob] for blob in second.env_blob_of] == [b"b", b"c"]
    assert len(first.env_blobs) == len(second.env_blobs) == 2


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (None, [None, None, None]),
        ([4, 5, 6], [[4], [5], [6]]),
        ([0, 1, 2, 3, 4], [[0, 1], [2, 3], [4]]),
        ([2, 9], [[2], [9], [2]]),
    ],
)
def test_cores_are_shared_out(cpus: list[int] | None, expected: list[list[int] | None]) -> None:
    setup = _setup(env_blobs=[b""], env_blob_of=[0] * 3, num_envs=3, cpus=cpus)
    assert [part.cpus for part in split_setup(setup, contiguous(3, 3))] == expected


def test_commands_are_split_by_rows() -> None:
    slices = contiguous(3, 2)
    reset = Reset(seeds=[1, None, 3], options=b"o", mask=np.array([True, False, True]), noise_seed=9)
    first, second = split(reset, slices)
    assert (first.seeds, first.options, first.mask.tolist(), first.noise_seed) == ([1, None], b"o", [1, 0], 9)
    assert (second.seeds, second.mask.tolist()) == ([3], [1])
    steps = split(Step(actions=[np.arange(3), np.ones((3, 2))]), slices)
    assert [leaf.shape for step in steps for leaf in step.actions] == [(2,), (2, 2), (1,), (1, 2)]
    assert split(Act(), slices) == [Act(), Act()]
    assert merge([Done(), Done()], slices) == Done()


def test_commands_for_some_rows_are_split_by_them() -> None:
    slices, mask = contiguous(5, 2), np.array([True, False, True, False, True])
    first, second = split(Step(actions=[np.array([7, 8, 9])], mask=mask), slices)
    assert (first.actions[0].tolist(), first.mask.tolist()) == ([7, 8], [True, False, True])
    assert (second.actions[0].tolist(), second.mask.tolist()) == ([9], [False, True])
    one, other = split(SetAttr(name="a", values=[b"x", b"y", b"z"], mask=mask), slices)
    assert (one.values, other.values) == ([b"x", b"y"], [b"z"])
    one, other = split(SetAttr(name="a", values=[b"x"], mask=None), slices)
    assert (one.values, other.values, other.mask) == ([b"x"], [b"x"], None)
    one, other = split(Call(name="a", arguments=b"", mask=~mask), slices)
    assert (one.mask.tolist(), other.mask.tolist()) == ([False, True, False], [True, False])
    assert merge([CallBatch(results=[b"1"]), CallBatch(results=[])], slices) == CallBatch(results=[b"1"])


def test_steps_of_some_rows_are_merged_by_their_places() -> None:
    def part(rows: int, final: list[int]) -> StepBatch:
        batch = unmoved_step(rows)
        batch.obs = [np.zeros((rows, 2))]
        batch.final_index = np.array(final, np.int64)
        batch.final_obs = [np.zeros((len(final), 2))]
        return batch

    merged = merge([part(2, [1]), part(0, []), part(3, [0, 2])], contiguous(9, 3))
    assert isinstance(merged, StepBatch)
    assert merged.final_index.tolist() == [1, 2, 4]
    assert merged.obs[0].shape == (5, 2)


def test_runners_with_other_spaces_are_refused() -> None:
    layout = SpaceLayout.of(Count.action_space)
    facts = {"action_digest": "a", "action_layout": layout, "obs_layout": layout, "env_id": None}
    ready = [RunnerReady(obs_digest=d, **facts) for d in "xxy"]
    slices = contiguous(7, 3)
    assert merge_ready(ready[:2], slices[:2]) is ready[0]
    with pytest.raises(SpaceError, match="environments 5 to 6"):
        merge_ready(ready, slices)


def _setup(**facts: object) -> RunnerSetup:
    others = {"first_env": 0, "noise_seed": 0, "autoreset_mode": "NextStep", "sys_path": [], "cpus": None}
    return RunnerSetup(**(others | {"step_timeout_s": 1.0} | facts))


def _fragment(rng: np.random.Generator, envs: int, steps: int = 5) -> Fragment:
    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    ended = rng.random((steps, envs)) < 0.3
    index = np.argwhere(ended)
    return Fragment(
        obs=[numbers(steps, envs, 2), numbers(steps, envs)],
        actions=[numbers(steps, envs, 3)],
        rewards=numbers(steps, envs),
        terminations=ended,
        truncations=~ended,
        log_probs=numbers(steps, envs),
        values=numbers(steps, envs),
        valid=np.ones_like(ended),
        last_obs=[numbers(envs, 2), numbers(envs)],
        last_values=numbers(envs),
        final_index=index,
        final_obs=[numbers(len(index), 2), numbers(len(index))],
        final_values=numbers(len(index)),
        policy_version=3,
        episodes=[EpisodeRecord(env_id=int(row), episode_return=float(t), length=int(t)) for t, row in index],
        params=numbers(steps, envs, 4),
    )


def _part(whole: Fragment, rows: slice) -> Fragment:
    """What the runner with `rows` would have sent."""
    mine = (whole.final_index[:, 1] >= rows.start) & (whole.final_index[:, 1] < rows.stop)
    return Fragment(
        obs=[leaf[:, rows] for leaf in whole.obs],
        actions=[leaf[:, rows] for leaf in whole.actions],
        rewards=whole.rewards[:, rows],
        terminations=whole.terminations[:, rows],
        truncations=whole.truncations[:, rows],
        log_probs=whole.log_probs[:, rows],
        values=whole.values[:, rows],
        valid=whole.valid[:, rows],
        last_obs=[leaf[rows] for leaf in whole.last_obs],
        last_values=whole.last_values[rows],
        final_index=whole.final_index[mine] - [0, rows.start],
        final_obs=[leaf[mine] for leaf in whole.final_obs],
        final_values=whole.final_values[mine],
        policy_version=3,
        episodes=[episode for episode, kept in zip(whole.episodes, mine, strict=True) if kept],
        params=None if whole.params is None else whole.params[:, rows],
    )
