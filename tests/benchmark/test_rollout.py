from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterenv.benchmark import main

pytestmark = pytest.mark.process

TINY = ["--workers", "1", "--envs-per-worker", "4", "--num-steps", "16", "--seconds", "0.5", "--repeats", "1"]


@pytest.mark.parametrize("style", ["distribution", "cleanrl", "residual"])
def test_rollout_prints_and_writes_what_each_contender_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    path = tmp_path / "result.json"
    assert main(["rollout", *TINY, "--agent-style", style, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("CartPole-v1: 1 x 4 environments, rollouts of 16 steps, ")
    result = json.loads(path.read_text())
    assert result["settings"] == {
        "env_id": "CartPole-v1",
        "workers": 1,
        "envs_per_worker": 4,
        "num_steps": 16,
        "seconds": 0.5,
        "repeats": 1,
        "agent_style": style,
    }
    assert set(result["steps_per_s"]) == {"bare", "hand_written", "clusterenv"}
    for rates in result["steps_per_s"].values():
        assert len(rates["samples"]) == 1
        assert rates["min"] == rates["median"] == rates["max"] > 0
    assert set(result["ratios"]) == {"clusterenv / hand_written", "clusterenv / bare", "hand_written / bare"}
    for name in [*result["steps_per_s"], *result["ratios"], *result["machine"]]:
        assert name in printed


def test_module_runs_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterenv.benchmark", "rollout", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "--envs-per-worker" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "workers is 0; expected a whole number from 1"),
        (["--seconds", "nan"], "seconds is nan; expected a number of seconds above 0"),
        (
            ["--json", "/no/such/folder/x.json"],
            "json is '/no/such/folder/x.json'; expected a file in a folder",
        ),
        (["--env-id", "CartPoel-v1"], "CartPole"),
    ],
)
def test_option_that_cannot_work_is_answered_with_one_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    try:
        status = main(["rollout", *TINY, *options])
    except SystemExit as stop:
        status = int(stop.code or 0)
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())  # it may come in a frame
    assert status == 2
    assert words in told
    assert "Traceback" not in told
