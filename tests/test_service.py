"""The process around a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count

WHERE = """
import sys
from multiprocessing.util import get_temp_dir
from pathlib import Path
from clusterenv.service import keep_sockets_in

keep_sockets_in(None if sys.argv[1] == "none" else Path(sys.argv[1]))
print(get_temp_dir())
"""


def sockets_of(run_folder: Path | str, temp: Path) -> Path:
    """Where a worker keeps its sockets, with a TMPDIR."""
    words = [sys.executable, "-c", WHERE, str(run_folder)]
    environ = {**os.environ, "TMPDIR": str(temp)}
    done = subprocess.run(words, env=environ, capture_output=True, check=True, text=True)
    return Path(done.stdout.strip())


@pytest.fixture
def short() -> Path:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_sockets_are_in_the_folder_of_the_run(short: Path) -> None:
    assert sockets_of(short, Path("/tmp")) == short
    assert list(short.iterdir()) == []


@pytest.mark.parametrize("run_folder", ["none", "long", "missing"])
def test_sockets_are_in_a_folder_that_is_removed_where_that_of_the_run_cannot_hold_them(
    run_folder: str, short: Path
) -> None:
    long = short / ("x" * 70)
    long.mkdir()
    used = sockets_of({"none": "none", "long": long, "missing": short / "missing"}[run_folder], short)
    assert used.parent == short
    assert not used.exists()


def test_sockets_are_in_tmp_where_the_path_of_tmpdir_is_too_long(short: Path) -> None:
    long = short / ("x" * 70)
    long.mkdir()
    assert sockets_of(long, long).parent == Path("/tmp")


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", ["t", "t" * 120])
def test_killed_worker_leaves_nothing_in_tmpdir(
    name: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp = short / name
    temp.mkdir()
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    with ClusterEnv([partial(Count, 9)] * 2, LocalConfig(nodes=2), on_worker_loss="drop") as env:
        env.reset(seed=0)
        os.kill(env.stats()["workers"][1]["pid"], signal.SIGKILL)
        while "valid" not in env.step(np.zeros(2, np.int64))[4]:
            pass
    assert list(temp.iterdir()) == []
