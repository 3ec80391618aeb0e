"""What a worker process does before it imports the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.launchers.base import worker_defaults
from clusterenv.transport import Connection, RunKeys
from clusterenv.worker_start import CONNECTION_VARIABLE, PRELOAD_VARIABLE
from tests.agents import MLPAgent
from tests.envs import Knows, TorchNoise
from tests.processes import alive, wait_until

ROOT = Path(__file__).parents[1]
NOBODY = "tcp://127.0.0.1:9"
SLEEPS = """
import pathlib, time
pathlib.Path(__file__).with_name("importing").touch()
time.sleep(600)
"""

WHERE = """
import sys
from multiprocessing.util import get_temp_dir
from pathlib import Path
from clusterenv.worker_start import keep_sockets_in

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


@pytest.fixture
def slow_imports(short: Path) -> dict[str, str]:
    """Variables with which torch takes ten minutes to import."""
    (short / "torch.py").write_text(SLEEPS)
    path = os.pathsep.join([str(short), str(ROOT), str(ROOT / "registry")])
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(short)}


@pytest.fixture
def worker(short: Path, slow_imports: dict[str, str]) -> Iterator[subprocess.Popen]:
    """One that looks for a head where there is none, its connection in its environment."""
    connection = Connection.for_worker(RunKeys.generate(), 1, [NOBODY])
    words = [sys.executable, "-m", "clusterenv", "worker", "--rank", "0"]
    with subprocess.Popen(words, env=slow_imports | connection.to_env(), cwd=short) as process:
        yield process
        process.kill()


def forkserver_of(process: subprocess.Popen) -> psutil.Process:
    """The forkserver of a worker, once it is there."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        children = psutil.Process(process.pid).children()
        found[:] = [child for child in children if "forkserver" in " ".join(child.cmdline())]
        return bool(found)

    wait_until(is_there)
    return found[0]


@pytest.mark.process
def test_forkserver_has_no_key_and_one_thread(worker: subprocess.Popen) -> None:
    environ = forkserver_of(worker).environ()
    assert CONNECTION_VARIABLE not in environ
    assert environ["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")


@pytest.mark.process
def test_forkserver_ends_with_its_worker_while_it_still_imports(
    worker: subprocess.Popen, short: Path
) -> None:
    server = forkserver_of(worker)
    wait_until((short / "importing").exists)
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not alive([server.pid]))


@pytest.mark.process
def test_worker_that_cannot_read_its_connection_leaves_nothing(
    short: Path, slow_imports: dict[str, str]
) -> None:
    folder = short / "run"
    folder.mkdir(mode=0o700)
    file = folder / "connection.json"
    file.touch(mode=0o600)
    words = [sys.executable, "-m", "clusterenv", "worker", "--rank", "0", "--connection", str(file)]
    done = subprocess.run(words, env=slow_imports, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "does not hold a connection" in done.stderr
    assert list(folder.iterdir()) == [file]
    wait_until(lambda: not [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)], 5)


@pytest.mark.process
@pytest.mark.parametrize("preloaded", ["", "torch"])
def test_runners_have_torch_from_the_start_or_with_the_first_agent_that_needs_it(
    preloaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRELOAD_VARIABLE, preloaded)
    with ClusterEnv([Knows] * 2, LocalConfig(nodes=1, cpus_per_node=2), seed=0) as env:
        env.reset()
        env.step(np.zeros(2, np.int64))
        assert env.call("has", "torch") == (bool(preloaded),) * 2
        batch = env.rollout(MLPAgent(env), 4)
        assert batch.valid.all()
        assert env.call("has", "torch") == (True, True)


@pytest.mark.process
def test_each_runner_draws_torch_numbers_of_its_own_whenever_it_imports_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    for preloaded in ("torch", ""):
        monkeypatch.setenv(PRELOAD_VARIABLE, preloaded)
        with ClusterEnv([TorchNoise] * 2, LocalConfig(nodes=1, cpus_per_node=2), seed=3) as env:
            drawn.append(env.reset()[0])
    assert (drawn[0][0] != drawn[0][1]).all()
    assert (drawn[0] == drawn[1]).all()


def test_worker_preloads_torch_only_where_its_head_has_it_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert worker_defaults({})[PRELOAD_VARIABLE] == "torch"
    assert PRELOAD_VARIABLE not in worker_defaults({PRELOAD_VARIABLE: "jax"})
    monkeypatch.delitem(sys.modules, "torch")
    assert worker_defaults({})[PRELOAD_VARIABLE] == ""


@pytest.mark.process
def test_module_that_cannot_be_preloaded_is_told_and_the_others_are_there() -> None:
    code = "import sys, clusterenv._preload; print('colorsys' in sys.modules, 'torch' in sys.modules)"
    environ = {**os.environ, PRELOAD_VARIABLE: "nosuchmodule colorsys"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False"]
    assert "CLUSTERENV_PRELOAD names 'nosuchmodule', which cannot be imported" in done.stderr
