"""Signals during a run: the first raises once, the ending is not disturbed, handlers come back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from clusterenv.learners import interrupts
from clusterenv.learners.interrupts import SIGNALS, Interrupts


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_no_signal_is_status_0() -> None:
    with Interrupts() as caught:
        pass

    assert caught.status == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_the_block_with_the_status_of_a_shell(number: signal.Signals) -> None:
    ended = False
    with Interrupts() as caught:
        send(number)
        ended = True

    assert not ended
    assert caught.status == 128 + number


def test_further_signals_do_not_disturb_the_cleaning_up() -> None:
    cleaned = []
    with Interrupts() as caught:
        try:
            try:
                send(signal.SIGTERM)
            finally:
                send(signal.SIGINT)
                cleaned.append("inner")
        except BaseException:
            send(signal.SIGINT)
            cleaned.append("outer")
            raise

    assert cleaned == ["inner", "outer"]
    assert caught.status == 143


def test_signal_raises_again_if_the_first_was_swallowed() -> None:
    with Interrupts() as caught:
        with contextlib.suppress(BaseException):  # as a finalizer of the interpreter does
            send(signal.SIGINT)
        send(signal.SIGINT)
        pytest.fail("not reached")

    assert caught.status == 130


def test_signal_raises_no_more_once_the_ending_has_begun() -> None:
    with Interrupts() as caught:
        interrupts.hold()
        send(signal.SIGTERM)

    assert caught.status == 143


def test_error_of_the_block_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="the disk"), Interrupts():
        raise ValueError("the disk")


def test_signal_that_the_process_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with Interrupts() as caught:
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert caught.status == 0
