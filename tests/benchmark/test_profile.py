from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def profile_of(*words: str) -> tuple[dict[str, float], str]:
    words = ("profile", "--num-envs", "2", "--num-steps", "8", "--repeats", "2", *words)
    done = subprocess.run(
        [sys.executable, "-m", "clusterenv.benchmark", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    seen = dict(re.findall(r"^(.+?) +(\d+\.\d) +least", done.stdout, re.MULTILINE))
    return {name: float(number) for name, number in seen.items()}, done.stdout


def test_profile_prints_the_time_of_each_part() -> None:
    times, printed = profile_of("--num-steps", "64")  # several episodes end

    assert times["all"] >= times["policy and steps in C++"] >= times["resets (within steps)"] > 0
    assert times["hand-written"] > times["bare environments"] > 0
    assert "environments" not in times
    assert "hand-written / rollout" in printed


def test_parts_are_told_apart_where_the_loop_in_cpp_does_not_run() -> None:
    times, _ = profile_of("--env-id", "clusterenv.benchmark.tasks:ClusterEnvPixels-v0")

    assert times["all"] >= times["environments"] > 0
    assert times["all"] >= times["policy: forward, sample"] > 0
