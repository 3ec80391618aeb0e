"""What the collector of cycles looks at during a large run."""

from __future__ import annotations

import gc

from clusterenv.cycles import set_aside


def test_objects_are_set_aside_and_come_back() -> None:
    bring_back = set_aside()
    try:
        assert gc.get_freeze_count() > 0
        set_aside()()  # one run inside another leaves that to the first
        assert gc.get_freeze_count() > 0
    finally:
        bring_back()
    assert gc.get_freeze_count() == 0
