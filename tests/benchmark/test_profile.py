from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_profile_prints_the_time_of_each_part() -> None:
    words = ["profile", "--num-envs", "2", "--num-steps", "8", "--repeats", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "clusterenv.benchmark", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    seen = dict(re.findall(r"^(.+?) +(\d+\.\d) +least", done.stdout, re.MULTILINE))
    times = {name.strip(): float(number) for name, number in seen.items()}
    assert times["all"] >= times["environments"] >= times["of which resets"] >= 0
    assert times["all"] >= times["policy: forward, sample"] > 0
    assert times["hand-written"] > times["bare environments"] > 0
    assert "hand-written / rollout" in done.stdout
