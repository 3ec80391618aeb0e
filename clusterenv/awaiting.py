"""The one call whose answer the caller has not taken: begun by `*_async`, finished by `*_wait`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusterenv.errors import CallPending, CallTimeout, ConfigError, NoCallPending
from clusterenv.head import Head
from clusterenv.outcomes import Pending

Result = Any
"""What the call returns."""


@dataclass(frozen=True, slots=True)
class _Call:
    what: str
    pending: Pending[Any]
    finish: Callable[[], Result]


class Awaiting:
    """Holds at most one call, with Gymnasium's errors for what does not fit."""

    def __init__(self) -> None:
        """None is pending."""
        self._call: _Call | None = None

    def refuse(self, doing: str) -> None:
        """Return if no call is pending.

        Raises:
            CallPending: if one is.
        """
        if self._call is not None:
            what = self._call.what
            raise CallPending(f"{doing} while {what}_async waits for its {what}_wait; call that first", what)

    def begun(self, what: str, pending: Pending[Any], finish: Callable[[], Result]) -> None:
        """`what` is pending from now on."""
        self._call = _Call(what, pending, finish)

    def finish(self, what: str, timeout_s: float | None, head: Head | None) -> Result:
        """The result of the call that is pending; none is afterwards.

        Raises:
            NoCallPending: if none is, or another.
            CallTimeout: if it is not there within `timeout_s`; it is still pending.
        """
        call = self._call
        if call is None or call.what != what:
            raise NoCallPending(f"{what}_wait without a {what}_async before it", what)
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s >= 0):
            raise ConfigError("timeout", timeout_s, "a number of seconds from 0, or None")
        assert head is not None
        if timeout_s is not None and not head.wait([call.pending], timeout_s):
            raise CallTimeout(f"{what}_wait was not finished within timeout = {timeout_s:g} s")
        self._call = None
        return call.finish()
