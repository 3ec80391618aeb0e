"""When heartbeats are due: often enough for the lease, and no oftener than the head needs."""

from __future__ import annotations

import pytest

from clusterenv.beats import Beats, beat_interval_s
from clusterenv.transport import messages as m
from tests.test_intake import COMMAND, FRAGMENT

BEAT = m.Heartbeat(steps=0, working_on=0)
ROOM = m.Room(fragments=1)
LEASE_S, MANY = 10.0, 2000
"""An interval of 2.5 s, and 10 s for what heartbeats tell."""


def test_heartbeats_are_frequent_in_small_runs_and_some_in_a_lease_in_large_ones() -> None:
    assert beat_interval_s(10.0, 4) == 1.0
    assert beat_interval_s(1.0, 4) == 0.2
    assert beat_interval_s(10.0, 1000) == 2.0
    assert beat_interval_s(10.0, 100_000) == 2.5
    assert beat_interval_s(60.0, 5000) == 10.0


@pytest.fixture
def beats() -> Beats:
    """Of a worker that streams and has just sent a heartbeat, at 0 s."""
    beats = Beats(LEASE_S, MANY)
    assert beats.is_due(-100.0)
    beats.sent(BEAT, 0.0)
    beats.received(COMMAND)
    return beats


def test_without_fragments_one_is_due_after_each_interval(beats: Beats) -> None:
    assert not beats.is_due(2.4)
    assert beats.is_due(2.5)
    beats.sent(BEAT, 2.5)
    assert not beats.is_due(4.9)
    assert beats.is_due(5.0)


def test_fragment_that_was_taken_is_a_sign_of_life_as_of_when_it_was_sent(beats: Beats) -> None:
    beats.sent(FRAGMENT, 2.0)
    beats.sent(FRAGMENT, 2.2)
    beats.received(ROOM)
    assert not beats.is_due(4.4)
    assert beats.is_due(4.5)
    beats.received(ROOM)
    assert not beats.is_due(4.6)
    assert beats.is_due(4.7)


def test_fragment_on_its_way_is_no_sign_of_life(beats: Beats) -> None:
    beats.sent(FRAGMENT, 2.0)
    assert beats.is_due(2.5)


def test_one_that_tells_how_far_the_worker_is_is_due_now_and_then(beats: Beats) -> None:
    for second in range(1, 10):
        beats.sent(FRAGMENT, float(second))
        beats.received(ROOM)
        assert not beats.is_due(second + 0.5)
    assert beats.is_due(10.0)


def test_worker_of_a_small_run_sends_them_all_the_same() -> None:
    beats = Beats(LEASE_S, 4)
    beats.sent(BEAT, 0.0)
    beats.received(COMMAND)
    beats.sent(FRAGMENT, 0.9)
    beats.received(ROOM)
    assert beats.is_due(1.0)


@pytest.mark.parametrize(
    "ends",
    [
        m.StopStream(),
        m.RolloutCommand(version=1, num_steps=4, reference=None, has_weights=False),
        COMMAND,
    ],
)
def test_room_says_nothing_of_fragments_of_another_command(beats: Beats, ends: m.Message) -> None:
    beats.sent(FRAGMENT, 2.0)
    beats.received(ends)
    beats.received(m.Room(fragments=1 << 40))
    assert beats.is_due(2.5)


def test_news_of_the_policy_do_not_end_a_stream(beats: Beats) -> None:
    beats.sent(FRAGMENT, 2.0)
    beats.received(m.Published(version=2, reference=None, has_weights=False))
    beats.received(m.WeightsReply(version=2))
    beats.received(m.HeartbeatAck())
    beats.received(ROOM)
    assert not beats.is_due(4.4)


def test_answers_to_other_commands_are_no_fragments_of_a_stream() -> None:
    beats = Beats(LEASE_S, MANY)
    beats.sent(BEAT, 0.0)
    beats.sent(FRAGMENT, 2.0)
    beats.received(ROOM)
    assert beats.is_due(2.5)
