"""What the newest policy says on the samples of the workers: what they compare their own with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.adapters import AgentAdapter
from clusterenv.distributions import Family
from clusterenv.layout import SpaceLayout
from clusterenv.transport import messages as m

Array = NDArray[Any]
References = Mapping[int, tuple[m.Reference, Array]]
"""For the worker of a rank, and the frame that belongs to it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """States of one worker that both sides can name."""

    number: int
    obs: list[Array]
    """Leaves [rows, ...] of what was seen there."""
    actions: list[Array]
    """Leaves [rows, ...] of what was done there; none where nothing was done yet."""
    env_ids: Array
    """[rows]"""
    state: list[Array]
    """Leaves [rows, ...] of what a recurrent agent remembered."""
    kept: bool = True
    """Whether the worker has kept what its policy said there; else they are its present observations."""


def evaluated(
    adapter: AgentAdapter,
    layouts: tuple[SpaceLayout, SpaceLayout],
    samples: Mapping[int, Sample],
    taken: Mapping[int, Sample],
) -> References:
    """What the agent says on all samples, in one batch; nothing if it cannot be compared.

    θ_v on `samples` where the agent has a closed form; else log π_v of what was done in `taken`.

    Args:
        adapter: of the learner's agent.
        layouts: of one environment's observations and actions.
        samples: by rank.
        taken: by rank, with actions.
    """
    obs_layout, action_layout = layouts
    if samples:
        theta = adapter.parameters(**_states(samples, obs_layout))
        if theta is not None:
            return _dealt(samples, theta, adapter.family)
    if not taken:
        return {}
    actions = action_layout.nest(joined([sample.actions for sample in taken.values()]))
    log_probs = adapter.evaluate(actions=actions, **_states(taken, obs_layout)).log_probs
    return {} if np.isnan(log_probs).all() else _dealt(taken, log_probs, None)


def _states(samples: Mapping[int, Sample], layout: SpaceLayout) -> dict[str, Any]:
    """What the agent is told of all rows."""
    return {
        "obs": layout.nest(joined([sample.obs for sample in samples.values()])),
        "env_ids": np.concatenate([sample.env_ids for sample in samples.values()]),
        "state": joined([sample.state for sample in samples.values()]),
    }


def _dealt(samples: Mapping[int, Sample], said: Array, family: Family | None) -> References:
    """To each worker its part of `said` [all rows, ...]."""
    references: dict[int, tuple[m.Reference, Array]] = {}
    start = 0
    for rank, sample in samples.items():
        rows = len(sample.env_ids)
        reference = m.Reference(
            sample=sample.number,
            kept=sample.kept,
            rows=rows,
            family=None if family is None else family.kind.value,
            family_sizes=[] if family is None else list(family.sizes),
        )
        references[rank] = (reference, np.ascontiguousarray(said[start : start + rows], dtype=np.float32))
        start += rows
    return references


def joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Leaves [n, ...] of several workers, one after the other; always new arrays."""
    return [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
