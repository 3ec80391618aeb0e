"""The progress line, on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import sys

import pytest

from clusterenv.learners import progress
from clusterenv.learners.progress import ProgressLine, bytes_text, short_number


def test_line_is_plain_and_rare_where_it_cannot_be_rewritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 4.9, 5.0, 6.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    line = ProgressLine()

    for text in "abcde":
        line.show(text)
    line.close()

    assert capsys.readouterr().out == "a\nd\n"


def test_line_is_rewritten_on_a_terminal_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        with contextlib.redirect_stdout(terminal):
            line = ProgressLine()
            for text in ("first state", "second state"):
                line.show(text)
            line.close()
            line.say("the end")
        seen = ""
        while not seen.endswith(
            "the end\r\n"
        ):  # the terminal hands it over in pieces; pytest's timeout ends it
            seen += screen.read(10_000).decode()

    assert "first state" in seen
    assert "second state" in seen
    assert "\x1b[2K" in seen  # the line is erased before it is written again
    assert seen.endswith("the end\r\n")
    assert "\x1b[?25h" in seen  # the cursor is back


def test_nothing_is_said_without_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    line = ProgressLine()

    line.show("a")
    line.say("the end")
    line.close()


def test_line_goes_nowhere_once_its_terminal_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, contextlib.redirect_stdout(terminal):
        line = ProgressLine()
        line.show("seen")
        os.close(ours)
        line.show("seen by nobody")
        line.close()
        line.say("the end")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (123_456, "123.5k"), (2_000_000, "2.00M")]
)
def test_numbers_are_short(number: int, text: str) -> None:
    assert short_number(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (36_620, "36.6 kB"), (7.2e6, "7.2 MB"), (3e9, "3 GB")]
)
def test_bytes_have_units(number: float, text: str) -> None:
    assert bytes_text(number) == text
