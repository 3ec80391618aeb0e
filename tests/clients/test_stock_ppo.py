"""A stock PPO loop over `step(agent)` learns with AAPS in about the steps it needs without, and few syncs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "stock_ppo.py"


def run(kl_threshold: float) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--kl-threshold", str(kl_threshold), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(500)
@pytest.mark.usefixtures("nothing_left")
def test_stock_ppo_learns_as_fast_with_four_times_fewer_syncs() -> None:
    always, adaptive = run(0.0), run(0.05)
    assert always["reached_at"] is not None
    assert adaptive["reached_at"] is not None
    assert adaptive["reached_at"] <= 1.3 * always["reached_at"]
    assert 4 * adaptive["syncs_per_worker"] <= always["syncs_per_worker"]
