"""A small network computed without torch, found by watching the agent compute and checked against it.

Torch spends more on the dispatch of each operation than a small network's arithmetic takes for the rows of a
runner. Only what was seen from end to end is repeated: linear layers, LayerNorm, activations, residual sums,
and arithmetic with what does not depend on the observations. Where anything else is seen, the agent computes
for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from torch import Tensor
from torch.distributions import Distribution

from clusterenv.adapters.actions import ActionTerms
from clusterenv.adapters.base import Array, Drawing, Floats, Nested
from clusterenv.adapters.program import Program
from clusterenv.adapters.reading import defining_tensors, to_array
from clusterenv.adapters.watching import Watch
from clusterenv.distributions import Family, Kind

TOLERANCE = 1e-5
"""Difference, absolute and relative, up to which our numbers count as the agent's."""
CHECK_EVERY = 256
"""Acts after which the agent computes again and is compared."""
WATCH_FROM = 3
"""Acts under one state before one is watched, which is not worth it for a state of a step or two.

The next is the agent's too, and what was found must give its numbers, but for the tolerance: an agent that
counts, or draws at random by other ways than torch's, gives others.

Nothing from before the state counts, so that training that goes on from a milestone gives the same numbers.
"""
REPEATED = (Kind.CATEGORICAL, Kind.BERNOULLI, Kind.DIAG_GAUSSIAN)
LARGEST = 1 << 17
"""Multiplications for one observation up to which torch's own cost is worth avoiding."""


