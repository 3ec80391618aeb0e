"""What the collector of cycles looks at during a large run."""

from __future__ import annotations

import gc

import pytest

from clusterenv import ClusterEnv, LocalConfig, session
from clusterenv.cycles import set_aside
from tests.envs import Count


def test_objects_are_set_aside_and_come_back() -> None:
    bring_back = set_aside()
    try:
        assert gc.get_freeze_count() > 0
        set_aside()()  # one run inside another leaves that to the first
        assert gc.get_freeze_count() > 0
    finally:
        bring_back()
    assert gc.get_freeze_count() == 0


@pytest.mark.process
@pytest.mark.parametrize(("many", "does"), [(1, True), (2, False)])
def test_large_run_sets_objects_aside_for_as_long_as_it_lasts(
    many: int, does: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MANY_WORKERS", many)
    with ClusterEnv([Count], LocalConfig(nodes=1)) as env:
        env.launch()
        assert (gc.get_freeze_count() > 0) == does
    assert gc.get_freeze_count() == 0
