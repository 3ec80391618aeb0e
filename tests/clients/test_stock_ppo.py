"""A stock PPO loop over `step(agent)` learns with AAPS too, with few syncs."""

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
def test_stock_ppo_learns_with_twice_fewer_syncs_until_it_has() -> None:
    # How many more steps it needs differs with the seed, and for one seed with the processor, whose rounding
    # decides: 0.7 to 2.3 times (docs/results.md).
    always, adaptive = run(0.0), run(0.05)
    assert always["reached_at"] is not None
    assert adaptive["reached_at"] is not None
    assert 2 * adaptive["syncs_per_worker"] <= always["syncs_per_worker"]
