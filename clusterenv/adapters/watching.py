"""What an agent does to its observations, operation by operation, as a program that repeats it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from clusterenv.adapters.base import Floats
from clusterenv.adapters.operations import Op, aten, layers_of, numbers_of
from clusterenv.adapters.program import AddKept, Choice, Keep, Layer, Program

Result = Any
"""What an operation gives: a tensor, several, or something else."""

LEAVES_TORCH = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.__array__,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]
}
"""Calls after which numbers may come back by ways that are not seen, or decide which way is gone."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A tensor that depends on the observations."""

    tensor: Tensor
    """Kept, so that its identity stays its own."""
    layers: tuple[Layer, ...] | None
    """None: computed in a way that is not repeated."""
    shifted: bool = False
    """Whether a number was subtracted from each row, as `Categorical` does with logits."""
    sums: Tensor | None = None
    """Of which tensor it is the logsumexp of each row."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, what is computed from one tensor [n, ...] is followed."""

    def __init__(self, inputs: Tensor) -> None:
        """Follow `inputs`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = len(inputs)
        self._seen: dict[int, _Seen] = {}
        self._paused = False
        self._broken = False
        self._functions: _Functions | None = None
        self.shape = inputs.shape
        self._keep(inputs, () if inputs.dtype in _DTYPES else None)

    def __enter__(self) -> Self:
        """Watch."""
        self._functions = _Functions(self)
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Watch no longer, and refer to nothing that refers back: what was seen may be large."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        functions, self._functions = self._functions, None
        if functions is not None:
            functions.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, whatever is done is not the agent's."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def program_of(self, tensor: Tensor) -> Program | None:
        """How `tensor` came out of the observations; None where that cannot be repeated."""
        seen = self._seen.get(id(tensor))
        if self._broken or seen is None or seen.layers is None or not tensor.numel():
            return None
        try:
            return Program(seen.layers, self.shape[1:].numel())
        except ValueError:  # of sizes that torch fits to each other, and C++ does not
            return None

    def constant_row(self, tensor: Tensor) -> Floats | None:
        """The row that a tensor [n, features] repeats; None if it depends on the observations."""
        if self._broken or id(tensor) in self._seen or tensor.ndim != 2:
            return None
        rows = numbers_of(tensor)
        return rows[0].copy() if (rows == rows[:1]).all() else None

    def left_torch(self) -> None:
        """The agent did what cannot be followed."""
        if not self._paused:
            self._broken = True

    def __torch_dispatch__(
        self,
        func: Op,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Result:
        """Do what is asked, and note what comes of the observations."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._paused or self._broken:
            return result
        depends = self._depends(args) or self._depends(tuple(kwargs.values()))
        if _cannot_be_repeated(func) or (depends and _decides(func, result)):
            self._broken = True
        elif depends and func not in _LIKE:
            with self.paused():
                self._follow(func, args, kwargs, result)
        return result

    def _depends(self, args: Sequence[Any]) -> bool:
        return any(
            self._depends(arg) if isinstance(arg, list | tuple) else id(arg) in self._seen for arg in args
        )

    def _keep(self, tensor: Tensor, layers: tuple[Layer, ...] | None, **facts: Any) -> None:
        self._seen[id(tensor)] = _Seen(tensor, layers, **facts)

    def _follow(self, func: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Result) -> None:
        """Note how each tensor of `result` came to be."""
        if func is aten.broadcast_tensors.default:
            for before, after in zip(args[0], result, strict=True):
                self._keep_as(before, after)
            return
        if func is aten.native_layer_norm.default:
            normalized, *statistics = result
            self._keep(normalized, self._extended(func, args, kwargs, normalized))
            result = statistics
        if not isinstance(result, Tensor) or not args:
            for part in result if isinstance(result, list | tuple) else (result,):
                if isinstance(part, Tensor):
                    self._keep(part, None)
            return
        source = self._seen.get(id(args[0]))
        if func in _SHAPE_ONLY and source is None:
            return
        if func in _SAME_NUMBERS and source is not None:
            self._keep_as(source.tensor, result)
        elif func is aten.select.int and source is not None and result.numel() == source.tensor.numel():
            self._keep_as(source.tensor, result)  # the only column
        elif func in _CHOOSING and source is not None:
            self._keep(result, self._chosen(func, args, kwargs, result))
        elif func is aten.logsumexp.default and source is not None:
            whole = args[1] in ([-1], [1]) and source.tensor.ndim == 2 and args[2:] == (True,)
            self._keep(result, None, sums=source.tensor if whole else None)
        elif func is aten.sub.Tensor and source is not None and self._is_normalised(source, args, kwargs):
            self._keep(result, source.layers, shifted=True)
        else:
            self._keep(result, self._extended(func, args, kwargs, result))

    def _keep_as(self, before: Tensor, after: Tensor) -> None:
        """`after` holds the numbers of `before`, if its shape and dtype say so."""
        source = self._seen.get(id(before))
        if source is not None:
            same = after.numel() == before.numel() and after.shape[:1] == (self._rows,)
            fits = same and after.dtype in (before.dtype, torch.float32)
            self._keep(after, source.layers if fits else None, shifted=source.shifted)

    def _chosen(
        self, func: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> tuple[Layer, ...] | None:
        """What is left of each observation, if of all the same: found by choosing among places."""
        source = self._seen[id(args[0])]
        if source.layers is None or source.shifted:
            return None
        if not all(isinstance(layer, Choice) for layer in source.layers):
            return None
        if result.shape[:1] != (self._rows,) or not result.numel():
            return None
        width = self.shape[1:].numel()
        before = [torch.from_numpy(layer.places) for layer in source.layers if isinstance(layer, Choice)]
        places = before[0] if before else torch.arange(width)
        firsts = width * torch.arange(self._rows)[:, None]
        numbers = (firsts + places).reshape(source.tensor.shape)
        chosen = func(numbers, *args[1:], **kwargs).reshape(self._rows, -1) - firsts
        same = bool((chosen == chosen[:1]).all() and chosen.min() >= 0 and chosen.max() < width)
        return (Choice(chosen[0].numpy().copy()),) if same else None

    def _is_normalised(self, source: _Seen, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the logsumexp of each row is subtracted from it."""
        other = self._seen.get(id(args[1]))
        return other is not None and other.sums is source.tensor and not kwargs

    def _extended(
        self, func: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> tuple[Layer, ...] | None:
        """The layers of what was computed from one followed tensor and constants."""
        place = 1 if func is aten.addmm.default else 0
        source = self._seen.get(id(args[place]))
        rest = [*args[:place], *args[place + 1 :]]
        if source is None and func in (aten.add.Tensor, aten.mul.Tensor):
            source, rest = self._seen.get(id(args[1])), [args[0]]
        if source is None or source.layers is None or source.shifted:
            return None
        if result.dtype is not torch.float32 or result.shape[:1] != (self._rows,):
            return None
        if func is aten.add.Tensor and self._depends(rest) and not kwargs:
            return _sum(source, self._seen.get(id(rest[0])), result)
        layers = None if self._depends(rest) else layers_of(func, rest, kwargs, source.tensor, result)
        return None if layers is None else (*source.layers, *layers)


class _Functions(TorchFunctionMode):
    """Sees what never reaches the dispatcher."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Op,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Result:
        """Do what is asked."""
        if func in LEAVES_TORCH:
            self._watch.left_torch()
        return func(*args, **(kwargs or {}))


def _cannot_be_repeated(func: Op) -> bool:
    """Whether it changes something, draws at random, or gives a number away."""
    return (
        func._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in func.tags
        or func is aten._local_scalar_dense.default
    )


def _decides(func: Op, result: Result) -> bool:
    """Whether numbers decide a size, or come out as such, so that the agent may go another way by them."""
    parts = result if isinstance(result, list | tuple) else (result,)
    return (
        func in _OF_ANY_LENGTH
        or not _DECIDING.isdisjoint(func.tags)
        or not all(part is None or isinstance(part, Tensor) for part in parts)
    )


_DECIDING = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_OF_ANY_LENGTH = {
    aten.argwhere.default,
    aten.nonzero_numpy.default,
    aten.repeat_interleave.Tensor,
    aten.repeat_interleave.self_Tensor,
    aten.tensor_split.tensor_indices_or_sections,
    aten.where.default,
}
"""Made of other operations, and so without a tag that says this."""


_DTYPES = (torch.float32, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SAME_NUMBERS = {
    aten._to_copy.default,
    aten._unsafe_view.default,
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.expand.default,
    aten.expand_as.default,
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.squeeze.dim,
    aten.squeeze.default,
    aten.squeeze.dims,
    aten.to.device,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.unsqueeze.default,
    aten.view.default,
}


_CHOOSING = {
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.transpose.int,
}
"""What gives some of a tensor's numbers, in another order perhaps."""

_SHAPE_ONLY = {aten.expand_as.default, aten.type_as.default, aten.view_as.default, aten.to.other}
"""What takes nothing but a shape or a dtype from its second argument."""

_LIKE = {
    aten.full_like.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones_like.default,
    aten.zeros_like.default,
}
"""What takes nothing but a shape or a dtype from its first argument."""


def _sum(one: _Seen, other: _Seen | None, result: Tensor) -> tuple[Layer, ...] | None:
    """One of two tensors came of the other: what came in between, around which that is kept."""
    if other is None or other.layers is None or other.shifted or one.layers is None:
        return None
    if not one.tensor.shape == other.tensor.shape == result.shape:
        return None
    shorter, longer = sorted((one.layers, other.layers), key=len)
    between = longer[len(shorter) :]
    if any(a is not b for a, b in zip(shorter, longer, strict=False)):
        return None
    if not between or any(isinstance(layer, Choice) for layer in between):
        return None
    return (*shorter, Keep(), *between, AddKept())
