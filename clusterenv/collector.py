"""Steps of a fragment in which nothing of Python runs but the environments' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterenv import native
from clusterenv.adapters import Drawing
from clusterenv.env_calls import ENV_ERRORS
from clusterenv.in_place import has_large_rows
from clusterenv.layout import SpaceLayout
from clusterenv.recording import Recording
from clusterenv.runner_policy import RunnerPolicy
from clusterenv.shard import Shard

Array = NDArray[Any]
Ints = NDArray[np.int64]

MANY_ENVS: Final = 16
"""So many observations at once cost a convolution hardly more, each, than hundreds."""


def needs_rows_apart(policy: RunnerPolicy, layout: SpaceLayout) -> bool:
    """Whether steps may be made in C++, which writes observations with nobody else's rows in between."""
    return [leaf.dtype for leaf in layout.leaves] == [np.float32] and policy.drawing() is not None


def looks_once(layout: SpaceLayout, num_envs: int) -> bool:
    """Whether values are asked for with each action, and not after the last step, many at once.

    Large observations are in the processor's caches then, and copied for the agent already. But a network is
    slow on a few of them, and one over floats may be known, and acts by itself if it need not give values.
    """
    kinds = [leaf.dtype.kind for leaf in layout.leaves]
    return num_envs >= MANY_ENVS and has_large_rows(layout) and kinds != ["f"]


class Collector:
    """Fills a recording where the policy is one that draws alone, step after step, without coming back."""

    def __init__(
        self,
        shard: Shard,
        record: Recording,
        policy: RunnerPolicy,
        *,
        seed: int,
        env_ids: Ints,
        steps: Ints,
        singles: Callable[[Array], list[Any]],
        stop: NDArray[np.bool_],
    ) -> None:
        """Collect for `record`.

        Args:
            shard: whose environments step; all of them are ready.
            record: what is filled.
            policy: what acts.
            seed: of the noise.
            env_ids: [n].
            steps: [n] of the noise, which go up with each act.
            singles: makes the actions [n, ...] of a step the environments' single ones.
            stop: [1]; once it is set by any thread, `fill` returns before the next step.
        """
        self._shard = shard
        self._record = record
        self._policy = policy
        self._arguments = (seed, env_ids, steps, singles, stop)
        self._drawing: Drawing | None = None
        self._loop: native.Collector | None = None

    def advance(self, steps: int) -> bool:
        """Whether steps were made, so many at most, without asking the agent.

        Raises:
            EnvError: if an environment raises; it alone needs a reset.
        """
        drawing = self._policy.drawing()
        if drawing is None or not self._takes(drawing[0]):
            return False
        first = self._record.steps_done
        try:
            self._fill(first + min(steps, drawing[1]))
        finally:
            self._policy.adapter.has_drawn(self._record.steps_done - first)
        return self._record.steps_done > first

    def _takes(self, drawing: Drawing) -> bool:
        """Whether it can act with `drawing` from now on."""
        if drawing is not self._drawing:
            self._drawing, self._loop = drawing, None
            arrays = self._record.arrays_for(drawing)
            if arrays is not None and self._shard.copies_at_once:
                self._loop = native.Collector(self._shard.calls, drawing, *self._arguments, arrays)
        return self._loop is not None

    def _fill(self, until: int) -> None:
        """Go on up to step `until`, or up to one in which the policy must act itself."""
        assert self._loop is not None
        record, shard = self._record, self._shard
        step, row = record.steps_done, 0
        try:
            while step < until:
                step, row = self._loop.run(step, row, until)
                record.close_steps(step)
                if row == shard.num_envs:  # all have stepped, but not all of their observations are copied
                    shard.pack(record.obs_at(step + 1))
                    step, row = step + 1, 0
                elif row < 0:
                    return
                elif step < until:
                    record.end_episode(row, shard.end_episode(row))
                    row += 1
            record.close_steps(until)
        except ENV_ERRORS as error:
            record.close_steps(shard.step_in_work)
            raise shard.failure_in_step(error, self._loop.singles) from error
