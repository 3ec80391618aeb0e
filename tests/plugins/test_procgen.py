"""Procgen's plugin is built, installed into a fresh virtual environment, and rolled out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.plugins.installed import PLUGINS, install_plugin, run

PLUGIN = PLUGINS / "clusterenv-procgen"
ALGORITHMS = ("ppo", "a2c", "a3c", "impala")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (PLUGIN / "README.md").read_text(), re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

ROLLOUT = """
import numpy as np
import torch
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig


class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(15))

    def distribution(self, obs):
        return Categorical(logits=self.logits.expand(len(obs), 15))


kwargs = {"distribution_mode": "easy", "num_levels": 20, "start_level": 5}


def stepped(name, nodes, envs, mode):
    with ClusterEnv(
        name, LocalConfig(nodes=nodes), env_kwargs=kwargs, envs_per_node=envs, autoreset_mode=mode
    ) as env:
        results = [env.reset(seed=3)]
        rng = np.random.default_rng(0)
        results += [env.step(rng.integers(0, 15, 4)) for _ in range(150)]
        return results


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        if one.dtype == object:
            return same(one.tolist(), other.tolist())
        return np.array_equal(one, other)
    return one == other


if __name__ == "__main__":
    expected = stepped("procgen-starpilot-v0", 2, 2, "NextStep")  # single games
    assert sum(step[2].sum() for step in expected[1:]) >= 4
    assert same(stepped("procgen:starpilot", 1, 4, "NextStep"), expected)
    assert same(stepped("procgen:procgen-starpilot-v0", 2, 2, "NextStep"), expected)
    config = {"type": "procgen", "env_name": "starpilot", "env_kwargs": kwargs, "autoreset_mode": "SameStep"}
    with ClusterEnv(config, LocalConfig(nodes=2), envs_per_node=4) as env:
        batch = env.rollout(Agent(), num_steps=200)
        assert batch.obs.shape == (200, 8, 64, 64, 3)
        assert batch.valid.all()
        ended = batch.terminations | batch.truncations
        assert len(batch.final_obs) == ended.sum() > 8
        for (t, n), final in zip(batch.final_index, batch.final_obs):
            following = batch.obs[t + 1, n] if t + 1 < 200 else batch.last_obs[n]
            assert ended[t, n] and not np.array_equal(final, following)
        assert sorted(set(batch.workers.tolist())) == [0, 1]
    print("done")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_plugin(PLUGIN, tmp_path_factory.mktemp("venv"))


def test_games_are_listed_as_a_backend_and_one_by_one(python: Path) -> None:
    lines = run(python, "-m", "clusterenv", "envs").splitlines()
    owner = "plugin procgen of clusterenv-procgen 0.1.0"
    backend = next(line for line in lines if line.startswith("procgen "))
    assert f"{owner}: clusterenv_procgen.vector:make; a backend; procgen:bigfish" in backend
    assert any(line.startswith("procgen-plunder-v0") and owner in line for line in lines)


def test_backend_steps_as_single_games_and_rolls_out_over_two_workers(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "rollout.py"
    script.write_text(ROLLOUT)
    assert run(python, str(script), cwd=tmp_path, timeout_s=500).endswith("done\n")


@pytest.mark.parametrize("layout", [["--workers", "1", "--serial"], ["--workers", "2"]], ids=" ".join)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_from_the_file_that_is_shipped(
    python: Path, tmp_path: Path, algorithm: str, layout: list[str]
) -> None:
    words = ["--config", "procgen-laptop", "--num-envs", "4", "--total-steps", "768", "--run-dir", "run"]
    run(python, "-m", "clusterenv", "train", algorithm, *words, *layout, cwd=tmp_path)
    results = json.loads((tmp_path / "run" / "benchmark_metrics.json").read_text())
    assert results["steps"] >= 768
    assert results["config"]["env_id"] == "procgen:coinrun"


def test_comparison_of_two_minutes_draws_its_picture(python: Path, tmp_path: Path) -> None:
    words = ["--results", "cluster", "--tasks", "procgen:coinrun=25s", "--layouts", "sequential", "parallel"]
    said = run(python, "-m", "clusterenv", "bench", "cluster", *words, cwd=tmp_path, timeout_s=500)
    assert re.findall(r"^\[\d/4\] .*: (.*)$", said, re.MULTILINE) == ["done"] * 4
    assert (tmp_path / "cluster" / "comparison.png").stat().st_size > 10_000
    page = (tmp_path / "cluster" / "comparison.md").read_text()
    for algorithm in ("ppo", "impala"):
        speeds = rf"^\| procgen:coinrun +\| {algorithm} +\| +[\d,]+ \| +[\d,]+ \| +\d\.\d\d"
        assert re.search(speeds, page, re.MULTILINE), page


def test_unknown_game_is_answered_with_the_nearest_and_the_list(python: Path) -> None:
    code = "import clusterenv; clusterenv.ClusterEnv('procgen:coinrum').launch()"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "Procgen has no game 'coinrum'; did you mean 'coinrun'? Its games are bigfish" in done.stderr


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_runs_as_printed(python: Path, tmp_path: Path, number: int) -> None:
    script = tmp_path / "block.py"
    script.write_text(BLOCKS[number])
    run(python, "-W", "error::DeprecationWarning:__main__", str(script), cwd=tmp_path)


def test_its_own_tests_pass(python: Path, tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path / "tests")]
    assert " passed" in run(python, *words, cwd=tmp_path, timeout_s=500)
