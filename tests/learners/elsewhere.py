"""A second device where there is none: tensors that say they are elsewhere, and compute on the CPU.

As with a GPU, tensors of the CPU and from elsewhere do not meet in an operation (numbers may, and indices),
and NumPy sees only those of the CPU. So what learns inside `elsewhere()` finds its tensors on a GPU too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy")
"""A kind that torch knows by name, needs no driver for, and goes backward for in the calling thread."""
MOVES = ("aten::_to_copy", "aten::copy_")
INDEXES = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")


class Elsewhere(torch.Tensor):
    """A tensor with the numbers of `inner` that says it is on DEVICE."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type[Elsewhere], inner: torch.Tensor) -> Elsewhere:
        """Share the memory of `inner`."""
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with what is inside."""
        return _computed(func, args, kwargs or {})


class _Placing(TorchDispatchMode):
    """Sees the operations that only ask for DEVICE, and have no tensor there yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    stays = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if stays and name not in MOVES:
        _check(name, tensors[:1] if name in INDEXES else tensors)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == DEVICE.type
        kwargs = kwargs | {"device": torch.device("cpu")}
    args_inside, kwargs_inside = tree_map(_inside, (args, kwargs))
    result = func(*args_inside, **kwargs_inside)
    if name.endswith("_") and args:  # in place
        return args[0] if func._schema.returns else None
    return tree_map(_outside, result) if stays else result


def _check(name: str, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.ndim and not isinstance(tensor, Elsewhere):
            raise RuntimeError(f"{name}: a tensor {tuple(tensor.shape)} of the CPU meets one from elsewhere")


def _inside(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Elsewhere) else leaf


def _outside(leaf: Any) -> Any:
    return Elsewhere(leaf) if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Inside, there is the device that is given; it has no generator of its own."""
    generators = SimpleNamespace(get_rng_state=lambda _: None, set_rng_state=lambda *_: None)
    with _Placing(), patch.object(torch, DEVICE.type, generators, create=True):
        yield DEVICE
