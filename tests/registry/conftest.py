from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterenv_registry import catalogue, plugins

ENV_FILE = """
import gymnasium as gym
import numpy as np


class Counter(gym.Env):
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.start, np.float32), {}

    def step(self, action):
        return np.full(1, self.start + 1, np.float32), 1.0, False, False, {}
"""


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts with nothing registered, in a home of its own, and leaves no plugin behind."""
    monkeypatch.setenv("CLUSTERENV_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(catalogue, "_registered", {})
    plugins.installed.cache_clear()
    yield
    plugins.installed.cache_clear()


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / "counter.py"
    path.write_text(ENV_FILE)
    return path


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Lay a distribution with one module on the path, as an installer would."""
    site = tmp_path / "site"
    site.mkdir()
    installed: list[str] = []
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, source: str) -> None:
        (site / f"{name}.py").write_text(source)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[clusterenv]\nenvs = {name}\n")
        installed.append(name)
        plugins.installed.cache_clear()

    yield install
    for name in installed:
        sys.modules.pop(name, None)
