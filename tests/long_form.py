"""The long form of tests, `CLUSTERENV_LONG=1`: more of what they draw, and what no run has drawn before."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

LONG: Final = bool(os.environ.get("CLUSTERENV_LONG"))
TIMES: Final = 80
LONG_TIMEOUT_S: Final = 3 * 3600


def drawn(examples: int, *, times: int = TIMES, **others: Any) -> settings:
    """So many examples, in the short form the same ones each time: a change breaks tests or does not.

    The long form has `times` as many.
    """
    count = examples * times if LONG else examples
    return settings(max_examples=count, deadline=None, derandomize=not LONG, **others)
