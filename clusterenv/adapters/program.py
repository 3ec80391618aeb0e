"""A small network as a list of layers, and what computes it in C++."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clusterenv import native
from clusterenv.adapters.base import Array, Floats, Ints


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight + bias`."""

    weight: Floats
    """[inputs, outputs]"""
    bias: Floats | None


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of each number, and perhaps of a constant [1] or [features] beside it."""

    function: str
    """As `native.Network` names it."""
    constant: Floats | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Some of an observation's numbers, in some order; nothing but another choice is before it."""

    places: Ints
    """[k] among the numbers of one observation."""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Mean 0 and variance 1 of each row, times `weight`, plus `bias`, both [features]."""

    weight: Floats | None
    bias: Floats | None
    epsilon: float


@dataclass(frozen=True, slots=True)
class Keep:
    """The numbers of now are added again by the `AddKept` that belongs to it."""


@dataclass(frozen=True, slots=True)
class AddKept:
    """Plus the numbers that were kept last, which are kept no more."""


Layer = Linear | Pointwise | Choice | LayerNorm | Keep | AddKept


class Program:
    """From observations [n, ...] to numbers [n, width], all float32; each row depends on itself alone."""

    def __init__(self, layers: Sequence[Layer], inputs: int) -> None:
        """The layers in their order, of observations that have `inputs` numbers."""
        self.cost = sum(layer.weight.size for layer in layers if isinstance(layer, Linear))
        """Multiplications for one row."""
        self.places = next((layer.places for layer in layers if isinstance(layer, Choice)), None)
        """[k]: what `network` is given of an observation; None: all of it."""
        self.network = native.Network(inputs if self.places is None else len(self.places))
        for layer in layers:
            if isinstance(layer, Linear):
                self.network.add_linear(layer.weight, layer.bias)
            elif isinstance(layer, Pointwise):
                self.network.add_pointwise(layer.function, layer.constant)
            elif isinstance(layer, LayerNorm):
                self.network.add_layer_norm(layer.weight, layer.bias, layer.epsilon)
            elif isinstance(layer, Keep):
                self.network.keep()
            elif isinstance(layer, AddKept):
                self.network.add_kept()
        self.width = self.network.outputs

    def __call__(self, obs: Array) -> Floats:
        """The numbers at `obs`, in memory of their own."""
        rows = len(obs)
        seen = obs.reshape(rows, -1)
        if self.places is not None:
            seen = seen.take(self.places, axis=1)
        out = np.empty((rows, self.width), np.float32)
        self.network.run(np.ascontiguousarray(seen, np.float32), out)
        return out
