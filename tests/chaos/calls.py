"""The calls during which faults happen, each with a checker of all that it gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from clusterenv import ClusterEnv, head
from clusterenv.intake import Arrival, Intake
from tests.chaos.ledger import Checker, WrongRow

CALLS = ("step", "rollout", "stream")


class Calls:
    """Makes one kind of call again and again, over one ClusterEnv."""

    def __init__(self, env: ClusterEnv, agent: object, checker: Checker, taken: Taken) -> None:
        """Nothing is called yet, and no stream is open."""
        self._env = env
        self._agent = agent
        self._checker = checker
        self._taken = taken
        self._stream: Any = None

    def make(self, call: str) -> bool:
        """One call; whether all that it gave is valid."""
        if call == "rollout":
            return self._checker.rollout(self._env.rollout(self._agent, 16))
        if call == "step":
            return self._checker.step(self._env.step(np.zeros(self._env.num_envs, np.int64)))
        if self._stream is None or self._stream.closed:
            self._taken.expect_another_stream()
            self._stream = self._env.stream(self._agent, 8)
        return self._checker.rollout(self._stream.take())

    def settle(self) -> None:
        """No stream is open; where one was given up, environments stand later than its last row."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self._checker.skips()

    def reset(self, seed: int) -> None:
        """All environments are reset; a stream that an error has closed is forgotten."""
        self._stream = None
        self._checker.reset(self._env.reset(seed=seed)[0])


class Taken:
    """Which fragments of streams were taken, by worker and incarnation: numbers that follow each other."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        self.fragments = 0

    def expect_another_stream(self) -> None:
        """Numbers may jump: what was under way at the end of the last stream has been given up."""
        self._last.clear()

    def take(self, arrival: Arrival) -> None:
        """A fragment is handed to the learner."""
        place = arrival.peer.rank, arrival.incarnation
        number, before = arrival.message.fragment, self._last.get(place)
        if before is not None and number != before + 1:
            raise WrongRow(f"fragment {number} of worker {place} came after its fragment {before}")
        if any(rank == place[0] and incarnation > place[1] for rank, incarnation in self._last):
            raise WrongRow(f"fragment {number} of worker {place} came after one of its replacement")
        self._last[place] = number
        self.fragments += 1


@contextlib.contextmanager
def followed() -> Iterator[Taken]:
    """Every fragment that a head hands out is told."""
    taken = Taken()

    class Followed(Intake):
        def take(self) -> Arrival:
            arrival = super().take()
            taken.take(arrival)
            return arrival

    head.Intake = Followed  # type: ignore[misc]  # only looked at
    try:
        yield taken
    finally:
        head.Intake = Intake  # type: ignore[misc]
