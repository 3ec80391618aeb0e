"""What a run is seen to take: of several learners the sum, and a warning when memory comes to its end."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil
import pytest

from clusterenv.learners import resources
from clusterenv.learners.available_memory import Memory, available_memory
from clusterenv.learners.resources import LearnerUsage, Resources

WORKERS = [{"memory_bytes": 5, "cpu_s": 2.0}, {"memory_bytes": 7, "cpu_s": 1.0}]


def test_processors_and_memory_of_other_learners_are_counted() -> None:
    watched = Resources(LearnerUsage())
    alone = watched.row({"workers": WORKERS})

    others = [{"cpu_s": 0.0, "memory_bytes": 0}, {"cpu_s": 100.0, "memory_bytes": 1 << 40}]
    row = watched.row({"workers": WORKERS, "learners": others})

    assert alone["learner_memory_bytes"] > 0
    assert row["learner_memory_bytes"] == alone["learner_memory_bytes"] + (1 << 40)
    assert row["learner_cpu_s"] >= alone["learner_cpu_s"] + 100
    assert row["memory_peak_bytes"] == row["learner_memory_peak_bytes"] + 12
    assert row["workers_cpu_s"] == 3.0


def test_run_that_goes_on_counts_on() -> None:
    first = Resources(LearnerUsage())
    first.row({"workers": WORKERS, "learners": [{}, {"cpu_s": 50.0, "memory_bytes": 1 << 40}]})
    second = Resources(LearnerUsage())
    second.go_on_from(first.totals())

    row = second.row({"workers": WORKERS})

    assert 50 <= row["learner_cpu_s"] < 60
    assert row["workers_cpu_s"] == 6.0
    assert row["learner_memory_peak_bytes"] > 1 << 40


def test_memory_that_is_nearly_full_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resources, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(resources, "available_memory", lambda: Memory(3 << 20, 100 << 20, "this job"))
    watched = Resources(LearnerUsage())

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            watched.row({"workers": WORKERS})

    assert caplog.messages == [
        "the memory of this job is nearly full (3 of 100 MB are left): fewer environments, shorter rollouts "
        "(num_steps) or fewer workers need less; at its end the system kills a process"
    ]


def group(folder: Path, limit: str, used: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_the_group_that_is_fullest_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/slurm/job_7/step_0\n")
    root = tmp_path / "groups"
    group(root, "max", 0)
    group(root / "slurm", str(1 << 60), 0)
    group(root / "slurm" / "job_7", "1000", used=999, inactive=4)
    group(root / "slurm" / "job_7" / "step_0", "max", 0)

    assert available_memory(own, root) == Memory(5, 1000, "this container or job")


@pytest.mark.parametrize("text", ["", "1:memory:/old\n", "0::/nowhere\n"])
def test_without_a_group_the_machine_counts(tmp_path: Path, text: str) -> None:
    own = tmp_path / "cgroup"
    own.write_text(text)

    found = available_memory(own, tmp_path / "groups")

    assert (found.total_bytes, found.whose) == (psutil.virtual_memory().total, "this machine")
