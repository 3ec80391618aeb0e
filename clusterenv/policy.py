"""Versions of the learner's policy: what counts as a new one, and the bytes that carry it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from clusterenv.errors import AgentError, ProtocolError

if TYPE_CHECKING:
    from clusterenv.adapters import AgentAdapter

State = Mapping[str, NDArray[Any]]
Versions = TypeVar("Versions", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the policy, never changed again."""

    version: int
    agent: int
    """Rises when another agent object, or one with other names or shapes in its state, is published."""
    digest: bytes
    payload: bytes
    """Safetensors bytes that `AgentAdapter.load_state` takes, once decoded."""

    @property
    def nbytes(self) -> int:
        """Size of the payload."""
        return len(self.payload)


class Publisher:
    """Turns the agent's state into snapshots, a new one only when the state has changed. Not thread-safe."""

    def __init__(self) -> None:
        """Have nothing published."""
        self.current: Snapshot | None = None
        self._agent: object = None
        self._structure = b""
        self._stamp: object = None

    def publish(self, adapter: AgentAdapter, *, trust_counters: bool = False) -> Snapshot:
        """The snapshot of the agent's present state: `current` when nothing has changed since.

        Args:
            adapter: of the learner's agent.
            trust_counters: look only at what torch counts, which is cheap, and blind to writes through
                `tensor.data` or NumPy: for calls at every step.

        Raises:
            AgentError: if the state holds arrays that cannot be sent.
        """
        stamp = adapter.stamp()
        same_object = self.current is not None and adapter.agent is self._agent
        if self.current is not None and same_object and trust_counters and stamp and stamp == self._stamp:
            return self.current
        state = adapter.state()
        structure, digest = _digests(state)
        self._stamp = stamp
        last = self.current
        same_agent = same_object and structure == self._structure
        if last is not None and same_agent and digest == last.digest:
            return last
        self.current = Snapshot(
            version=1 if last is None else last.version + 1,
            agent=(0 if last is None else last.agent) + (not same_agent),
            digest=digest,
            payload=encode_state(adapter.transfer_state()),
        )
        self._agent, self._structure = adapter.agent, structure
        return self.current


def _digests(state: State) -> tuple[bytes, bytes]:
    """8 bytes each: of names, dtypes and shapes; of those and all values."""
    facts = "\n".join(f"{name} {array.dtype.str} {array.shape}" for name, array in state.items()).encode()
    structure = hashlib.blake2b(facts, digest_size=8)
    whole = hashlib.blake2b(facts, digest_size=8)
    for array in state.values():
        whole.update(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return structure.digest(), whole.digest()


def encode_state(state: State) -> bytes:
    """Safetensors bytes of the arrays.

    Raises:
        AgentError: if an array is of a dtype that safetensors does not have.
    """
    try:
        return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in state.items()})
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        seen = ", ".join(f"{name}: {array.dtype}" for name, array in state.items())
        raise AgentError(f"the agent's state cannot be sent ({error}); it holds {seen}") from error


def decode_state(payload: bytes) -> dict[str, NDArray[Any]]:
    """The arrays again, in any order.

    Raises:
        ProtocolError: if `payload` is not what `encode_state` gives.
    """
    try:
        return safetensors.numpy.load(payload)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"weights cannot be read: {error}") from error


def policy_lag(learner_version: int, behaviour_version: Versions) -> Versions:
    """Published versions by which the policy that acted is behind the learner's."""
    return learner_version - behaviour_version
