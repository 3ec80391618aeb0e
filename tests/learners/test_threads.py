"""Threads of the learner: how many cores it has, and what it shares with workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterenv.learners.threads import available_cores, cpu_quota, learner_threads, physical_cores


def test_small_networks_get_one_thread_and_large_ones_all_cores() -> None:
    assert learner_threads(large=False, cores=16) == 1
    assert learner_threads(large=True, cores=16) == 16
    assert learner_threads(large=True, cores=0) == 1


def test_two_processors_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")

    assert physical_cores(range(4), tmp_path) == 2
    assert physical_cores([0, 2], tmp_path) == 1
    assert physical_cores([7, 8], tmp_path) == 2  # nothing is known of them


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("", None), ("x y", None)]
)
def test_quota_of_a_container_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)

    assert cpu_quota(tmp_path / "cpu.max") == quota
    assert cpu_quota(tmp_path / "none") is None
    assert available_cores() >= 1
