"""Any messages of workers in any order: the head never fails, and takes only what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.config import EnvConfig
from clusterenv.head import Head
from clusterenv.outcomes import Fresh
from clusterenv.peers import State
from clusterenv.transport import Envelope
from clusterenv.transport import messages as m
from tests.long_form import drawn
from tests.test_head import welcome
from tests.transport.samples import SAMPLES

ADDRESSES = [b"w0", b"w1", b"stranger"]
WORKER_KINDS = [kind for number, kind in m.KINDS.items() if number < 32]
NUMBERS = st.sampled_from([0, 1, 2, 3, 1 << 40, (1 << 40) + 1, (1 << 64) - 1])
READY = m.Ready(obs_digest="o", action_digest="a", pids=[1], threads=1)


class Silence:
    """A link that keeps what the head sends, and a launcher that starts nothing."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, m.Message, int]] = []

    def ended(self) -> dict[int, Any]:
        return {}

    def pending(self) -> dict[int, str]:
        return {}

    def look_soon(self) -> None:
        pass

    def log_path(self, rank: int) -> None:
        return None

    def log_tail(self, rank: int) -> str:
        return ""

    def respawn(self, rank: int, incarnation: int) -> None:
        assert 0 <= incarnation < 1 << 32

    def send(
        self, peer: bytes, message: m.Message, frames: Sequence[Any], *, incarnation: int, sequence: int
    ) -> int:
        assert 0 <= incarnation < 1 << 32
        self.sent.append((peer, message, sequence))
        return 0


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """A message of any kind, its numbers altered at random, under any numbers, with any frames."""
    kind = draw(st.sampled_from(WORKER_KINDS))
    fields = msgspec.to_builtins(SAMPLES[kind][0])
    for name, value in fields.items():
        if type(value) is int and draw(st.booleans()):
            fields[name] = draw(st.sampled_from([0, 1, 2, (1 << 48) - 1]))
        elif type(value) is str and draw(st.booleans()):
            fields[name] = draw(st.sampled_from(["", "o", "a", "timeout", "setup", "env", "walltime", "\0"]))
    return Envelope(
        peer=draw(st.sampled_from(ADDRESSES)),
        incarnation=draw(st.sampled_from([0, 1, (1 << 32) - 1])),
        sequence=draw(NUMBERS),
        message=msgspec.convert(fields, kind),
        frames=[memoryview(frame) for frame in draw(st.lists(st.binary(max_size=8), max_size=2))],
        nbytes=0,
    )


@contextmanager
def head(policy: str) -> Iterator[tuple[Head, Silence]]:
    made = Head(
        [(welcome(0, 0, 2), []), (welcome(1, 2, 3), [])],
        EnvConfig(on_worker_loss=policy, lease_s=60.0),
        ("o", "a"),
    )
    link = Silence()
    made.attach(link, link)
    yield made, link


def said(message: m.Message, peer: bytes, sequence: int = 0) -> Envelope:
    return Envelope(peer=peer, incarnation=0, sequence=sequence, message=message, frames=[], nbytes=0)


@pytest.mark.parametrize("policy", ["restart", "drop", "raise"])
@drawn(300)
@given(before=st.lists(envelopes(), max_size=4), during=st.lists(envelopes(), max_size=12))
def test_any_messages_in_any_order_leave_the_head_in_a_known_state(
    policy: str, before: list[Envelope], during: list[Envelope]
) -> None:
    with head(policy) as (made, link):
        for envelope in before:
            made.on_message(envelope)
        for rank in (0, 1):
            address = ADDRESSES[rank]
            made.on_message(said(msgspec.structs.replace(SAMPLES[m.Hello][0], rank=rank), address))
            made.on_message(said(READY, address))
        if not all(peer.state is State.READY for peer in made.peers):
            return  # what came before has taken a rank, or failed the launch
        made.wait_ready()
        pending = made.begin(lambda _: (m.StepCommand(), ()), m.StepReply, fresh=Fresh.SHOW)
        for envelope in during:
            made.on_message(envelope)
            made.keep()

        for peer in made.peers:
            assert peer.reply is None or peer.reply.sequence == pending.sequence
            assert peer.state in State
            assert (peer.state in (State.AWAY, State.GONE)) == (peer.address is None)
        strangers = [message for address, message, _ in link.sent if address == b"stranger"]
        assert all(isinstance(message, m.Refused | m.Welcome) for message in strangers[:1])
