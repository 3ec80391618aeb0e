"""Rows of a step as the caller gets them: Gymnasium's five values for some environments, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.batches import StepBatch
from clusterenv.errors import ProtocolError
from clusterenv.infos import batch_infos, decode_infos
from clusterenv.layout import Nested, SpaceLayout

Array = NDArray[Any]
Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]
"""Global numbers of environments."""
Info = tuple[int, dict[str, Any]]
"""Global number of an environment, and what it told."""
StepReturn = tuple[Nested, NDArray[np.float64], Flags, Flags, dict[str, Any]]


@dataclass(slots=True)
class Rows:
    """What a step gave in k environments of one worker."""

    ids: Ids  # [k] ascending where they come from one worker
    obs: list[Array]  # leaves [k, ...]
    rewards: NDArray[np.float64]
    terminations: Flags
    truncations: Flags
    infos: list[Info]
    final_obs: dict[int, Any]  # single observations by global number
    final_infos: list[Info]
    valid: bool = True
    """Whether they were stepped or reset by the caller."""
    lost: bool = False
    """Whether their worker was lost instead."""
    failed: frozenset[int] = frozenset()
    """Global numbers of those whose step was lost, since they raised and were built anew."""

    @classmethod
    def of(cls, batch: StepBatch, ids: Ids, layout: SpaceLayout) -> Rows:
        """The rows of a worker's step; `ids` are those of its environments that stepped.

        Raises:
            ProtocolError: if it tells of others.
        """
        failed = frozenset(batch.lost)
        if not failed.issubset(ids.tolist()):
            raise ProtocolError(f"lost steps of environments {sorted(failed)}, not all of which stepped")
        ended = ids[batch.final_index].tolist()
        copies = [leaf.copy() for leaf in batch.final_obs]
        return cls(
            ids=ids,
            obs=batch.obs,
            rewards=batch.rewards,
            terminations=batch.terminations,
            truncations=batch.truncations,
            infos=own_infos(batch.infos, ids),
            final_obs=dict(zip(ended, layout.singles(copies, len(ended)), strict=True)) if ended else {},
            final_infos=own_infos(batch.final_infos, ids),
            failed=failed,
        )

    @classmethod
    def without_step(
        cls,
        ids: Ids,
        obs: list[Array],
        *,
        lost: bool = False,
        infos: Sequence[Info] = (),
        valid: bool = False,
    ) -> Rows:
        """Rows in which nothing happened but a reset, or with `lost` the end of every episode."""
        count = len(ids)
        return cls(
            ids=ids,
            obs=obs,
            rewards=np.zeros(count, np.float64),
            terminations=np.zeros(count, np.bool_),
            truncations=np.full(count, lost, np.bool_),
            infos=list(infos),
            final_obs={},
            final_infos=[],
            valid=valid,
            lost=lost,
        )

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.ids)

    def cut(self, count: int) -> tuple[Rows, Rows]:
        """The first `count` rows, and the others."""
        return self._part(slice(0, count)), self._part(slice(count, None))

    def _part(self, rows: slice) -> Rows:
        own = set(self.ids[rows].tolist())
        return Rows(
            ids=self.ids[rows],
            obs=[leaf[rows] for leaf in self.obs],
            rewards=self.rewards[rows],
            terminations=self.terminations[rows],
            truncations=self.truncations[rows],
            infos=[row for row in self.infos if row[0] in own],
            final_obs={env: obs for env, obs in self.final_obs.items() if env in own},
            final_infos=[row for row in self.final_infos if row[0] in own],
            valid=self.valid,
            lost=self.lost,
            failed=self.failed & own,
        )


def gymnasium_step(parts: Sequence[Rows], layout: SpaceLayout) -> StepReturn:
    """obs, reward, terminated, truncated, info of all rows, part after part; all arrays are new."""
    infos: dict[str, Any] = {}
    if any(part.infos or part.final_obs for part in parts):
        place = {env: row for row, env in enumerate(env for part in parts for env in part.ids.tolist())}
        infos = _batched((row for part in parts for row in part.infos), place) | _finals(parts, place)
    if not all(part.valid and not part.failed for part in parts):
        infos |= _who_is_missing(parts)
    return (
        joined_obs([part.obs for part in parts], layout),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.terminations for part in parts]),
        np.concatenate([part.truncations for part in parts]),
        infos,
    )


def joined_obs(parts: Sequence[Sequence[Array]], layout: SpaceLayout) -> Nested:
    """Leaves [n, ...] of several workers as one new batch, nested as Gymnasium nests it."""
    return layout.nest([np.concatenate(leaves) for leaves in zip(*parts, strict=True)], tuples=True)


def decoded(blocks: Iterable[bytes]) -> list[Info]:
    """The infos of all blocks."""
    return [row for block in blocks for row in decode_infos(block)]


def own_infos(blocks: Iterable[bytes], ids: Ids) -> list[Info]:
    """The infos of all blocks, each of an environment of `ids`.

    Raises:
        ProtocolError: if a block cannot be read, or speaks of another environment.
    """
    infos = decoded(blocks)
    strange = {env for env, _ in infos}.difference(ids.tolist()) if infos else None
    if strange:
        raise ProtocolError(f"infos of environment {min(strange)}, which was not asked")
    return infos


def _batched(infos: Iterable[Info], place: dict[int, int]) -> dict[str, Any]:
    """Infos batched in the order of rows; one for an environment that has no row is refused there."""
    placed = sorted(((place.get(env, -1), info) for env, info in infos), key=lambda row: row[0])
    return batch_infos(placed, len(place))


def _who_is_missing(parts: Sequence[Rows]) -> dict[str, Any]:
    """`valid` and `worker_lost` of every row."""
    counts = [len(part) for part in parts]
    everyone = np.ones(sum(counts), np.bool_)
    valid = [part.valid and env not in part.failed for part in parts for env in part.ids.tolist()]
    return {
        "valid": np.array(valid, np.bool_),
        "_valid": everyone,
        "worker_lost": np.repeat([part.lost for part in parts], counts),
        "_worker_lost": everyone.copy(),
    }


def _finals(parts: Sequence[Rows], place: dict[int, int]) -> dict[str, Any]:
    """`final_obs` and `final_info` of the rows that ended and were reset in the same step."""
    if not any(part.final_obs for part in parts):
        return {}
    final_obs = np.full(len(place), None, dtype=object)
    ended = np.zeros(len(place), np.bool_)
    for part in parts:
        for env, obs in part.final_obs.items():
            final_obs[place[env]] = obs
            ended[place[env]] = True
    final_info = _batched((row for part in parts for row in part.final_infos), place)
    finals: dict[str, Any] = {"final_obs": final_obs, "_final_obs": ended}
    return finals | {"final_info": final_info, "_final_info": ended.copy()}
