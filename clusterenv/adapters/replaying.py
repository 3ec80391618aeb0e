"""What an agent computed with torch, computed again without the agent: its operations, on the same constants.

Modules, distributions and their checks take a small agent more time than its operations. This is for what C++
does not repeat; what it gives is the agent's to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Op = Any
"""An overload of one of torch's operations."""
Argument = Any
"""Of an operation: a tensor, a number, or a list of such; in a template, slots stand for some tensors."""

aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Operation:
    """One that was seen."""

    func: Op
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Tensor, ...]
    is_single: bool
    """Whether it gives a tensor, and not a list of them."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands in an argument for what an operation before has given."""

    number: int


class Tape:
    """The operations by which tensors come from one tensor, in their order."""

    def __init__(self, inputs: Tensor) -> None:
        """Nothing but `inputs` is followed yet."""
        self._inputs = inputs
        self._made: dict[int, Tensor] = {id(inputs): inputs}  # kept, so that identities stay their own
        self._drawn: set[int] = set()
        self._operations: list[_Operation] = []
        self.decides = False
        """Whether Python was told a number, and may do something else for others."""

    def note(self, func: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> None:
        """An operation was done, which may have to do with the inputs."""
        given = list(_tensors([*args, *kwargs.values()]))
        followed = [each for each in given if id(each) in self._made]
        if not followed:
            return
        results = (result,) if isinstance(result, Tensor) else result
        is_told = not isinstance(results, list | tuple) or not all(
            isinstance(each, Tensor) for each in results
        )
        if is_told or _shape_depends_on_numbers(func, args):
            self.decides = True
            return
        assert isinstance(results, list | tuple)
        constants = {id(each) for each in given} - self._made.keys()
        fresh = [each for each in results if id(each) not in constants]  # others were given back as they are
        if not fresh:
            return
        self._operations.append(_Operation(func, args, kwargs, tuple(results), isinstance(result, Tensor)))
        self._made.update((id(each), each) for each in fresh)
        if any(id(each) in self._drawn for each in followed):
            self._drawn.update(id(each) for each in fresh)

    def draws(self, sample: Tensor) -> None:
        """The agent was given `sample`, which is another in each act; so is what is computed from it."""
        self._made[id(sample)] = sample
        self._drawn.add(id(sample))

    def replay_of(self, *targets: Tensor, constants: Sequence[Tensor] = ()) -> Replay | None:
        """What gives `targets`, and then `constants`, for other inputs of the same shape.

        None where a target does not come from the inputs alone; those of `constants` may be constant.
        """
        known = all(id(target) in self._made for target in targets)
        drawn = any(id(target) in self._drawn for target in (*targets, *constants))
        if self.decides or not known or drawn:
            return None
        wanted, needed = {id(target) for target in (*targets, *constants)}, []
        for operation in reversed(self._operations):
            if any(id(result) in wanted for result in operation.results):
                needed.append(operation)
                given = _tensors([*operation.args, *operation.kwargs.values()])
                wanted.update(id(each) for each in given if id(each) in self._made)
        return Replay(self._inputs, needed[::-1], (*targets, *constants), self._made)


class Replay:
    """Gives tensors for inputs of one shape."""

    def __init__(
        self,
        inputs: Tensor,
        operations: Sequence[_Operation],
        targets: Sequence[Tensor],
        followed: Mapping[int, Tensor],
    ) -> None:
        """`targets` are what `operations` give, or constants; what is not `followed` is constant."""
        self.shape = tuple(inputs.shape)
        slots = {identity: number for number, identity in enumerate(followed)}
        steps = []
        for operation in operations:
            if (same := _unchanged(operation)) is not None and id(same) in slots:
                slots[id(operation.results[0])] = slots[id(same)]
            else:
                steps.append(operation)
        self._values: list[Any] = [None] * len(slots)
        self._first = slots[id(inputs)]
        self._targets = [_slotted(target, slots) for target in targets]
        self._steps: list[_Step] = []
        kept = _slots_in(self._targets)
        for operation in reversed(steps):
            args = _slotted(list(operation.args), slots)
            kwargs = {name: _slotted(arg, slots) for name, arg in operation.kwargs.items()}
            gives = [slots.get(id(result)) for result in operation.results]
            filled = {number for number in gives if number is not None}
            done = (_slots_in([args, *kwargs.values()]) | filled) - kept
            kept |= done
            single = gives[0] if operation.is_single else None
            self._steps.insert(0, (operation.func, _Template(args), kwargs, single, gives, tuple(done)))

    def __call__(self, inputs: Tensor) -> list[Tensor]:
        """The targets for `inputs`."""
        values = self._values.copy()
        values[self._first] = inputs
        for func, args, kwargs, single, gives, done in self._steps:
            if kwargs:
                named = {name: _filled(arg, values) for name, arg in kwargs.items()}
                result = func(*args.filled(values), **named)
            else:
                result = func(*args.filled(values))
            if single is not None:
                values[single] = result
            else:
                for number, part in zip(gives, result, strict=True):
                    if number is not None:
                        values[number] = part
            for number in done:
                values[number] = None
        return [_filled(target, values) for target in self._targets]


_Step = tuple[Op, "_Template", Mapping[str, Any], int | None, Sequence[int | None], Sequence[int]]
"""Operation, arguments, the slot of its one result or None, slots of all, and those not needed after it.

A tuple since it is read in every act.
"""


class _Template:
    """Arguments, some of which are filled in."""

    def __init__(self, args: list[Any]) -> None:
        self._args = args
        self._slots = [(at, arg.number) for at, arg in enumerate(args) if isinstance(arg, _Slot)]
        self._nested = [(at, arg) for at, arg in enumerate(args) if isinstance(arg, list) and _slots_in(arg)]

    def filled(self, values: Sequence[Any]) -> list[Any]:
        args = self._args.copy()
        for at, number in self._slots:
            args[at] = values[number]
        for at, template in self._nested:
            args[at] = _filled(template, values)
        return args


_COUNTING = {
    aten.where.default,
    aten.nonzero_numpy.default,
    aten.repeat_interleave.self_Tensor,
}
"""What gives as many numbers as others say, though torch has no tag that tells it."""


def _shape_depends_on_numbers(func: Op, args: tuple[Any, ...]) -> bool:
    """Whether the result has another shape for other numbers."""
    if func is aten.one_hot.default:
        return len(args) < 2 or args[1] < 0
    if func is aten.index.Tensor:
        return any(each.dtype in (torch.bool, torch.uint8) for each in _tensors(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags or func in _COUNTING


def _unchanged(operation: _Operation) -> Tensor | None:
    """The argument that the operation has given back as it is, such as a conversion to the dtype it has."""
    if not operation.is_single or not operation.args or not isinstance(operation.args[0], Tensor):
        return None
    before, after = operation.args[0], operation.results[0]
    if before.layout is not torch.strided or after.layout is not torch.strided or before.is_complex():
        return None
    same = before.dtype is after.dtype and before.shape == after.shape and before.stride() == after.stride()
    return before if same and before.data_ptr() == after.data_ptr() else None


def _tensors(value: Argument) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _slotted(value: Argument, slots: Mapping[int, int]) -> Argument:
    if isinstance(value, list | tuple):
        return [_slotted(each, slots) for each in value]
    return _Slot(slots[id(value)]) if id(value) in slots else value


def _filled(template: Argument, values: Sequence[Any]) -> Argument:
    if isinstance(template, _Slot):
        return values[template.number]
    return [_filled(each, values) for each in template] if isinstance(template, list) else template


def _slots_in(template: Argument) -> set[int]:
    """Numbers of all slots in it."""
    if isinstance(template, list):
        return set().union(*map(_slots_in, template))
    return {template.number} if isinstance(template, _Slot) else set()
