"""What an agent computed with torch, computed again without the agent: its operations, on the same constants.

Modules, distributions and their checks take a small agent more time than its operations. This is for what C++
does not repeat; what it gives is the agent's to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Op = Any
"""An overload of one of torch's operations."""
Argument = Any
"""Of an operation: a tensor, a number, or a list of such; in a template, slots stand for some tensors."""


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
        self._operations: list[_Operation] = []
        self._decides = False

    def note(self, func: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> None:
        """An operation was done, which may have to do with the inputs."""
        if not self._follows((args, tuple(kwargs.values()))):
            return
        results = (result,) if isinstance(result, Tensor) else result
        if not isinstance(results, list | tuple) or not all(isinstance(each, Tensor) for each in results):
            self._decides = True  # a number that Python is told may decide what is done next
            return
        self._operations.append(_Operation(func, args, kwargs, tuple(results), isinstance(result, Tensor)))
        self._made.update((id(each), each) for each in results)

    def _follows(self, value: Argument) -> bool:
        if isinstance(value, list | tuple):
            return any(self._follows(each) for each in value)
        return id(value) in self._made

    def replay_of(self, *targets: Tensor) -> Replay | None:
        """What gives `targets` for other inputs of the same shape; None if the first is not followed."""
        if self._decides or id(targets[0]) not in self._made:
            return None
        wanted, needed = {id(target) for target in targets}, []
        for operation in reversed(self._operations):
            if any(id(result) in wanted for result in operation.results):
                needed.append(operation)
                wanted.update(self._ids((operation.args, tuple(operation.kwargs.values()))))
        return Replay(self._inputs, needed[::-1], targets, self._made)

    def _ids(self, value: Argument) -> set[int]:
        """Of the followed tensors in an argument."""
        if isinstance(value, list | tuple):
            return set().union(*map(self._ids, value))
        return {id(value)} & self._made.keys()


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
        numbers = {identity: number for number, identity in enumerate(followed)}
        steps = []
        for operation in operations:
            if (same := _unchanged(operation)) is not None and id(same) in numbers:
                numbers[id(operation.results[0])] = numbers[id(same)]
            else:
                steps.append(operation)
        self._values: list[Any] = [None] * len(numbers)
        self._first = numbers[id(inputs)]
        self._targets = [_slotted(target, numbers) for target in targets]
        self._steps: list[_Step] = []
        kept = _numbers(self._targets)
        for operation in reversed(steps):
            args = _slotted(list(operation.args), numbers)
            kwargs = {name: _slotted(arg, numbers) for name, arg in operation.kwargs.items()}
            gives = [numbers[id(result)] for result in operation.results]
            done = (_numbers([args, *kwargs.values()]) | set(gives)) - kept
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
                    values[number] = part
            for number in done:
                values[number] = None
        return [_filled(target, values) for target in self._targets]


_Step = tuple[Op, "_Template", Mapping[str, Any], int | None, Sequence[int], Sequence[int]]
"""Operation, arguments, the slot of its one result or None, slots of all, and those not needed after it.

A tuple since it is read in every act.
"""


class _Template:
    """Arguments, some of which are filled in."""

    def __init__(self, args: list[Any]) -> None:
        self._args = args
        self._slots = [(at, arg.number) for at, arg in enumerate(args) if isinstance(arg, _Slot)]
        self._nested = [(at, arg) for at, arg in enumerate(args) if isinstance(arg, list) and _numbers(arg)]

    def filled(self, values: Sequence[Any]) -> list[Any]:
        args = self._args.copy()
        for at, number in self._slots:
            args[at] = values[number]
        for at, template in self._nested:
            args[at] = _filled(template, values)
        return args


def _unchanged(operation: _Operation) -> Tensor | None:
    """The argument that the operation has given back as it is, such as a conversion to the dtype it has."""
    if not operation.is_single or not operation.args or not isinstance(operation.args[0], Tensor):
        return None
    before, after = operation.args[0], operation.results[0]
    same = before.dtype is after.dtype and before.shape == after.shape and before.stride() == after.stride()
    return before if same and before.data_ptr() == after.data_ptr() else None


def _slotted(value: Argument, numbers: Mapping[int, int]) -> Argument:
    if isinstance(value, list | tuple):
        return [_slotted(each, numbers) for each in value]
    return _Slot(numbers[id(value)]) if id(value) in numbers else value


def _filled(template: Argument, values: Sequence[Any]) -> Argument:
    if isinstance(template, _Slot):
        return values[template.number]
    return [_filled(each, values) for each in template] if isinstance(template, list) else template


def _numbers(template: Argument) -> set[int]:
    """Of all slots in it."""
    if isinstance(template, list):
        return set().union(*map(_numbers, template))
    return {template.number} if isinstance(template, _Slot) else set()
