"""Calls by name into the environments of all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import values
from clusterenv.checks import is_int
from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.head import Head
from clusterenv.outcomes import Absent, Fresh, Outcome, Pending, Reply
from clusterenv.peers import Peer
from clusterenv.pickling import sendable
from clusterenv.rows import Ids
from clusterenv.transport import messages as m

OWN_METHODS = ("reset", "step", "close", "_setattr", "_check_spaces")
"""Names that only ClusterEnv itself may call, as in Gymnasium's AsyncVectorEnv."""


def checked_name(name: object, forbidden: Sequence[str] = ()) -> str:
    """`name`, if an attribute can have it.

    Raises:
        ConfigError: if not, or if it is one of `forbidden`.
    """
    if not isinstance(name, str) or not 0 < len(name) <= 1024:
        raise ConfigError("name", name, "the name of a method or attribute of the environments")
    if name in forbidden:
        raise ConfigError("name", name, f"another name; use {name} itself")
    return name


def checked_rows(indices: object, num_envs: int, name: str = "indices") -> Ids:
    """Numbers of environments [k], each once; all for None.

    Raises:
        ConfigError: if they are anything else.
    """
    if indices is None:
        return np.arange(num_envs, dtype=np.int64)
    listed = indices.tolist() if isinstance(indices, np.ndarray) and indices.ndim else indices
    rows = [listed] if is_int(listed) else listed
    if (
        not isinstance(rows, list | tuple | range)
        or not all(is_int(row) and 0 <= row < num_envs for row in rows)
        or len(set(rows)) != len(rows)
    ):
        raise ConfigError(name, indices, f"different numbers from 0 to {num_envs - 1}")
    return np.array(rows, dtype=np.int64)


class Calling:
    """Calls methods, reads and sets attributes."""

    def __init__(self, head: Head, num_envs: int) -> None:
        """Call through `head`."""
        self._head = head
        self._num_envs = num_envs

    def begin_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], ids: Ids
    ) -> Pending[m.CallReply]:
        """`name` is being called in the environments `ids`.

        Raises:
            ConfigError: if the arguments cannot be pickled; nothing was called.
        """
        arguments = sendable((tuple(args), dict(kwargs)), f"arguments of {name}")
        asked = self._mask(ids)
        self._head.wait_present()

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            return m.CallCommand(name=name, mask=asked[peer.rows].tolist()), [arguments]

        return self._head.begin(command, m.CallReply, fresh=Fresh.KEEP, peers=self._peers(asked))

    def finish_call(self, pending: Pending[m.CallReply], ids: Ids) -> tuple[Any, ...]:
        """What each of `ids` gave, in their order; None for one that is away."""
        asked = self._mask(ids)
        results: dict[int, Any] = {}
        for outcome in self._head.finish(pending):
            results |= self._results(outcome, asked)
        return tuple(results.get(env_id) for env_id in ids.tolist())

    def set_attr(self, name: str, values_of: Sequence[object] | None, value: object, ids: Ids) -> None:
        """The attribute is set in `ids`: to `values_of` one by one, or all to `value` without such.

        Raises:
            ConfigError: if a value cannot be pickled; nothing was set.
        """
        blobs: dict[int, bytes] = {}
        if values_of is None:
            shared = [sendable(value, f"value of {name}")]
        else:
            each = zip(ids.tolist(), values_of, strict=True)
            blobs = {row: sendable(one, f"value of {name} for environment {row}") for row, one in each}
        asked = self._mask(ids)
        self._head.wait_present()

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            own = np.flatnonzero(asked[peer.rows]) + peer.first_env
            sent = shared if values_of is None else [blobs[row] for row in own.tolist()]
            mask = asked[peer.rows].tolist()
            return m.SetAttrCommand(name=name, mask=mask, num_values=len(sent)), [values.join(sent)]

        peers = self._peers(asked)
        self._head.finish(self._head.begin(command, m.Ack, fresh=Fresh.KEEP, peers=peers))

    def _mask(self, ids: Ids) -> NDArray[np.bool_]:
        mask = np.zeros(self._num_envs, np.bool_)
        mask[ids] = True
        return mask

    def _peers(self, asked: NDArray[np.bool_]) -> list[Peer]:
        return [peer for peer in self._head.peers if asked[peer.rows].any()]

    def _results(self, outcome: Outcome[m.CallReply], asked: NDArray[np.bool_]) -> dict[int, Any]:
        if not isinstance(outcome, Reply):
            return {}
        reply = outcome
        results = self._head.read(outcome.peer, lambda: self._read(reply, asked), Fresh.KEEP)
        return {} if isinstance(results, Absent) else results

    def _read(self, outcome: Reply[m.CallReply], asked: NDArray[np.bool_]) -> dict[int, Any]:
        own = np.flatnonzero(asked[outcome.peer.rows]) + outcome.peer.first_env
        if len(outcome.frames) != 1:
            raise ProtocolError(f"answer to a call has {len(outcome.frames)} frames; expected 1")
        blobs = values.split(outcome.frames[0], len(own))
        return {row: values.decode(blob) for row, blob in zip(own.tolist(), blobs, strict=True)}
