"""Calls by name into the environments of all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import values
from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.head import Absent, Fresh, Head, Outcome, Pending, Reply
from clusterenv.peers import Peer
from clusterenv.pickling import sendable
from clusterenv.reset_args import is_int
from clusterenv.transport import messages as m

OWN_METHODS = ("reset", "step", "close", "_setattr", "_check_spaces")
"""Names that only ClusterEnv itself may call, as in Gymnasium's AsyncVectorEnv."""

Rows = NDArray[np.int64]


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


def checked_rows(indices: object, num_envs: int, name: str = "indices") -> Rows:
    """Numbers of environments [k], each once; all for None.

    Raises:
        ConfigError: if they are anything else.
    """
    if indices is None:
        return np.arange(num_envs, dtype=np.int64)
    listed = [indices] if is_int(indices) else indices
    expected = f"different numbers from 0 to {num_envs - 1}"
    if not isinstance(listed, list | tuple | range) and not (isinstance(listed, np.ndarray) and listed.ndim):
        raise ConfigError(name, indices, expected)
    if not all(is_int(row) and 0 <= row < num_envs for row in listed) or len(set(listed)) != len(listed):
        raise ConfigError(name, indices, expected)
    return np.array(listed, dtype=np.int64)


class Calling:
    """Calls methods, reads and sets attributes."""

    def __init__(self, head: Head, num_envs: int) -> None:
        """Call through `head`."""
        self._head = head
        self._num_envs = num_envs

    def begin_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], rows: Rows
    ) -> Pending[m.CallReply]:
        """`name` is being called in the environments `rows`.

        Raises:
            ConfigError: if the arguments cannot be pickled; nothing was called.
        """
        arguments = sendable((tuple(args), dict(kwargs)), f"arguments of {name}")
        asked = self._mask(rows)
        self._head.wait_present()

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            return m.CallCommand(name=name, mask=asked[peer.rows].tolist()), [arguments]

        return self._head.begin(command, m.CallReply, fresh=Fresh.KEEP, peers=self._peers(asked))

    def finish_call(self, pending: Pending[m.CallReply], rows: Rows) -> tuple[Any, ...]:
        """What each of `rows` gave, in their order; None for one that is away."""
        asked = self._mask(rows)
        results: dict[int, Any] = {}
        for outcome in self._head.finish(pending):
            results |= self._results(outcome, asked)
        return tuple(results.get(row) for row in rows.tolist())

    def set_attr(self, name: str, values_of: Sequence[object] | None, value: object, rows: Rows) -> None:
        """The attribute is set in `rows`: to `values_of` one by one, or all to `value` without such.

        Raises:
            ConfigError: if a value cannot be pickled; nothing was set.
        """
        blobs: dict[int, bytes] = {}
        if values_of is None:
            shared = [sendable(value, f"value of {name}")]
        else:
            each = zip(rows.tolist(), values_of, strict=True)
            blobs = {row: sendable(one, f"value of {name} for environment {row}") for row, one in each}
        asked = self._mask(rows)
        self._head.wait_present()

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            own = np.flatnonzero(asked[peer.rows]) + peer.first_env
            sent = shared if values_of is None else [blobs[row] for row in own.tolist()]
            mask = asked[peer.rows].tolist()
            return m.SetAttrCommand(name=name, mask=mask, num_values=len(sent)), [values.join(sent)]

        peers = self._peers(asked)
        self._head.finish(self._head.begin(command, m.Ack, fresh=Fresh.KEEP, peers=peers))

    def _mask(self, rows: Rows) -> NDArray[np.bool_]:
        mask = np.zeros(self._num_envs, np.bool_)
        mask[rows] = True
        return mask

    def _peers(self, asked: NDArray[np.bool_]) -> list[Peer]:
        return [peer for peer in self._head.peers if asked[peer.rows].any()]

    def _results(self, outcome: Outcome[m.CallReply], asked: NDArray[np.bool_]) -> dict[int, Any]:
        if isinstance(outcome, Absent):
            return {}
        assert isinstance(outcome, Reply)
        own = np.flatnonzero(asked[outcome.peer.rows]) + outcome.peer.first_env
        if len(outcome.frames) != 1:
            raise ProtocolError(f"answer to a call has {len(outcome.frames)} frames; expected 1")
        blobs = values.split(outcome.frames[0], len(own))
        return {row: values.decode(blob) for row, blob in zip(own.tolist(), blobs, strict=True)}
