"""What Python's collector of cycles looks at while a large run lasts."""

from __future__ import annotations

import gc
from collections.abc import Callable

MANY_WORKERS = 256
"""From so many on, what workers send brings about a look at all objects each second or two."""


def set_aside() -> Callable[[], None]:
    """All objects of now are out of the collector's sight, until the result is called.

    Nothing is done where a part of the program has seen to that already.
    """
    if gc.get_freeze_count():
        return _nothing
    gc.collect()
    gc.freeze()
    return gc.unfreeze


def _nothing() -> None:
    """Do nothing."""
