"""Families of action distributions and their flat parameters, one row [P] for each state.

A policy's distribution over actions travels as these parameters, never as an object: logits for the discrete
families, means and then log standard deviations for the Gaussian; if tanh squashes it also the centres and
half widths of the intervals that actions lie in. Actions here are indices: whoever knows the space adds
`Discrete.start`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import native, squash


class Kind(enum.StrEnum):
    """What the parameters of a family mean."""

    CATEGORICAL = "categorical"
    MULTI_CATEGORICAL = "multi_categorical"
    BERNOULLI = "bernoulli"
    DIAG_GAUSSIAN = "diag_gaussian"
    TANH_GAUSSIAN = "tanh_gaussian"


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of distribution and its sizes: all there is to know but the parameters themselves."""

    kind: Kind
    sizes: tuple[int, ...]
    """(A,) outcomes of a categorical; those of each of several; (K,) bits; (D,) reals."""

    def __post_init__(self) -> None:
        """Refuse sizes that are not positive, and more than one where the kind has one."""
        one = self.kind is not Kind.MULTI_CATEGORICAL
        if not self.sizes or (one and len(self.sizes) != 1) or min(self.sizes) < 1:
            expected = "one size from 1" if one else "sizes from 1"
            raise ValueError(f"sizes of {self.kind.value} is {self.sizes}; expected {expected}")

    @property
    def num_params(self) -> int:
        """P, the length of a row of parameters."""
        return _PARAMS_PER_NUMBER.get(self.kind, 1) * sum(self.sizes)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        if self.kind is Kind.CATEGORICAL:
            return ()
        return (len(self.sizes),) if self.kind is Kind.MULTI_CATEGORICAL else self.sizes

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """Dtype of actions."""
        return np.dtype(_ACTION_DTYPES[self.kind])


_PARAMS_PER_NUMBER = {Kind.DIAG_GAUSSIAN: 2, Kind.TANH_GAUSSIAN: 4}
_ACTION_DTYPES = {
    Kind.CATEGORICAL: np.int64,
    Kind.MULTI_CATEGORICAL: np.int64,
    Kind.BERNOULLI: np.int8,
    Kind.DIAG_GAUSSIAN: np.float32,
    Kind.TANH_GAUSSIAN: np.float32,
}


def kl(family: Family, p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.float64]:
    """KL(p || q) [n] in nats, of rows of parameters [n, P]; exactly 0 where two rows are equal.

    That of squashed Gaussians is the one before the squashing, which maps both alike; infinite where their
    intervals differ.

    Raises:
        TypeError: if `p` is neither float32 nor float64, or `q` has another dtype than `p`.
        ValueError: if a shape is not [n, P].
    """
    p, q = _contiguous(p), _contiguous(q)
    _check_columns("p", p, family)
    out = np.empty(len(p), np.float64)
    if family.kind is Kind.BERNOULLI:
        native.kl_bernoulli(p, q, out)
    elif family.kind is Kind.DIAG_GAUSSIAN:
        native.kl_diag_gaussian(p, q, out)
    elif family.kind is Kind.TANH_GAUSSIAN:
        _check_columns("q", q, family)
        squash.kl(p, q, out)
    else:
        native.kl_categorical(p, q, family.sizes, out)
    return out


def sample(
    family: Family,
    params: NDArray[np.float32],
    *,
    seed: int,
    env_ids: NDArray[np.int64],
    steps: NDArray[np.int64],
    actions_out: NDArray[Any],
    log_probs_out: NDArray[np.float32],
) -> None:
    """Draw an action for each row of `params` [n, P], with its log-probability, into the two outputs.

    `actions_out` is [n, *action_shape], `log_probs_out` [n]. The noise of a row is a pure function of `seed`
    (uint64), its env id, its step and the dimension, so that batches may be split and reordered at will.
    Nothing is written on error.

    Raises:
        TypeError: if an array has another dtype than the family's.
        ValueError: if an array is strided or has another shape, or a row of `params` is not a distribution.
    """
    params = _contiguous(params)
    _check_columns("params", params, family)
    if family.kind is Kind.BERNOULLI:
        native.sample_bernoulli(params, seed, env_ids, steps, actions_out, log_probs_out)
    elif family.kind is Kind.DIAG_GAUSSIAN:
        native.sample_diag_gaussian(params, seed, env_ids, steps, actions_out, log_probs_out)
    elif family.kind is Kind.TANH_GAUSSIAN:
        squash.sample(params, seed, env_ids, steps, actions_out, log_probs_out)
    else:
        actions = _columns("actions_out", actions_out, family, len(params))
        native.sample_categorical(params, family.sizes, seed, env_ids, steps, actions, log_probs_out)


def log_prob(family: Family, params: NDArray[np.float32], actions: NDArray[Any]) -> NDArray[np.float32]:
    """Log-probabilities [n] of `actions` [n, *action_shape]: the very numbers that `sample` gives with them.

    Raises:
        TypeError: if an array has another dtype than the family's.
        ValueError: if a shape does not fit, a row of `params` is not a distribution, or an action is none of
            the family's (an index too large, a bit that is 2).
    """
    params, actions = _contiguous(params), _contiguous(actions)
    _check_columns("params", params, family)
    out = np.empty(len(params), np.float32)
    if family.kind is Kind.BERNOULLI:
        native.log_prob_bernoulli(params, actions, out)
    elif family.kind is Kind.DIAG_GAUSSIAN:
        native.log_prob_diag_gaussian(params, actions, out)
    elif family.kind is Kind.TANH_GAUSSIAN:
        squash.log_prob(params, actions, out)
    else:
        indices = _columns("actions", actions, family, len(params))
        native.log_prob_categorical(params, family.sizes, indices, out)
    return out


def k3(behaviour_log_probs: NDArray[Any], target_log_probs: NDArray[Any]) -> NDArray[np.float64]:
    """Estimates [n] of KL(behaviour || target), each from one action that the behaviour policy took.

    Never negative; their mean is unbiased.

    Raises:
        TypeError: if the arrays are not both float32 or both float64.
        ValueError: if they are not [n].
    """
    behaviour, target = _contiguous(behaviour_log_probs), _contiguous(target_log_probs)
    out = np.empty(behaviour.shape, np.float64)
    native.k3(behaviour, target, out)
    return out


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """An input as the kernels take it: the array itself, or an aligned and contiguous copy."""
    return np.require(array, requirements=("C", "A"))


def _check_columns(name: str, params: NDArray[Any], family: Family) -> None:
    if params.ndim != 2 or params.shape[1] != family.num_params:
        expected = f"(n, {family.num_params}) for {family.kind.value} {family.sizes}"
        raise ValueError(f"{name} has shape {params.shape}; expected {expected}")


def _columns(name: str, actions: NDArray[Any], family: Family, num_rows: int) -> NDArray[Any]:
    """Indices as the kernels take them, [n, number of categoricals]: the same memory."""
    if family.kind is Kind.MULTI_CATEGORICAL:
        return actions
    if actions.shape != (num_rows,):
        raise ValueError(f"{name} has shape {actions.shape}; expected ({num_rows},)")
    return actions[:, np.newaxis]
