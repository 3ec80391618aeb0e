"""An agent as bytes for a worker: on the CPU, its weights left out, its code along where workers lack it."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import cloudpickle
import numpy as np

from clusterenv.adapters.base import Agent, Array
from clusterenv.errors import AgentError
from clusterenv.pickling import can_pickle, culprit

if TYPE_CHECKING:
    import torch

WHOLE = "whole agent"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def dumps(agent: object, left_out: Iterable[torch.Tensor] = ()) -> bytes:
    """The agent with blanks in place of the tensors `left_out`, which a later `load_state` fills.

    Raises:
        AgentError: if a part cannot be pickled; names it.
    """
    blanks = {id(tensor) for tensor in left_out}
    try:
        return PYTHON.encode() + b"\n" + _pickled(agent, blanks)
    except Exception as error:
        path, part = culprit(agent, lambda value: can_pickle(value, lambda part: _pickled(part, blanks)))
        raise AgentError(
            f"the agent cannot be sent to workers: agent{path} ({type(part).__name__}) cannot be pickled: "
            f"{error}"
        ) from error


def loads(blob: bytes) -> Agent:
    """The agent of `dumps`, which must come from a peer that is trusted to run code here.

    Raises:
        AgentError: if it was made by another Python, or needs a module that is not here.
    """
    python, _, pickled = blob.partition(b"\n")
    if python.decode("ascii", "replace") != PYTHON:
        seen = python[:20].decode("ascii", "replace")
        raise AgentError(
            f"the agent was pickled by Python {seen}, but this worker runs {PYTHON} ({sys.executable}); "
            "use the same minor version on the head and on all workers"
        )
    try:
        return pickle.loads(pickled)
    except Exception as error:
        missing = f"; install {error.name} there" if isinstance(error, ModuleNotFoundError) else ""
        raise AgentError(
            f"the agent cannot be built by {sys.executable}: {type(error).__name__}: {error}{missing}"
        ) from error


def whole_state(agent: object) -> dict[str, Array]:
    """All of the agent as a state, for agents whose parameters cannot be set."""
    return {WHOLE: np.frombuffer(dumps(agent), dtype=np.uint8)}


def whole_digest(agent: object) -> dict[str, Array]:
    """A state of fixed size that differs whenever the agent does."""
    return {WHOLE: np.frombuffer(hashlib.blake2b(dumps(agent)).digest(), dtype=np.uint8)}


def whole_agent(state: Mapping[str, Array]) -> Agent:
    """The agent of `whole_state`."""
    if state.keys() != {WHOLE}:
        raise AgentError(f"the weights do not fit the agent: they are {list(state)}; expected a whole agent")
    return loads(state[WHOLE].tobytes())


def _pickled(value: object, blanks: set[int]) -> bytes:
    file = io.BytesIO()
    pickler = _AgentPickler(file, blanks)
    try:
        pickler.dump(value)
    finally:
        pickler.forget_modules()
    return file.getvalue()


class _AgentPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Cloudpickle that also takes the code of modules along which a worker could not import."""

    def __init__(self, file: io.BytesIO, blanks: set[int]) -> None:
        super().__init__(file)
        self._blanks = blanks
        self._modules: dict[str, bool] = {}

    def reducer_override(self, obj: object) -> object:
        if isinstance(obj, type | FunctionType):
            self._take_along(obj)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            if id(obj) in self._blanks:
                return _blank, (
                    tuple(obj.shape),
                    obj.dtype,
                    isinstance(obj, torch.nn.Parameter),
                    obj.requires_grad,
                )
            if obj.device.type != "cpu":
                on_cpu = obj.detach().cpu().requires_grad_(obj.requires_grad)
                parameter = isinstance(obj, torch.nn.Parameter)
                return (torch.nn.Parameter(on_cpu) if parameter else on_cpu).__reduce_ex__(2)
        if torch is not None and isinstance(obj, torch.device) and obj.type != "cpu":
            return torch.device, ("cpu",)  # agents that keep their device move observations to it
        return super().reducer_override(obj)

    def _take_along(self, obj: object) -> None:
        name = str(getattr(obj, "__module__", None))
        module = sys.modules.get(name)
        if module is None or name in self._modules or name == "__main__":
            return
        known = name in cloudpickle.list_registry_pickle_by_value()
        self._modules[name] = not known and not _is_importable(name, module)
        if self._modules[name]:
            cloudpickle.register_pickle_by_value(module)

    def forget_modules(self) -> None:
        """Leave cloudpickle's registry as it was."""
        for name, taken in self._modules.items():
            if taken:
                cloudpickle.unregister_pickle_by_value(sys.modules[name])


def _is_importable(name: str, module: ModuleType) -> bool:
    """Whether a fresh process with this `sys.path` would import the same file under this name."""
    if name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names:
        return True
    path: Sequence[str] | None = None
    spec = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:end]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or spec.origin is None or Path(spec.origin) == Path(file))


def _find(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, path, None)
        if spec is not None:
            found: importlib.machinery.ModuleSpec = spec
            return found
    return None


def _blank(shape: tuple[int, ...], dtype: torch.dtype, parameter: bool, requires_grad: bool) -> torch.Tensor:
    """What stands for a tensor of the state until it is loaded."""
    import torch

    tensor = torch.zeros(shape, dtype=dtype)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
