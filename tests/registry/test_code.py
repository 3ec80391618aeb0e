"""Code of a user's file or package, as the head reads it and as a worker runs it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterenv import ClusterEnv, LocalConfig
from clusterenv_registry import SourceError, code, store
from clusterenv_registry.entry import FileSource
from clusterenv_registry.loading import EnvFactory

CORE = """
import gymnasium as gym
import numpy as np
from pathlib import Path
from walks.numbers import one

class Walk(gym.Env):
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        start = float((Path(__file__).parent / "data" / "start.txt").read_text())
        return np.full(1, start, np.float32), {"file": __file__}

    def step(self, action):
        return np.full(1, one, np.float32), 1.0, False, False, {}
"""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "walks"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .core import Walk\n")
    (folder / "core.py").write_text(CORE)
    (folder / "numbers.py").write_text("one = 1\n")
    (folder / "data" / "start.txt").write_text("7")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "core.pyc").write_bytes(b"old")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "walks"]:
        del sys.modules[name]


def first_obs(read: code.Code) -> float:
    return float(EnvFactory("Walk", read, {})().reset(seed=0)[0][0])


def test_package_is_read_with_its_data_and_without_caches(package: Path) -> None:
    read = code.read(FileSource(str(package)))
    assert sorted(read.files) == ["__init__.py", "core.py", "data/start.txt", "numbers.py"]


def test_package_runs_where_it_lies(package: Path) -> None:
    env = EnvFactory("Walk", code.read(FileSource(str(package))), {})()
    obs, info = env.reset(seed=0)
    assert obs.tolist() == [7.0]
    assert info["file"] == str(package / "core.py")


@pytest.mark.parametrize("there", ["nothing", "another version"])
def test_package_runs_where_there_is_no_such_copy(package: Path, there: str) -> None:
    read = code.read(FileSource(str(package)))
    if there == "nothing":
        shutil.rmtree(package)
    else:
        (package / "data" / "start.txt").write_text("9")
    assert first_obs(read) == 7.0


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("launcher", [LocalConfig(nodes=2), LocalConfig(nodes=1, cpus_per_node=2)], ids=str)
def test_workers_without_a_copy_run_what_the_head_has_read(package: Path, launcher: LocalConfig) -> None:
    store.add("Walk", FileSource(str(package)))
    with ClusterEnv({"type": "Walk", "envs_per_node": 2}, launcher) as env:
        shutil.rmtree(package)
        assert env.reset(seed=0)[0][:, 0].tolist() == [7.0] * env.num_envs


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_file_runs_on_workers_that_cannot_read_it(env_file: Path) -> None:
    store.add("Counter", FileSource(str(env_file)))
    with ClusterEnv({"type": "Counter", "envs_per_node": 1, "env_kwargs": {"start": 4}}) as env:
        env_file.unlink()
        assert env.reset(seed=0)[0].tolist() == [[4.0]]


def test_code_with_another_hash_is_refused(env_file: Path) -> None:
    read = code.read(FileSource(str(env_file)))
    changed = dataclasses.replace(read, files={"counter.py": b"print(1)"})
    with pytest.raises(SourceError, match="is not what its hash says"):
        EnvFactory("Counter", changed, {})()


def test_package_whose_name_is_taken_says_so(package: Path) -> None:
    named = package.rename(package.with_name("json"))
    with pytest.raises(SourceError, match="another module of that name is imported here already"):
        first_obs(code.read(FileSource(str(named))))


def test_package_that_fails_leaves_no_module(package: Path) -> None:
    (package / "core.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        first_obs(code.read(FileSource(str(package))))
    assert not [name for name in sys.modules if name.partition(".")[0] == "walks"]


def test_package_that_is_too_large_says_what_to_do(package: Path) -> None:
    with (package / "data" / "weights.bin").open("wb") as file:
        file.truncate(code.MOST_BYTES + 1)
    with pytest.raises(SourceError, match=r"more than 32 MiB.*register package.module:Class"):
        code.read(FileSource(str(package)))


def test_file_name_outside_of_the_package_is_refused(package: Path) -> None:
    files = {"__init__.py": b"", "../evil.py": b""}
    read = code.Code(FileSource("/no/such/walks"), files, code.digest(files))
    with pytest.raises(SourceError, match="lies outside it"):
        first_obs(read)


@pytest.mark.process
def test_copies_are_gone_when_the_process_ends(package: Path, tmp_path: Path) -> None:
    script = (
        "import shutil, sys\n"
        "from clusterenv_registry import code\n"
        "from clusterenv_registry.entry import FileSource\n"
        "from clusterenv_registry.loading import EnvFactory\n"
        "read = code.read(FileSource(sys.argv[1]))\n"
        "shutil.rmtree(sys.argv[1])\n"
        "EnvFactory('Walk', read, {})().reset(seed=0)\n"
    )
    temp = tmp_path / "temp"
    temp.mkdir()
    subprocess.run(
        [sys.executable, "-c", script, str(package)],
        check=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(temp), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert list(temp.iterdir()) == []


MAKERS = """
import gymnasium as gym
import numpy as np

class Hidden(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size):
        self.observation_space = gym.spaces.Box(0, 1, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

def make_env(env_config):
    return Hidden(env_config["size"])
"""


@pytest.mark.parametrize("attribute", [None, "make_env"])
def test_make_env_is_given_the_whole_of_env_kwargs(tmp_path: Path, attribute: str | None) -> None:
    path = tmp_path / "makers.py"
    path.write_text(MAKERS)
    env = EnvFactory("Made", code.read(FileSource(str(path), attribute)), {"size": 3})()
    assert env.reset(seed=0)[0].shape == (3,)
    assert EnvFactory("Made", code.read(FileSource(str(path), "Hidden")), {"size": 2})().reset()[0].shape == (
        2,
    )