class Fused:
    """The parameters and values of one agent, under one state: `forget` it when another is loaded."""

    def __init__(self, *, watch: bool) -> None:
        """Know nothing yet, and without `watch` never more."""
        self._may_watch = watch
        self._watch: Watch | None = None
        self._acts = 0
        self._watch_at = WATCH_FROM
        self.used = False
        """Whether it stood in for the agent since the last `forget`."""
        self.forget()

    def forget(self) -> None:
        """The agent has changed: it must be watched again."""
        self._family: Family | None = None
        self._tried: Family | None = None
        """That of a program which has to give the numbers of the agent's next act to be used."""
        self._policy: Program | None = None
        self._log_std: Floats | None = None
        self._drawing: Drawing | None = None
        self._value: Program | None = None
        self._tried_value: Program | None = None
        """What has to give the agent's next values to be used."""
        self._value_due = True
        """Whether the agent is asked for its next values, and watched."""
        self._watch_at = WATCH_FROM
        self._acts = 0
        self.used = False

    def act(self, obs: Nested, *, with_values: bool) -> tuple[Family, Floats, Floats | None] | None:
        """Family, parameters [n, P] and values [n] at observations [n, ...]; None: the agent must compute.

        Without `with_values` there are no values.
        """
        self._acts += 1
        if self._family is None or self._acts > self._watch_at or (with_values and not self._knows_values):
            return None
        self.used = True
        return self._family, self._policy_params(obs), self.values(obs) if with_values else None

    def drawing(self, terms: ActionTerms) -> tuple[Drawing, int] | None:
        """What draws actions in the terms of the environments, and how many acts it may stand in for."""
        left = self._watch_at - self._acts
        if self._family is None or self._policy is None or left <= 0 or self._policy.places is not None:
            return None
        if self._drawing is None and terms.dtype == self._family.action_dtype:
            kind, start = self._family.kind.value, terms.start
            self._drawing = Drawing(self._policy.network, kind, self._log_std, start)
        return None if self._drawing is None else (self._drawing, left)

    def has_drawn(self, acts: int) -> None:
        """So many acts were made with `drawing`."""
        self._acts += acts
        self.used = True

    def values(self, obs: Nested) -> Floats | None:
        """Values [n]; None: the agent must compute."""
        if self._family is None or self._value is None or not self._knows_values:
            return None
        return self._value(obs)[:, 0]

    @property
    def _knows_values(self) -> bool:
        return self._value is not None and not self._value_due

    def watching_values(self, inputs: Nested) -> AbstractContextManager[object]:
        """Around a call of the agent's value function: the first after its policy was found, or checked."""
        due = self._may_watch and self._family is not None and self._value_due
        self._watch = Watch(inputs) if due and isinstance(inputs, Tensor) and len(inputs) else None
        return self._watch or nullcontext()

    def learn_values(self, obs: Nested, value: object) -> None:
        """Remember how the call just watched came to its values, if that can be repeated."""
        watch, self._watch = self._watch, None
        tried, self._tried_value = self._tried_value, None
        if watch is None:
            if tried is not None:
                self._value = tried if _gives(tried, obs, value) else None
            return
        known, self._value = self._value, None
        self._value_due = False
        if known is not None and _gives(known, obs, value):
            self._value = known
        elif watch.shape == obs.shape:
            self._tried_value = _values_program(watch, value, obs)

    def watching(self, inputs: Nested) -> AbstractContextManager[object]:
        """Around a call of the agent that `act` has left to it."""
        due = self._may_watch and self._acts > self._watch_at
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
        self,
        obs: Nested,
        family: Family | None,
        params: Floats | None,
        distribution: Distribution | None,
        value: object = None,
    ) -> None:
        """Remember how the call just watched came to its parameters and value, if that can be repeated."""
        watch, self._watch = self._watch, None
        if watch is None:
            tried, self._tried = self._tried, None
            if tried is not None and self._is_same(obs, tried, family, params, value):
                self._family = tried
            return
        holds = self._family is not None and self._is_same(obs, self._family, family, params, value)
        self._family = self._tried = self._policy = self._log_std = self._drawing = None
        self._value = self._value if holds else None
        self._tried_value, self._value_due = None, True
        self._watch_at = self._acts + CHECK_EVERY
        if family is None or params is None or distribution is None or watch.shape != obs.shape:
            return
        if family.kind in REPEATED and self._find(watch, distribution):
            if isinstance(value, Tensor):
                self._value, self._value_due = _values_program(watch, value, obs), False
            self._tried = family if self._agrees(obs, family, params) else None
            if holds:
                self._family, self._tried = self._tried, None

    def _find(self, watch: Watch, distribution: Distribution) -> bool:
        tensors = defining_tensors(distribution)
        self._policy = watch.program_of(tensors[0])
        if self._policy is None or self._policy.cost > LARGEST:
            return False
        if len(tensors) > 1:
            scale = watch.constant_row(tensors[1])
            if scale is None:
                return False
            self._log_std = np.log(scale)
        return True

    def _is_same(
        self, obs: Nested, known: Family, family: Family | None, params: Floats | None, value: object
    ) -> bool:
        """Whether the program of the family `known` gives what the agent gave."""
        if family != known or params is None or not self._agrees(obs, known, params):
            return False
        return self._value is None or value is None or _gives(self._value, obs, value)

    def _agrees(self, obs: Nested, family: Family, params: Floats) -> bool:
        ours, theirs = self._policy_params(obs), params
        if family.kind is Kind.CATEGORICAL:  # logits up to a constant
            ours, theirs = ours - ours.max(1, keepdims=True), theirs - theirs.max(1, keepdims=True)
        return _close(ours, theirs)

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


def _values_program(watch: Watch, value: object, obs: Nested) -> Program | None:
    program = watch.program_of(value) if isinstance(value, Tensor) else None
    fits = program is not None and program.width == 1 and program.cost <= LARGEST
    return program if fits and program is not None and _gives(program, obs, value) else None


def _gives(program: Program, obs: Nested, value: object) -> bool:
    """Whether a program says what the agent's value function says."""
    return isinstance(value, Tensor) and _close(program(obs)[:, 0], to_array(value).reshape(-1))


def _close(ours: Array, theirs: Array) -> bool:
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE))
