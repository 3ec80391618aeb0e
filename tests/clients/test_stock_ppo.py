"""A PPO script that knows nothing of AAPS learns over workers that pull weights only now and then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_stock_ppo_learns_cartpole_with_few_pulls() -> None:
    script = Path(__file__).parent / "stock_ppo.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kl-threshold", "0.05", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["reached_at"] is not None
    assert result["last_100"] >= 475
    assert result["syncs_per_worker"] < result["updates"] / 2
