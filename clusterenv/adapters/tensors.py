"""The tensors of an agent: where they live, what learning changes, and how to leave them as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clusterenv.adapters.base import Array, Ints, Nested
from clusterenv.errors import AgentError

CPU = torch.device("cpu")
SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def state_tensors(agent: object) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once; of a plain object, those of its attributes."""
    found: dict[str, Tensor] = {}
    if isinstance(agent, nn.Module):
        found.update(agent.named_parameters())
        found.update(agent.named_buffers())
        return found
    for name, part in getattr(agent, "__dict__", {}).items():
        if isinstance(part, Tensor):
            found[name] = part
        elif isinstance(part, nn.Module):
            found.update({f"{name}.{inner}": tensor for inner, tensor in state_tensors(part).items()})
    once = {id(tensor): name for name, tensor in reversed(found.items())}
    return {name: tensor for name, tensor in found.items() if once[id(tensor)] == name}


def modules_of(agent: object) -> list[nn.Module]:
    """The agent as a module, or the modules among its attributes."""
    if isinstance(agent, nn.Module):
        return [agent]
    return [part for part in getattr(agent, "__dict__", {}).values() if isinstance(part, nn.Module)]


def place_of(agent: object) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the agent's first real tensor: what its observations must be."""
    for tensor in state_tensors(agent).values():
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return CPU, torch.float32


def to_tensors(obs: Nested, device: torch.device, dtype: torch.dtype) -> Nested:
    """A nested batch as tensors with memory of their own: reals in the agent's dtype, others as they are."""
    if type(obs) is np.ndarray and obs.dtype == np.float32 and dtype is torch.float32 and device == CPU:
        return torch.from_numpy(obs.copy())  # what nearly every call asks for
    if isinstance(obs, Mapping):
        return {key: to_tensors(part, device, dtype) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(to_tensors(part, device, dtype) for part in obs)
    if obs.dtype.kind != "f":
        return torch.from_numpy(np.array(obs)).to(device)
    return torch.from_numpy(np.array(obs)).to(device, dtype)


def export_state(agent: object) -> dict[str, Array]:
    """The state as NumPy arrays, which share memory with tensors on the CPU."""
    return {name: _exported(tensor.detach()) for name, tensor in state_tensors(agent).items()}


def _exported(tensor: Tensor) -> Array:
    tensor = tensor.cpu()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and the like, which NumPy does not have: the bits travel
        return tensor.contiguous().view(SAME_WIDTH[tensor.element_size()]).numpy()


def import_state(agent: object, state: Mapping[str, Array]) -> None:
    """The agent's tensors hold `state`.

    Raises:
        AgentError: if names, shapes or dtypes differ; nothing was changed.
    """
    own = state_tensors(agent)
    expected = {name: (array.dtype, array.shape) for name, array in export_state(agent).items()}
    seen = {name: (array.dtype, array.shape) for name, array in state.items()}
    for name in sorted(expected.keys() | seen.keys()):
        if expected.get(name) != seen.get(name):
            raise AgentError(
                f"the weights do not fit the agent: {name} is {_described(seen.get(name))}; "
                f"expected {_described(expected.get(name))}"
            )
    with torch.no_grad():
        for name, array in state.items():
            source = torch.from_numpy(np.array(array))
            own[name].copy_(source if own[name].dtype == source.dtype else source.view(own[name].dtype))


def _described(kind: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]} {kind[1]}"


@contextlib.contextmanager
def untouched(agent: object, device: torch.device) -> Iterator[None]:
    """Inside, the agent is in eval mode without gradients; after, it and torch's generators are as before."""
    modules = [inner for module in modules_of(agent) for inner in module.modules()]
    modes = [module.training for module in modules]
    buffers = [
        (module._buffers, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with kept_generators(device), torch.no_grad():
        try:
            for module in modules:
                module.training = False
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            for home, name, buffer, before in buffers:
                home[name] = buffer
                if not torch.equal(buffer, before):  # an agent that counts what it sees, in eval mode too
                    buffer.copy_(before)


@contextlib.contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """After, torch's global generators of the CPU and of `device` are as before."""
    with torch.random.fork_rng(
        devices=[] if device.type == "cpu" else [device], device_type=_accelerator(device)
    ):
        yield


def _accelerator(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type


@contextlib.contextmanager
def keyed_noise(device: torch.device, seed: int, env_ids: Ints, steps: Ints) -> Iterator[None]:
    """Inside, torch's generators are seeded by what identifies this act; after, they are as before."""
    key = hash((seed, int(env_ids[0]), int(steps[0]))) & ((1 << 63) - 1)
    with kept_generators(device):
        torch.default_generator.manual_seed(key)
        if device.type == "cuda":
            torch.cuda.manual_seed(key)
        yield
