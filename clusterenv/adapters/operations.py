"""Operations of torch as layers of a small network: those on one tensor and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clusterenv.adapters.base import Floats
from clusterenv.adapters.program import Layer, LayerNorm, Linear, Pointwise

Op = Any
"""An overload of one of torch's operations."""
aten: Any = torch.ops.aten


def layers_of(
    func: Op, rest: Sequence[Any], kwargs: Mapping[str, Any], source: Tensor, result: Tensor
) -> tuple[Layer, ...] | None:
    """What `func` does to the rows of `source` [n, ...] on the way to `result`; None: something else.

    `rest` are the other arguments, which are the same for all rows.
    """
    if func is aten.gelu.default:
        return (Pointwise("gelu_tanh" if kwargs.get("approximate") == "tanh" else "gelu"),)
    if kwargs:
        return None
    return (
        _linear(func, rest, source)
        or _layer_norm(func, rest, source)
        or _pointwise(func, rest, source, result)
    )


def _linear(func: Op, rest: Sequence[Any], source: Tensor) -> tuple[Layer, ...] | None:
    """A linear layer over all features of a row."""
    bias: Tensor | None
    if func is aten.addmm.default and len(rest) == 2:
        bias, weight = rest
    elif func is aten.mm.default:
        bias, weight = None, rest[0]
    elif func is aten.linear.default:
        weight, bias = rest[0].t(), rest[1] if len(rest) > 1 else None
    else:
        return None
    if source.ndim != 2 or weight.dtype is not torch.float32:
        return None
    if bias is not None and bias.shape != weight.shape[1:]:
        return None
    return (Linear(numbers_of(weight), None if bias is None else numbers_of(bias)),)


def _layer_norm(func: Op, rest: Sequence[Any], source: Tensor) -> tuple[Layer, ...] | None:
    """A normalization over all features of a row."""
    if func not in (aten.layer_norm.default, aten.native_layer_norm.default):
        return None
    shape, weight, bias, epsilon = (*rest, *(None, None, 1e-5)[len(rest) - 1 :])[:4]
    if tuple(shape) != tuple(source.shape[1:]) or source.dtype is not torch.float32 or epsilon <= 0.0:
        return None
    if any(each is not None and each.dtype is not torch.float32 for each in (weight, bias)):
        return None
    scale, shift = (None if each is None else numbers_of(each).reshape(-1) for each in (weight, bias))
    return (LayerNorm(scale, shift, epsilon),)


_UNARY = {
    aten.tanh.default: "tanh",
    aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.silu.default: "silu",
}
_BOUNDED: dict[Op, tuple[float | None, float | None]] = {
    aten.clamp.default: (None, None),
    aten.hardtanh.default: (-1.0, 1.0),
    aten.relu6.default: (0.0, 6.0),
}
"""What bounds numbers from below and above, and its bounds where none are given."""
_ELU = {
    aten.elu.default: (1.0, 1.0, 1.0),
    aten.selu.default: (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0),
}
"""Alpha, the scale of what comes out and that of what goes in, where none are given.

Those of SELU are from Klambauer et al. (2017).
"""
_WITH_CONSTANT = {
    aten.add.Tensor: "add",
    aten.sub.Tensor: "subtract",
    aten.mul.Tensor: "multiply",
    aten.div.Tensor: "divide",
}


def _pointwise(func: Op, rest: Sequence[Any], source: Tensor, result: Tensor) -> tuple[Layer, ...] | None:
    """The same function of every number, with the same constants in every row."""
    if result.shape != source.shape:
        return None
    if func in _UNARY and not rest:
        return (Pointwise(_UNARY[func]),)
    if func is aten.neg.default:
        return (_with_number("multiply", -1.0),)
    if func is aten.leaky_relu.default:
        return (_with_number("leaky_relu", rest[0] if rest else 0.01),)
    if func in _ELU:
        alpha, scale, of_input = _filled(rest, _ELU[func])
        return (_with_number("elu", alpha), _with_number("multiply", scale)) if of_input == 1.0 else None
    if func in _BOUNDED:
        low, high = _filled(rest, _BOUNDED[func])
        bounds = (("maximum", low), ("minimum", high))
        return tuple(_with_number(function, bound) for function, bound in bounds if bound is not None)
    if func in _WITH_CONSTANT and len(rest) == 1:
        constant = _row_constant(rest[0], source)
        return None if constant is None else (Pointwise(_WITH_CONSTANT[func], constant),)
    return None


def _filled(given: Sequence[Any], defaults: Sequence[float | None]) -> list[Any]:
    return [*given, *defaults[len(given) :]]


def _with_number(function: str, number: float) -> Pointwise:
    return Pointwise(function, np.array([number], np.float32))


def _row_constant(value: object, source: Tensor) -> Floats | None:
    """A number [1], or a row [features] that is the same for all rows of `source`."""
    if isinstance(value, int | float):
        return np.array([value], np.float32)
    if not isinstance(value, Tensor) or value.dtype is not torch.float32:
        return None
    features = source.shape[1:].numel()
    if value.numel() == 1:
        return numbers_of(value).reshape(1)
    same_for_all = value.ndim < source.ndim or value.shape[0] == 1
    return numbers_of(value).reshape(-1) if same_for_all and value.numel() == features else None


def numbers_of(tensor: Tensor) -> Floats:
    """The numbers of a constant, in memory of their own."""
    array: Floats = np.ascontiguousarray(tensor.detach().cpu().numpy()).copy()
    return array
