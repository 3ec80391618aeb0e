"""When a worker owes the head a sign of life."""

from __future__ import annotations

from collections import deque

from clusterenv.transport import messages as m

BEATS_PER_S = 500
"""Heartbeats that a head should get from all workers."""

TOLD_PER_S = 200
"""Of these, those of workers whose fragments are signs of life already: they tell how far a worker is."""


def beat_interval_s(lease_s: float, num_workers: int) -> float:
    """Seconds for which the head may be left without a sign of life.

    A fifth of the lease, or a second. In large runs it is longer, so that all workers together send
    BEATS_PER_S, but no more than a quarter of the lease: a worker that lives, and looks every fifth of it,
    has two tries in it at least.
    """
    return min(lease_s / 4, max(min(1.0, lease_s / 5), num_workers / BEATS_PER_S))


class Beats:
    """The heartbeats of one worker.

    A fragment that was sent is no sign of life yet, since it may be on its way for long. One that the learner
    has taken is, as of when it was sent.
    """

    def __init__(self, lease_s: float, num_workers: int) -> None:
        """One is due at once."""
        self._interval_s = beat_interval_s(lease_s, num_workers)
        self._longest_s = max(self._interval_s, num_workers / TOLD_PER_S)
        self._beat_at = self._alive_at = float("-inf")
        self._streams = False
        self._under_way: deque[float] = deque()
        """When each fragment that the learner has not taken was sent."""

    def sent(self, message: m.Message, now: float) -> None:
        """The worker sends `message`."""
        if isinstance(message, m.Heartbeat):
            self._beat_at = self._alive_at = now
        elif isinstance(message, m.FragmentReply) and self._streams:
            self._under_way.append(now)

    def received(self, message: m.Message) -> None:
        """The head has sent `message`."""
        if isinstance(message, m.Room):
            for _ in range(min(message.fragments, len(self._under_way))):
                self._alive_at = max(self._alive_at, self._under_way.popleft())
        elif not isinstance(message, m.Published | m.HeartbeatAck | m.WeightsReply | m.Lent):
            self._streams = isinstance(message, m.StreamCommand)
            self._under_way.clear()

    def is_due(self, now: float) -> bool:
        """Whether it is time for one."""
        return now - self._alive_at >= self._interval_s or now - self._beat_at >= self._longest_s
