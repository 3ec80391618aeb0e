"""Fixtures for all tests: launchers to run over, and a check that nothing is left running."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings

from clusterenv import LocalConfig
from clusterenv.monitor.finding import find_runs
from clusterenv.worker_start import PRELOAD_VARIABLE
from tests.long_form import LONG, LONG_TIMEOUT_S, drawn

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

LAUNCHERS = {
    "serial": LocalConfig(serial=True),
    "one worker": LocalConfig(nodes=1, cpus_per_node=1),
    "two workers": LocalConfig(nodes=2, cpus_per_node=1),
    "two runners": LocalConfig(nodes=1, cpus_per_node=2),
}


settings.register_profile("clusterenv", settings(drawn(100), deadline=None))
settings.load_profile("clusterenv")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What draws more takes longer."""
    for item in items if LONG else ():
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With `-n 2` those of a file, and all that use the one Slurm cluster, run in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "slurm" if file.startswith("tests/slurm/") else file

    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests are not listed among those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import torch only with an agent that needs it: for tests that launch and act by themselves."""
    monkeypatch.setenv(PRELOAD_VARIABLE, "")


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> LocalConfig:
    """Every way of running environments."""
    return LAUNCHERS[request.param]


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a process, a run folder, its entry or a shared-memory segment behind."""
    folder = tmp_path / "run folders"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    processes, segments = _children(), set(Path("/dev/shm").iterdir())
    yield
    _, alive = psutil.wait_procs([child for child in _children() - processes], timeout=5)
    assert not [child.cmdline() for child in alive]
    assert not list(folder.glob("clusterenv-*"))
    assert not find_runs([folder])
    new = set(Path("/dev/shm").iterdir()) - segments
    assert not [path for path in new if path.name.startswith("clusterenv")]


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
