"""The folder of a run: what is in it, and what is said at the end."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clusterenv import Rollout
from clusterenv.batches import EpisodeRecord
from clusterenv.errors import ConfigError
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.networks import Agent
from clusterenv.learners.ppo import PPOConfig
from clusterenv.learners.results import WINDOW
from clusterenv.learners.run_folder import default_folder
from clusterenv.learners.runs import Run, RunFolderError, Summary
from tests.learners.disks import full_disk
from tests.learners.rollouts import made_up_rollout

CONFIG = PPOConfig(env_id="CartPole-v1", hidden=(4, 4), kl_threshold=float("inf"))


def rollout_with(returns: list[float]) -> Rollout:
    """24 steps, three of them not valid, in which episodes of these returns ended."""
    valid = np.ones((6, 4), bool)
    valid[:3, 0] = False
    agent = Agent(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    episodes = [EpisodeRecord(env_id=0, episode_return=r, length=10) for r in returns]
    return dataclasses.replace(
        made_up_rollout(agent, valid=valid), episodes=episodes, kl=np.array([np.nan, 0.25])
    )


def stats_after(syncs: list[dict[str, int]]) -> dict[str, Any]:
    workers = [
        {
            "sync_count": sum(reasons.values()),
            "syncs_by_reason": reasons,
            "kl": math.inf,
            "checks": 7,
            "kl_threshold": 0.05,
            "cpu_s": 1.5,
            "memory_bytes": 1 << 20,
        }
        for reasons in syncs
    ]
    return {"workers": workers, "weight_bytes_sent": 1500, "check_bytes_sent": 70}


def run_in(folder: Path, **options: Any) -> Run:
    return Run("ppo", CONFIG, folder, total_steps=1000, weight_bytes=400, **options)


SYNCS = [{"first": 1, "divergence": 2}, {"first": 1}]


def test_run_folder_tells_all_about_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "run"
    with run_in(folder) as run:
        run.log(rollout_with([]), stats_after(SYNCS), {"value_loss": 0.5, "entropy": float("nan")})
        run.log(rollout_with([1.0, 3.0]), stats_after(SYNCS), {"value_loss": 0.25})

    config = yaml.safe_load((folder / "config.yaml").read_text())
    expected = {"algorithm": "ppo", **dataclasses.asdict(CONFIG), "hidden": [4, 4]}
    assert config == {name: value for name, value in expected.items() if name not in ("run_dir", "resume")}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [21, 42]
    assert [row["episode_return"] for row in rows] == [None, 2.0]
    assert rows[0]["entropy"] is None
    assert (
        rows[1] | {"updates": 2, "kl": 0.25, "syncs": 4, "broadcast_bytes": 1600, "value_loss": 0.25}
        == rows[1]
    )
    assert rows[1]["rows_by_lag"] == {"0": 21}
    assert rows[1]["check_bytes_sent"] == 70
    known = {"kl": None, "checks": 7, "kl_threshold": 0.05}
    assert rows[1]["workers"] == [known | {"syncs_by_reason": reasons} for reasons in SYNCS]
    used = {"workers_cpu_s": 3.0, "workers_memory_bytes": 2 << 20, "workers_memory_peak_bytes": 2 << 20}
    assert rows[1] | used == rows[1]
    assert rows[1]["memory_peak_bytes"] >= rows[1]["learner_memory_peak_bytes"] > 1 << 20
    board = EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss/value_loss")] == [
        (21, 0.5),
        (42, 0.25),
    ]
    assert board.Scalars("run/episode_return")[0].step == 42
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["syncs_by_worker"] == SYNCS
    assert "worker 0: 3 syncs (divergence 2, first 1)" in capsys.readouterr().out


def test_summary_is_what_happened() -> None:
    summary = Summary(
        seconds=2.0,
        steps=4000,
        steps_per_s=2000.0,
        updates=20,
        episodes=300,
        episode_return=12.34,
        syncs_by_worker=SYNCS,
        weight_bytes_sent=1500,
        check_bytes_sent=70,
        broadcast_bytes=16_000_000,
    )

    assert summary.text().splitlines() == [
        "4,000 steps in 2.0 s (2,000 steps/s), 20 updates",
        "mean return of the last 100 of 300 episodes: 12.3",
        "worker 0: 3 syncs (divergence 2, first 1)",
        "worker 1: 1 syncs (first 1)",
        "weights sent: 1.5 kB (and 70 B of checks); a broadcast at each update would have sent 16 MB",
    ]


def test_run_is_not_written_over_another(tmp_path: Path) -> None:
    with run_in(tmp_path):
        pass
    before = sorted(tmp_path.iterdir())

    with pytest.raises(ConfigError, match=r"run_dir is .*; expected a folder without a run in it"):
        run_in(tmp_path)

    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("place", "problem"),
    [("file", "File exists"), ("file/run", "Not a directory"), ("n" * 300, "File name too long")],
)
def test_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=rf"run_dir is .*; expected a folder that can be .* \({problem}\)"):
        run_in(tmp_path / place)


def test_folder_of_the_system_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run_dir is '/proc/runs'; expected a folder that can be made"):
        run_in(Path("/proc/runs"))


def test_full_disk_names_the_file_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    agent = Agent(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    checkpoint = Checkpoint(
        algorithm="ppo",
        env_id="CartPole-v1",
        steps=7,
        agent=agent.state_dict(),
        agent_options={},
        optimizer={},
        config={},
    )
    run = run_in(tmp_path)
    run.save(checkpoint)
    run.log(rollout_with([]), stats_after(SYNCS), {"value_loss": 0.5})
    old = (tmp_path / "checkpoint.pt").read_bytes()

    with full_disk():
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written: File too large$"):
            run.log(rollout_with([]), stats_after(SYNCS), {"value_loss": 0.5})
        with pytest.raises(RunFolderError, match=r"checkpoint\.pt cannot be written: File too large$"):
            run.save(checkpoint)
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written: File too large$"):
            run.__exit__(None, None, None)

    assert (tmp_path / "checkpoint.pt").read_bytes() == old
    assert not list(tmp_path.glob(".*"))


def test_goal_is_reached_only_over_a_full_window(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log(rollout_with([50.0] * (WINDOW - 1)), stats_after([]), {})
        early = run.reached(10.0)
        run.log(rollout_with([50.0]), stats_after([]), {})

        assert not early
        assert run.reached(50.0)
        assert not run.reached(50.1)
        assert not run.reached(None)


def test_results_tell_what_the_run_came_to_on_which_machine(tmp_path: Path) -> None:
    with run_in(tmp_path, launcher={"launcher": "local"}) as run:
        run.log(rollout_with([float(number) for number in range(150)]), stats_after(SYNCS), {})
        run.log(rollout_with([0.0] * 50), stats_after(SYNCS), {})

    results = json.loads((tmp_path / "benchmark_metrics.json").read_text())
    returns = {
        "final_return": 0.0,
        "last_100_return": sum(range(100, 150)) / 100,
        "best_return": sum(range(50, 150)) / 100,
        "greatest_episode_return": 149.0,
    }
    counts = {"format": 1, "algorithm": "ppo", "env_id": "CartPole-v1", "ended": "steps", "steps": 42}
    assert results | returns | counts == results
    assert results["steps_per_hour"] == pytest.approx(3600 * results["steps_per_s"])
    assert (
        results["config"] | {"launcher": "local", "kl_threshold": None, "num_steps": 64} == results["config"]
    )
    assert {"processor", "torch", "python"} <= results["machine"].keys()
    assert results["memory_peak_bytes"] > 1 << 20


def test_metrics_have_a_line_every_few_updates_if_asked_for(tmp_path: Path) -> None:
    with run_in(tmp_path, log_interval=2) as run:
        for _ in range(5):
            run.log(rollout_with([1.0]), stats_after([]), {})

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [2, 4, 5]
    assert json.loads((tmp_path / "benchmark_metrics.json").read_text())["episodes"] == 5


def test_summary_is_written_when_the_run_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), run_in(tmp_path) as run:  # noqa: PT012 - what is tested is the leaving
        run.log(rollout_with([1.0]), stats_after(SYNCS), {})
        raise KeyboardInterrupt

    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 1
    assert json.loads((tmp_path / "benchmark_metrics.json").read_text())["ended"] == "interrupt"


def test_default_folder_is_named_by_what_runs() -> None:
    folder = default_folder("ppo", "my_pkg:Env/Sub-v0", 3)

    assert folder.parent == Path("runs")
    assert folder.name.startswith("my_pkg_Env_Sub-v0-ppo-seed3-")
