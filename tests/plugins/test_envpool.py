"""The plugin for EnvPool is built, installed into a fresh virtual environment, and run over two workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.plugins.installed import PLUGINS, ROOT, install_plugin, run

PLUGIN = PLUGINS / "clusterenv-envpool"

NEEDED = (
    "envpool",
    "envpool-assets",
    "envpool-assets-mujoco-large",
    "attrs",
    "dm-env",
    "dm-tree",
    "glfw",
    "optree",
    "wrapt",
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(400)]

ROLLOUT = """
import numpy as np
import torch
from clusterenv import ClusterEnv, LocalConfig


class Policy(torch.nn.Module):
    def __init__(self, space, actions):
        super().__init__()
        self.logits = torch.nn.Linear(int(np.prod(space.shape)), int(actions))

    def distribution(self, obs):
        flat = torch.as_tensor(obs).float().flatten(1)
        return torch.distributions.Categorical(logits=self.logits(flat))


if __name__ == "__main__":
    for name in ("CartPole-v1", "LunarLander-v3", "Pong-v5", "CoinrunEasy-v0"):
        config = {"type": "envpool", "env_name": name, "envs_per_node": 4}
        with ClusterEnv(config, LocalConfig(nodes=2)) as env:
            space, actions = env.launch()
            env.reset(seed=1)
            batch = env.rollout(Policy(space, actions.n), num_steps=64)
            ends = batch.terminations | batch.truncations
            assert batch.obs.shape == (64, 8, *space.shape)
            assert (batch.valid[1:] == ~ends[:-1]).all() and batch.valid[0].all()
            assert not batch.rewards[~batch.valid].any()
            assert [e.length for e in batch.episodes if e.length > 64] == []
            print(name, len(batch.episodes), flush=True)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the plugin and EnvPool, less one set of models."""
    python = install_plugin(PLUGIN, tmp_path_factory.mktemp("venv"))
    words = ["-m", "pip", "install", "-q", "--no-deps", "-c", str(ROOT / ".ci" / "constraints.txt")]
    run(python, *words, *NEEDED)
    return python


def test_it_is_listed_with_its_environments(python: Path) -> None:
    [listed] = [
        item
        for item in json.loads(run(python, "-m", "clusterenv", "envs", "--json"))
        if item["name"] == "envpool"
    ]
    assert listed["owner"] == "plugin envpool of clusterenv-envpool 0.1.0"
    assert listed["missing"] is None
    assert {"CartPole-v1", "Pong-v5", "CoinrunEasy-v0"} <= set(listed["env_names"])


def test_it_rolls_out_over_two_workers(python: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ROLLOUT)
    told = dict(line.split() for line in run(python, "script.py", cwd=tmp_path).splitlines())
    assert set(told) == {"CartPole-v1", "LunarLander-v3", "Pong-v5", "CoinrunEasy-v0"}
    assert int(told["CartPole-v1"]) > 8


def test_ppo_learns_with_it(python: Path, tmp_path: Path) -> None:
    words = ["--env-id", "envpool:CartPole-v1", "--workers", "2", "--total-steps", "40000", "--seed", "1"]
    run(python, "-m", "clusterenv", "train", "ppo", *words, "--run-dir", "run", cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["episode_return"] > 60
    played = run(python, "-m", "clusterenv", "evaluate", "--checkpoint", "run/checkpoint.pt", cwd=tmp_path)
    assert played.startswith("20 episodes")


def test_its_own_tests_and_page_run(python: Path, tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::UserWarning", "tests"]
    assert "20 passed" in run(python, *words, cwd=tmp_path)
    block = (PLUGIN / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "page.py").write_text(block)
    run(python, "page.py", cwd=tmp_path)
