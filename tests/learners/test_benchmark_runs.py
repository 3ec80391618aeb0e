"""A run from a configuration file, as a benchmark makes it: what it leaves, and that it can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterenv.learners import ppo
from clusterenv.learners.duration_option import seconds_of

FILE = """\
algorithm: ppo
env: CartPole-v1
workers: 2
num_envs: 10
n_steps: 20
batch_size: 64  # does not divide 200 rows
n_epochs: 1
duration: 3s
total_timesteps: 100_000_000
seed: 3
"""


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_run_for_a_time_tells_its_returns_cost_and_options(tmp_path: Path) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(FILE)

    ppo.train(*ppo.parse(["--config", str(file), "--run-dir", str(run)]))

    results = json.loads((run / "benchmark_metrics.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert results["ended"] == "duration"
    assert 2.0 < results["seconds"] < 100.0  # of the last update, after which the time was asked for
    assert results["steps"] == rows[-1]["steps"] == 200 * results["updates"]
    assert results["last_100_return"] == rows[-1]["episode_return"]
    assert results["learner_cpu_s"] > 0
    assert results["workers_cpu_s"] > 0
    assert results["workers_memory_peak_bytes"] > 1 << 20
    assert [worker["rank"] for worker in results["workers"]] == [0, 1]
    assert {"entropy", "explained_variance", "kl_k3", "threads", "steps_per_s"} <= rows[-1].keys()
    again, launcher = ppo.parse(["--config", str(run / "config.yaml"), "--seed", "4"])
    assert (again.seed, again.env_id, again.duration, again.num_envs) == (4, "CartPole-v1", 3.0, 10)
    assert again.run_dir is None
    assert launcher.nodes == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("1h30m", 5400.0), ("0.5h", 1800.0), ("2 m 5 s", 125.0)],
)
def test_time_is_read_in_the_words_of_people(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 d", "30m1h", "-3s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time such as 90s"):
        seconds_of(text)
