"""A small network as a few calls of NumPy, found by watching the agent compute and checked against it.

Torch spends more on the dispatch of each operation than a small network's arithmetic takes for the rows of a
runner. Only what was seen from end to end is repeated: linear layers, activations, and arithmetic with what
does not depend on the observations. Where anything else is seen, the agent computes for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from torch import Tensor
from torch.distributions import Distribution

from clusterenv.adapters.base import Array, Floats, Nested
from clusterenv.adapters.reading import defining_tensors, to_array
from clusterenv.adapters.watching import Program, Watch
from clusterenv.distributions import Family, Kind

TOLERANCE = 1e-5
"""Difference, absolute and relative, up to which our numbers count as the agent's."""
CHECK_EVERY = 256
"""Acts after which the agent computes again and is compared."""
WORTH_IT = 32
"""Acts under one state after which it was worth it to watch the first of them."""
LARGEST = 1 << 17
"""Multiplications for one observation up to which torch's own cost is worth avoiding."""


class Fused:
    """The parameters and values of one agent, under one state: `forget` it when another is loaded."""

    def __init__(self, family: Family | None) -> None:
        """Know nothing yet; only distributions of `family` are repeated, none without."""
        self._family = family
        self._hopeless = family is None or family.kind is Kind.MULTI_CATEGORICAL
        self._watch: Watch | None = None
        self._acts = 0
        self._watch_at = 0
        self.used = False
        """Whether it stood in for the agent since the last `forget`."""
        self.forget()

    def forget(self) -> None:
        """The agent has changed: it must be watched again."""
        self._policy: Program | None = None
        self._log_std: Floats | None = None
        self._value: Program | None = None
        if self._acts:
            self._watch_at = 0 if self._acts >= WORTH_IT else WORTH_IT
        self._acts = 0
        self.used = False

    def params(self, obs: Nested) -> Floats | None:
        """Parameters [n, P] of the distributions at observations [n, ...]; None: the agent must compute."""
        self._acts += 1
        if self._policy is None or self._acts > self._watch_at:
            return None
        self.used = True
        return self._policy_params(obs)

    def values(self, obs: Nested) -> Floats | None:
        """Values [n]; None: the agent must compute."""
        return None if self._value is None else self._value(obs)[:, 0]

    def watching(self, inputs: Nested) -> AbstractContextManager[object]:
        """Around a call of the agent that `params` has left to it."""
        due = not self._hopeless and self._acts > self._watch_at
        self._watch = Watch(inputs) if due and isinstance(inputs, Tensor) and len(inputs) else None
        return self._watch or nullcontext()

    @contextlib.contextmanager
    def not_watching(self) -> Iterator[None]:
        """Around what is ours inside such a call."""
        if self._watch is None:
            yield
            return
        with self._watch.paused():
            yield

    def learn(
        self, obs: Nested, params: Floats | None, distribution: Distribution | None, value: object = None
    ) -> None:
        """Remember how the call just watched came to its parameters and value, if that can be repeated."""
        watch, self._watch = self._watch, None
        if watch is None:
            return
        self._policy = self._log_std = self._value = None
        self._watch_at = self._acts + CHECK_EVERY
        if params is None or distribution is None or watch.shape != obs.shape:
            return
        if not (self._find(watch, distribution, value) and self._agrees(obs, params, value)):
            self._policy = self._value = None

    def _find(self, watch: Watch, distribution: Distribution, value: object) -> bool:
        assert self._family is not None
        tensors = defining_tensors(distribution)
        self._policy = watch.program_of(tensors[0])
        if self._policy is None or self._policy.cost > LARGEST:
            return False
        if self._family.kind is Kind.DIAG_GAUSSIAN:
            scale = watch.constant_row(tensors[1])
            if scale is None:
                return False
            self._log_std = np.log(scale)
        if isinstance(value, Tensor):
            self._value = watch.program_of(value)
            if self._value is not None and (self._value.cost > LARGEST or self._value.width != 1):
                self._value = None
        return True

    def _agrees(self, obs: Nested, params: Floats, value: object) -> bool:
        ours, theirs = self._policy_params(obs), params
        if self._family is not None and self._family.kind is Kind.CATEGORICAL:  # logits up to a constant
            ours, theirs = ours - ours.max(1, keepdims=True), theirs - theirs.max(1, keepdims=True)
        if not _close(ours, theirs):
            return False
        return self._value is None or _close(self._value(obs)[:, 0], to_array(value).reshape(-1))

    def _policy_params(self, obs: Nested) -> Floats:
        assert self._policy is not None
        outputs = self._policy(obs)
        if self._log_std is None:
            return outputs
        rows, size = outputs.shape
        params = np.empty((rows, 2 * size), np.float32)
        params[:, :size] = outputs
        params[:, size:] = self._log_std
        return params


def _close(ours: Array, theirs: Array) -> bool:
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE))
