"""One command for several runners, and their replies as one: runner r has the environments of slice r."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterenv.batches import ActBatch, Fragment, ResetBatch, StepBatch
from clusterenv.commands import (
    Abandoned,
    BatchMapped,
    Call,
    CallBatch,
    Command,
    Done,
    EvaluateBatch,
    Reply,
    Reset,
    RunnerReady,
    RunnerSetup,
    SetAttr,
    Step,
)
from clusterenv.errors import SpaceError
from clusterenv.sources import EnvSource

Array = NDArray[Any]
M = TypeVar("M")


def contiguous(count: int, parts: int) -> list[slice]:
    """`count` things in `parts` neighbouring slices, of which the first ones have one more."""
    small, larger = divmod(count, parts)
    starts = [part * small + min(part, larger) for part in range(parts + 1)]
    return [slice(*bounds) for bounds in itertools.pairwise(starts)]


def split_setup(setup: RunnerSetup, slices: Sequence[slice]) -> list[RunnerSetup]:
    """What each runner has to build, with its share of the cores."""
    return [
        dataclasses.replace(
            _dealt(setup, rows),
            cpus=_share(setup.cpus, runner, len(slices)) if setup.cpus else None,
        )
        for runner, rows in enumerate(slices)
    ]


def split(command: Command, slices: Sequence[slice]) -> list[Command]:
    """The command for each runner."""
    if isinstance(command, Reset):
        return [
            dataclasses.replace(
                command,
                seeds=command.seeds[rows],
                mask=_cut(command.mask, rows),
            )
            for rows in slices
        ]
    if isinstance(command, Step):
        return [
            Step(actions=[leaf[part] for leaf in command.actions], mask=_cut(command.mask, rows))
            for rows, part in zip(slices, _parts(command.mask, slices), strict=True)
        ]
    if isinstance(command, Call):
        return [dataclasses.replace(command, mask=_cut(command.mask, rows)) for rows in slices]
    if isinstance(command, SetAttr):
        one_for_all = len(command.values) == 1
        return [
            dataclasses.replace(
                command,
                values=command.values if one_for_all else command.values[part],
                mask=_cut(command.mask, rows),
            )
            for rows, part in zip(slices, _parts(command.mask, slices), strict=True)
        ]
    return [command] * len(slices)


def _cut(mask: Array | None, rows: slice) -> Array | None:
    return None if mask is None else mask[rows]


def _parts(mask: Array | None, slices: Sequence[slice]) -> list[slice]:
    """Where the rows of each slice are among the rows that the mask selects."""
    if mask is None:
        return list(slices)
    ends = [0, *np.cumsum([int(mask[rows].sum()) for rows in slices]).tolist()]
    return [slice(*bounds) for bounds in itertools.pairwise(ends)]


def merge(replies: Sequence[Reply], slices: Sequence[slice]) -> Reply:
    """The replies of all runners, none of them a failure, as that of one runner with all environments."""
    first = replies[0]
    if len(replies) == 1 or isinstance(first, Done):
        return first
    abandoned = next((reply for reply in replies if isinstance(reply, Abandoned)), None)
    if abandoned is not None:
        return abandoned  # what other runners have finished belongs to a fragment that is not whole
    if isinstance(first, BatchMapped):
        return BatchMapped(all(reply.yes for reply in _all(replies, BatchMapped)))
    if isinstance(first, ResetBatch):
        return _merge_resets(_all(replies, ResetBatch))
    if isinstance(first, StepBatch):
        return _merge_steps(_all(replies, StepBatch))
    if isinstance(first, CallBatch):
        return CallBatch(results=[result for b in _all(replies, CallBatch) for result in b.results])
    if isinstance(first, ActBatch):
        return _merge_acts(_all(replies, ActBatch))
    if isinstance(first, EvaluateBatch):
        batches = _all(replies, EvaluateBatch)
        return EvaluateBatch(params=_params([b.params for b in batches], axis=0), family=first.family)
    return _merge_fragments(_all(replies, Fragment), [rows.start for rows in slices])


def merge_ready(ready: Sequence[RunnerReady], slices: Sequence[slice]) -> RunnerReady:
    """What all runners agree on.

    Raises:
        SpaceError: if their environments have different spaces.
    """
    for other, rows in zip(ready, slices, strict=True):
        if (other.obs_digest, other.action_digest) != (ready[0].obs_digest, ready[0].action_digest):
            raise SpaceError(
                f"the spaces of environments {rows.start} to {rows.stop - 1} of this worker differ from "
                "those of its first; expected equal spaces"
            )
    return ready[0]


def _dealt(setup: RunnerSetup, rows: slice) -> RunnerSetup:
    """The part of `setup` for some rows, with only the blobs that they use."""
    count = rows.stop - rows.start
    source = EnvSource(blobs=setup.env_blobs, blob_of=setup.env_blob_of)
    blobs, blob_of = source.part(rows.start, count)
    return dataclasses.replace(
        setup,
        first_env=setup.first_env + rows.start,
        num_envs=count,
        env_blobs=blobs,
        env_blob_of=blob_of,
    )


def _share(cpus: Sequence[int], runner: int, runners: int) -> list[int]:
    if runners > len(cpus):
        return [cpus[runner % len(cpus)]]
    return list(cpus[contiguous(len(cpus), runners)[runner]])


def _all(replies: Sequence[Reply], kind: type[M]) -> list[M]:
    assert all(isinstance(reply, kind) for reply in replies)
    return list(replies)  # type: ignore[arg-type]  # just checked


def _merge_resets(batches: Sequence[ResetBatch]) -> ResetBatch:
    return ResetBatch(
        obs=_leaves([b.obs for b in batches]),
        infos=[i for b in batches for i in b.infos],
        rebuilt=[env for b in batches for env in b.rebuilt],
        ended=[env for b in batches for env in b.ended],
    )


def _merge_steps(batches: Sequence[StepBatch]) -> StepBatch:
    starts = [0, *itertools.accumulate(len(b.rewards) for b in batches)][:-1]
    return StepBatch(
        obs=_leaves([b.obs for b in batches]),
        rewards=np.concatenate([b.rewards for b in batches]),
        terminations=np.concatenate([b.terminations for b in batches]),
        truncations=np.concatenate([b.truncations for b in batches]),
        final_index=np.concatenate([b.final_index + s for b, s in zip(batches, starts, strict=True)]),
        final_obs=_leaves([b.final_obs for b in batches]),
        infos=[info for b in batches for info in b.infos],
        final_infos=[info for b in batches for info in b.final_infos],
        rebuilt=[env for b in batches for env in b.rebuilt],
        lost=[env for b in batches for env in b.lost],
    )


def _merge_acts(batches: Sequence[ActBatch]) -> ActBatch:
    return ActBatch(
        step=_merge_steps([b.step for b in batches]),
        actions=_leaves([b.actions for b in batches]),
        log_probs=np.concatenate([b.log_probs for b in batches]),
        values=np.concatenate([b.values for b in batches]),
        policy_version=batches[0].policy_version,
        params=_params([b.params for b in batches], axis=0),
        family=batches[0].family,
        state=_leaves([b.state for b in batches]),
    )


def _merge_fragments(fragments: Sequence[Fragment], starts: Sequence[int]) -> Fragment:
    """Side by side; ended rows by time, then environment, as one runner would have met them."""

    def beside(name: str) -> Array:
        return np.concatenate([getattr(f, name) for f in fragments], axis=1)

    index = np.concatenate([f.final_index + np.array([0, s]) for f, s in zip(fragments, starts, strict=True)])
    order = np.lexsort((index[:, 1], index[:, 0]))
    episodes = [episode for f in fragments for episode in f.episodes]
    return Fragment(
        obs=_leaves([f.obs for f in fragments], axis=1),
        actions=_leaves([f.actions for f in fragments], axis=1),
        rewards=beside("rewards"),
        terminations=beside("terminations"),
        truncations=beside("truncations"),
        log_probs=beside("log_probs"),
        values=beside("values"),
        valid=beside("valid"),
        last_obs=_leaves([f.last_obs for f in fragments]),
        last_values=np.concatenate([f.last_values for f in fragments]),
        final_index=index[order],
        final_obs=[leaf[order] for leaf in _leaves([f.final_obs for f in fragments])],
        final_values=np.concatenate([f.final_values for f in fragments])[order],
        policy_version=max(f.policy_version for f in fragments),
        versions=_versions(fragments),
        episodes=[episodes[i] for i in order],  # one for each ended row
        params=_params([f.params for f in fragments], axis=1),
        family=fragments[0].family,
        initial_state=_leaves([f.initial_state for f in fragments]),
        states=_leaves([f.states for f in fragments], axis=1),
        in_place=fragments[0].in_place,
        rebuilt=[env for f in fragments for env in f.rebuilt],
    )


def _versions(fragments: Sequence[Fragment]) -> NDArray[np.int64] | None:
    """Those that acted in each row [T, n], if there were several."""
    if len({f.policy_version for f in fragments}) == 1 and all(f.versions is None for f in fragments):
        return None
    columns = [
        np.full(f.rewards.shape, f.policy_version, np.int64) if f.versions is None else f.versions
        for f in fragments
    ]
    return np.concatenate(columns, axis=1)


def _leaves(parts: Sequence[Sequence[Array]], axis: int = 0) -> list[Array]:
    return [np.concatenate(leaves, axis=axis) for leaves in zip(*parts, strict=True)]


def _params(parts: Sequence[Array | None], axis: int) -> Array | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known, axis=axis) if len(known) == len(parts) else None
