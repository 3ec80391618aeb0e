"""Flat parameters out of the distributions of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Categorical,
    ComposeTransform,
    Distribution,
    Independent,
    IndependentTransform,
    Normal,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

from clusterenv.adapters.base import Array, Floats, column
from clusterenv.distributions import Family, Kind
from clusterenv.errors import AgentError

AnyDistribution = Any
"""A torch distribution, one of Stable-Baselines3, or a list of either."""
AnyTransform = Any
PLAIN: dict[Kind, type[Distribution]] = {
    Kind.CATEGORICAL: Categorical,
    Kind.MULTI_CATEGORICAL: Categorical,
    Kind.BERNOULLI: Bernoulli,
    Kind.DIAG_GAUSSIAN: Normal,
}
"""The class that describes one number of an action of each kind."""
DEFINING = ("sample", "rsample", "log_prob")


def read(distribution: object, family: Family | None, rows: int) -> tuple[Family, Floats] | None:
    """Family and parameters [rows, P] of `distribution`: of `family`, or a Gaussian that tanh squashes.

    Raises:
        AgentError: if it is of the right kind, for another number of actions.
    """
    if family is None:
        return None
    params = read_params(distribution, family, rows)
    if params is None and family.kind is Kind.DIAG_GAUSSIAN:
        family = Family(Kind.TANH_GAUSSIAN, family.sizes)
        params = _read_squashed(distribution, family, rows)
    return None if params is None else (family, params)


def read_params(distribution: object, family: Family | None, rows: int) -> Floats | None:
    """Parameters [rows, P] if `distribution` is of `family`, independent over its numbers; else None.

    Raises:
        AgentError: if it is of the right kind, for another number of actions.
    """
    if family is None:
        return None
    if isinstance(distribution, list | tuple):
        return _read_list(distribution, family, rows)
    distribution = _inside(distribution)
    plain = PLAIN[family.kind]
    if not isinstance(distribution, plain) or not _is_plain(type(distribution), plain):
        return None
    if family.kind is Kind.MULTI_CATEGORICAL and distribution.batch_shape != (rows, len(family.sizes)):
        return None
    return _READERS[plain](distribution, family, rows)


def defining_tensors(distribution: AnyDistribution) -> tuple[Tensor, ...]:
    """Logits of a distribution that `read_params` can read, or means and standard deviations."""
    distribution = _inside(distribution)
    if isinstance(distribution, Normal):
        return distribution.loc, distribution.scale
    return (distribution.logits,)


def _inside(distribution: AnyDistribution) -> AnyDistribution:
    """What Independent wraps."""
    while isinstance(distribution, Independent) and _is_plain(type(distribution), Independent):
        distribution = distribution.base_dist
    return distribution


_plain_types: dict[tuple[type, type], bool] = {}


def _is_plain(kind: type, plain: type) -> bool:
    """Whether a subclass of `plain` samples and scores as `plain` does."""
    known = _plain_types.get((kind, plain))
    if known is None:
        known = all(_owner(kind, name) is _owner(plain, name) for name in DEFINING)
        _plain_types[kind, plain] = known
    return known


def _owner(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _read_list(parts: Sequence[object], family: Family, rows: int) -> Floats | None:
    """One categorical for each number of the action, as multi-discrete agents have them."""
    if family.kind is not Kind.MULTI_CATEGORICAL or len(parts) != len(family.sizes):
        return None
    columns = [
        read_params(part, Family(Kind.CATEGORICAL, (size,)), rows)
        for part, size in zip(parts, family.sizes, strict=True)
    ]
    known = [column for column in columns if column is not None]
    return np.concatenate(known, axis=1) if len(known) == len(parts) else None


def _read_logits(distribution: AnyDistribution, family: Family, rows: int) -> Floats:
    return np.ascontiguousarray(_matrix(distribution.logits, rows, family.num_params, "logits"))


def _read_normal(distribution: AnyDistribution, family: Family, rows: int) -> Floats:
    (size,) = family.sizes
    params = np.empty((rows, 2 * size), np.float32)
    params[:, :size] = _matrix(distribution.loc, rows, size, "means")
    np.log(_matrix(distribution.scale, rows, size, "standard deviations"), out=params[:, size:])
    return params


def _read_squashed(distribution: object, family: Family, rows: int) -> Floats | None:
    """A Normal, then tanh, then perhaps `loc + scale * action`; None if it is anything else."""
    distribution = _inside(distribution)
    if not isinstance(distribution, TransformedDistribution):
        return None
    transforms = _flat(distribution.transforms)
    if [type(transform) for transform in transforms] not in (
        [TanhTransform],
        [TanhTransform, AffineTransform],
    ) or not _is_plain(type(distribution), TransformedDistribution):
        return None
    (size,) = family.sizes
    gaussian = read_params(distribution.base_dist, Family(Kind.DIAG_GAUSSIAN, (size,)), rows)
    if gaussian is None:
        return None
    params = np.empty((rows, 4 * size), np.float32)
    params[:, : 2 * size] = gaussian
    params[:, 2 * size : 3 * size], params[:, 3 * size :] = 0.0, 1.0
    for affine in transforms[1:]:
        params[:, 2 * size : 3 * size] = to_array(torch.as_tensor(affine.loc))
        params[:, 3 * size :] = to_array(torch.as_tensor(affine.scale))
    return params if (params[:, 3 * size :] != 0).all() else None


def _flat(transforms: Sequence[Transform]) -> list[AnyTransform]:
    """Transforms in the order in which they are applied, without those that only hold others."""
    flat: list[AnyTransform] = []
    for transform in transforms:
        if isinstance(transform, ComposeTransform):
            flat += _flat(transform.parts)
        elif isinstance(transform, IndependentTransform):
            flat += _flat([transform.base_transform])
        else:
            flat.append(transform)
    return flat


_READERS: dict[type[Distribution], Callable[[Any, Family, int], Floats]] = {
    Categorical: _read_logits,
    Bernoulli: _read_logits,
    Normal: _read_normal,
}


def _matrix(tensor: Tensor, rows: int, columns: int, what: str) -> Floats:
    values: Array = to_array(tensor)
    if values.shape[:1] != (rows,) or values.size != rows * columns:
        raise AgentError(
            f"the agent's distribution has {what} of shape {values.shape}; expected {(rows, columns)}"
            f" for {rows} observations and this action space"
        )
    return values.reshape(rows, columns)


def to_array(values: object) -> Array:
    """The values of a tensor as a NumPy array, of float32 if they are real; shares memory where it can."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    tensor = values.detach() if values.requires_grad else values
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype is not torch.float32 and tensor.is_floating_point():
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array


def to_column(values: object, rows: int, what: str) -> Floats:
    """Numbers [rows] or [rows, 1], of torch or not, as float32 [rows]."""
    return column(to_array(values), rows, what)


def joint_log_prob(distribution: AnyDistribution, actions: Tensor, rows: int) -> Floats:
    """Log-probabilities [rows] of whole actions: summed over whatever axes the distribution scores apart."""
    if isinstance(distribution, list | tuple):
        columns = zip(distribution, actions.unbind(1), strict=True)
        total: Floats = np.stack([joint_log_prob(part, column, rows) for part, column in columns]).sum(axis=0)
        return total
    scores = to_array(distribution.log_prob(actions)).reshape(rows, -1)
    return np.ascontiguousarray(scores.sum(axis=1, dtype=np.float32))


def sampled(distribution: AnyDistribution) -> Tensor:
    """Actions [n, ...] drawn by the distribution itself."""
    if isinstance(distribution, list | tuple):
        return torch.stack([part.sample() for part in distribution], dim=1)
    actions: Tensor = distribution.sample()
    return actions
