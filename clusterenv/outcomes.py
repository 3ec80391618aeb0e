"""A command that workers were sent, and what became of it at each of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from clusterenv.peers import Peer
from clusterenv.transport import messages as m

M = TypeVar("M", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Reply(Generic[M]):
    """What one worker answered."""

    peer: Peer
    message: M
    frames: list[memoryview]


@dataclass(frozen=True, slots=True)
class Returned:
    """A worker that is back: instead of an answer, the observations of its reset."""

    peer: Peer
    message: m.ResetReply
    frames: list[memoryview]


@dataclass(frozen=True, slots=True)
class Absent:
    """A worker that did not answer because it is away; `just_lost` in the first call that shows it."""

    peer: Peer
    just_lost: bool


Outcome = Reply[M] | Returned | Absent


class Fresh(enum.Enum):
    """What a call does with the observations of a worker that has come back."""

    SHOW = "show"
    """Gives them once instead of an answer; and shows each loss in a call of its own."""
    SKIP = "skip"
    """Goes on from them without a word."""
    KEEP = "keep"
    """Leaves them, and what was lost, to the next call."""
    WAIT = "wait"
    """Leaves them too, and does not ask a worker that has them, or a loss that no call has shown."""


@dataclass(slots=True, eq=False)
class Pending(Generic[M]):
    """A command that workers were sent and whose answers have not been taken."""

    expected: type[M]
    fresh: Fresh
    sequence: int
    asked: list[Peer] = field(default_factory=list)
    unanswered: list[Peer] = field(default_factory=list)
    """Those of whom it is not known yet that they have answered, or never will."""
    outcomes: dict[int, Outcome[M]] = field(default_factory=dict)
    """By rank."""
