"""Folders of runs made up for the tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def run_folder(
    folder: Path, updates: int = 3, *, gain: float = 1.0, finished: bool = True, **config: Any
) -> Path:
    """A run with updates after 10, 20, ... steps and seconds; no episode has ended before the second."""
    folder.mkdir()
    options = {"algorithm": "ppo", "env_id": "CartPole-v1", "env_kwargs": {}, "seed": 1, "workers": 2}
    (folder / "config.yaml").write_text(yaml.safe_dump(options | config))
    rows = [
        {
            "steps": 10 * i,
            "seconds": 10.0 * i,
            "updates": i,
            "syncs": i // 2,
            "episode_return": None if i < 2 else gain * i,
        }
        for i in range(1, updates + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder
