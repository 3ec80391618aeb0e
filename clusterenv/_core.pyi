"""Kernels of ClusterEnv in C++; `clusterenv.native` is the only module that imports this one."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, SupportsFloat, SupportsIndex, SupportsInt, TypeVar

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", np.float32, np.float64)

def kl_categorical(
    p: NDArray[_Float], q: NDArray[_Float], sizes: Sequence[int], out: NDArray[np.float64]
) -> None: ...
def kl_bernoulli(p: NDArray[_Float], q: NDArray[_Float], out: NDArray[np.float64]) -> None: ...
def kl_diag_gaussian(p: NDArray[_Float], q: NDArray[_Float], out: NDArray[np.float64]) -> None: ...
def k3(
    behaviour_log_probs: NDArray[_Float], target_log_probs: NDArray[_Float], out: NDArray[np.float64]
) -> None: ...
def pack_rows(rows: Sequence[object], out: NDArray[Any], name: str = "rows") -> None: ...
def sample_rows(
    valid: NDArray[np.bool_],
    count: SupportsIndex,
    *,
    seed: SupportsIndex,
    rank: SupportsIndex,
    fragment: SupportsIndex,
) -> NDArray[np.int64]: ...
def sample_categorical(
    params: NDArray[np.float32],
    sizes: Sequence[int],
    seed: SupportsIndex,
    env_ids: NDArray[np.int64],
    steps: NDArray[np.int64],
    actions_out: NDArray[np.int64],
    log_probs_out: NDArray[np.float32],
) -> None: ...
def sample_bernoulli(
    params: NDArray[np.float32],
    seed: SupportsIndex,
    env_ids: NDArray[np.int64],
    steps: NDArray[np.int64],
    actions_out: NDArray[np.int8],
    log_probs_out: NDArray[np.float32],
) -> None: ...
def sample_diag_gaussian(
    params: NDArray[np.float32],
    seed: SupportsIndex,
    env_ids: NDArray[np.int64],
    steps: NDArray[np.int64],
    actions_out: NDArray[np.float32],
    log_probs_out: NDArray[np.float32],
) -> None: ...
def log_prob_categorical(
    params: NDArray[np.float32],
    sizes: Sequence[int],
    actions: NDArray[np.int64],
    log_probs_out: NDArray[np.float32],
) -> None: ...
def log_prob_bernoulli(
    params: NDArray[np.float32], actions: NDArray[np.int8], log_probs_out: NDArray[np.float32]
) -> None: ...
def log_prob_diag_gaussian(
    params: NDArray[np.float32], actions: NDArray[np.float32], log_probs_out: NDArray[np.float32]
) -> None: ...

class _Type(type): ...

class Network(metaclass=_Type):
    def __init__(self, inputs: SupportsIndex) -> None: ...
    def add_linear(self, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> None: ...
    def add_pointwise(self, function: str, constants: NDArray[np.float32] | None = None) -> None: ...
    def add_layer_norm(
        self,
        weight: NDArray[np.float32] | None = None,
        bias: NDArray[np.float32] | None = None,
        epsilon: SupportsFloat | SupportsIndex = 1e-5,
    ) -> None: ...
    def keep(self) -> None: ...
    def add_kept(self) -> None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    def run(self, rows: NDArray[np.float32], out: NDArray[np.float32]) -> None: ...

class Environments(metaclass=_Type):
    def __init__(
        self,
        steps: list[Callable[[Any], Any]],
        observations: list[Any],
        limits: NDArray[np.int64],
        progress: NDArray[np.int64],
        number: Callable[[Any], float],
    ) -> None: ...
    def step(
        self,
        first: SupportsInt | SupportsIndex,
        actions: list[Any],
        out: NDArray[Any] | None,
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        plan: NDArray[np.uint8] | None = None,
        keep: Callable[[int, Any], None] | None = None,
    ) -> int: ...

class Drawing(metaclass=_Type):
    def __init__(
        self, network: Network, kind: str, log_std: NDArray[np.float32] | None = None, start: int = 0
    ) -> None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def num_params(self) -> int: ...
    @property
    def action_dtype(self) -> np.dtype[Any]: ...
    @property
    def action_size(self) -> int: ...

class Collector(metaclass=_Type):
    def __init__(
        self,
        environments: Environments,
        drawing: Drawing,
        seed: SupportsIndex,
        env_ids: NDArray[np.int64],
        steps: NDArray[np.int64],
        singles: Callable[[NDArray[Any]], list[Any]],
        stop: NDArray[np.bool_],
        record: dict[str, NDArray[Any]],
    ) -> None: ...
    def run(
        self,
        step: SupportsInt | SupportsIndex,
        first: SupportsInt | SupportsIndex,
        until: SupportsInt | SupportsIndex,
    ) -> tuple[int, int]: ...
    @property
    def singles(self) -> list[Any]: ...

class Slab(metaclass=_Type):
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @staticmethod
    def create(nbytes: SupportsIndex) -> Slab: ...
    @staticmethod
    def attach(descriptor: SupportsIndex, nbytes: SupportsIndex) -> Slab: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def memory(self) -> memoryview: ...
    def close_descriptor(self) -> None: ...

class Doorbell(metaclass=_Type):
    nbytes: ClassVar[int]
    def __init__(self, slab: Slab, offset: SupportsIndex) -> None: ...
    @property
    def count(self) -> int: ...
    def ring(self) -> None: ...
    def wait(self, seen: SupportsIndex, timeout_s: float, spin_s: float = 0.0) -> bool: ...
