"""An option that is a time: seconds in Python; 90s, 30m or 1h30m on a command line and in files."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from tyro.constructors import PrimitiveConstructorSpec

_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds_of(text: str) -> float:
    """The seconds that `text` means.

    Raises:
        ValueError: if it is no time.
    """
    words = "".join(text.split())
    match = _TIME.fullmatch(words)
    if not words or match is None:
        raise ValueError(f"{text!r} is no time such as 90s, 30m, 1h30m, or a number of seconds")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


_SPEC: PrimitiveConstructorSpec[float] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="TIME",
    instance_from_str=lambda words: seconds_of(words[0]),
    is_instance=lambda value: isinstance(value, float | int),
    str_from_instance=lambda value: [f"{value:g}s"],
)

Duration: TypeAlias = Annotated[float, _SPEC]
