"""Stand in for the sampling of torch's distributions during one call of an agent.

An agent that builds its distribution inside `get_action_and_value` then acts with our noise, and the
distribution's parameters are seen, without a change to its code.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
)

from clusterenv.adapters.base import Array, Floats
from clusterenv.adapters.reading import AnyDistribution, read, to_array
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError

Draw = Callable[[Family, Floats], tuple[Array, Floats]]
"""Actions in the family's terms, and their log-probabilities, for parameters [n, P]."""
Original = Callable[..., Tensor]

NO_SHAPE = torch.Size()


class Capture:
    """What the distributions of one call said; `actions` were given to the agent as its own samples."""

    def __init__(
        self,
        family: Family,
        rows: int,
        draw: Draw,
        *,
        skip_scores: bool,
        aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Answer for distributions of `family` with what `draw` gives; with `skip_scores`, score nothing.

        What is done for an answer is done inside `aside()`.
        """
        self._aside = aside
        self.family = family
        """Of the action, once it was sampled."""
        self._rows = rows
        self._draw = draw
        self._seen: list[Distribution] = []
        self._params: list[Floats] = []
        self._failed = False
        self._given: Tensor | None = None
        self.skip_scores = skip_scores
        self.actions: Array | None = None
        self.log_probs: Floats | None = None

    @property
    def params(self) -> Floats | None:
        """Parameters [n, P]; None unless the agent sampled each number of its action exactly once."""
        if self._failed or not self._params:
            return None
        params = self._params[0] if len(self._params) == 1 else np.concatenate(self._params, axis=1)
        return params if params.shape[1] == self.family.num_params else None

    @property
    def distribution(self) -> Distribution | None:
        """The one that the agent sampled, if it was only one."""
        return self._seen[0] if len(self._seen) == 1 else None

    def sample(self, distribution: Distribution) -> Tensor | None:
        """The sample that the agent is to have; None if the distribution must draw by itself."""
        with self._aside():
            return self._sample(distribution)

    def _sample(self, distribution: Distribution) -> Tensor | None:
        if self._failed:
            return None
        number, family, parts = len(self._seen), self.family, slice(None)
        found = self._read(distribution, family) if number == 0 else None
        if found is not None:
            self.family = found[0]
        elif family.kind is Kind.MULTI_CATEGORICAL and number < len(family.sizes):
            # The categoricals of a multi-discrete agent come one by one: draw for all so far, take the last.
            found = self._read(distribution, Family(Kind.CATEGORICAL, (family.sizes[number],)))
            if found is not None:
                found = Family(Kind.MULTI_CATEGORICAL, family.sizes[: number + 1]), found[1]
            parts = slice(number, number + 1)
        if found is None:
            self._failed = True
            return None
        family, params = found
        self._seen.append(distribution)
        self._params.append(params)
        so_far = params if len(self._params) == 1 else np.concatenate(self._params, axis=1)
        self.actions, self.log_probs = self._draw(family, so_far)
        drawn = torch.from_numpy(np.array(self.actions if self.actions.ndim == 1 else self.actions[:, parts]))
        like = _numbers(distribution)
        drawn = drawn.to(like.device, None if drawn.dtype is torch.int64 else like.dtype)
        self._given = drawn.reshape(distribution.batch_shape + distribution.event_shape)
        return self._given

    def _read(self, distribution: Distribution, family: Family) -> tuple[Family, Floats] | None:
        try:
            return read(distribution, family, self._rows)
        except AgentError:  # it describes something else than the action
            return None

    def came_back(self, action: Tensor) -> bool:
        """Whether the agent's action is what it was given as its samples."""
        if action is self._given:
            return True
        seen, given = to_array(action), self.actions
        if given is None or seen.size != given.size:
            return False
        return np.array_equal(seen.reshape(given.shape), given)

    def score(self, distribution: Distribution) -> Tensor | None:
        """Zeros for a log-probability or entropy that nobody will read; None if it must be computed."""
        if not self.skip_scores or not any(seen is distribution for seen in self._seen):
            return None
        return _zeros(distribution.batch_shape, _numbers(distribution).device)


@functools.lru_cache(maxsize=64)
def _zeros(shape: torch.Size, device: torch.device) -> Tensor:
    return torch.zeros(shape, device=device)


def _numbers(distribution: AnyDistribution) -> Tensor:
    """A tensor that tells where a distribution computes, and in which dtype."""
    while isinstance(distribution, Independent | TransformedDistribution):
        distribution = distribution.base_dist
    numbers: Tensor = distribution.loc if isinstance(distribution, Normal) else distribution.logits
    return numbers


class _Current(threading.local):
    capture: Capture | None = None


_current = _Current()


@contextlib.contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Inside, distributions that this thread samples ask `capture` first."""
    with _hooks:
        _current.capture = capture
        try:
            yield
        finally:
            _current.capture = None


class _Hooks:
    """The hooks in torch's classes: there while anybody needs them, idle in threads that capture nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._originals: list[tuple[type[Distribution], str, Original]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._place()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for kind, name, original in self._originals:
                    setattr(kind, name, original)

    def _place(self) -> None:
        if not self._originals:
            self._originals = [
                (kind, name, vars(kind)[name])
                for kind in (Categorical, Bernoulli, Normal, Independent, TransformedDistribution)
                for name in ("sample", "rsample", "log_prob", "entropy")
                if name in vars(kind)
            ]
            self._hooked = [_hooked(name, original) for _, name, original in self._originals]
        for (kind, name, _), hook in zip(self._originals, self._hooked, strict=True):
            setattr(kind, name, hook)


_hooks = _Hooks()


def keep_hooks() -> None:
    """The hooks stay for the rest of this process, so that a capture costs next to nothing."""
    _hooks.__enter__()


def _hooked(name: str, original: Original) -> Original:
    if name in ("sample", "rsample"):

        @functools.wraps(original)
        def sample(self: Distribution, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
            capture = _current.capture
            drawn = None if capture is None or len(sample_shape) else capture.sample(self)
            return original(self, sample_shape) if drawn is None else drawn

        return sample

    @functools.wraps(original)
    def score(self: Distribution, *args: Tensor) -> Tensor:
        capture = _current.capture
        scores = None if capture is None else capture.score(self)
        return original(self, *args) if scores is None else scores

    return score
