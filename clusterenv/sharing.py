"""Steps of a worker on the head's own machine, through memory that it shares with the worker's runners."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any

from clusterenv.lane import Lane
from clusterenv.layout import SpaceLayout
from clusterenv.peers import Peer
from clusterenv.segments import Segment
from clusterenv.slices import contiguous
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m

logger = logging.getLogger(__name__)


def join(
    peer: Peer, shared: m.SharedMemory | None, runners: int, layouts: tuple[SpaceLayout, SpaceLayout]
) -> None:
    """Steps go through the memory that a worker offers, if this process can reach it."""
    peer.lane, peer.lane_sequence = None, 0
    if shared is None or peer.host != socket.gethostname() or not 0 < runners <= peer.num_envs:
        return
    segment = Segment(pid=shared.pid, descriptor=shared.descriptor, nbytes=shared.nbytes, nonce=shared.nonce)
    try:
        peer.lane = Lane.attach(segment, layouts, contiguous(peer.num_envs, runners))
    except (OSError, ValueError) as error:
        logger.info("steps of worker %d go by messages, not through shared memory: %s", peer.rank, error)


def ask(peer: Peer, message: m.Message, leaves: Sequence[Any], sequence: int) -> bool:
    """Whether the step was asked for there: only once nothing else is on its way to the runners."""
    lane = peer.lane
    if lane is None or not isinstance(message, m.StepCommand) or message.mask is not None:
        return False
    if peer.posted or lane.any_busy:
        return False
    lane.ask(sequence, leaves)
    peer.lane_sequence = sequence
    return True


def is_asked(peer: Peer) -> bool:
    """Whether the answer that is waited for comes through memory."""
    return peer.lane is not None and peer.lane_sequence != 0 and peer.lane_sequence == peer.expected


def take(peer: Peer) -> Envelope | None:
    """The answer, once it is there; None if it has to be fetched.

    Raises:
        ProtocolError: if it cannot be read.
    """
    assert peer.lane is not None
    peer.lane_sequence = 0
    batch = peer.lane.take()
    if batch is None:
        return None
    reply = m.StepReply(num_final=len(batch.final_index), infos=batch.infos, final_infos=batch.final_infos)
    frames: list[Any] = batch.frames()
    return Envelope(
        peer=peer.address or b"",
        incarnation=peer.incarnation,
        sequence=peer.expected,
        message=reply,
        frames=frames,
        nbytes=0,
    )
