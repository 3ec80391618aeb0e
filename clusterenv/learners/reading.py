"""Read what runs have left in their folders: of a killed run, one of another version, one just begun too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from clusterenv.errors import ConfigError
from clusterenv.learners.run_folder import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What is in the folder of a run that has made an update."""

    folder: Path
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    """The metrics, one for each update."""
    finished: bool
    """Whether the run has come to its end, by an interrupt too; not if it was killed, or still goes on."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def algorithm(self) -> str:
        """Its name on the command line, "" if the folder does not tell."""
        return str(self.config.get("algorithm", ""))

    @property
    def env_id(self) -> str:
        """The environment, "" if the folder does not tell."""
        return str(self.config.get("env_id", ""))

    def column(self, name: str) -> NDArray[np.float64]:
        """A metric at each update, NaN where there is none."""
        values = [row.get(name) for row in self.rows]
        return np.array([v if isinstance(v, int | float) else np.nan for v in values], np.float64)


def read_run(folder: Path) -> RunRecord:
    """The run in `folder`; a last line of metrics that a killed run has not finished is left out.

    Raises:
        ConfigError: if the folder holds no run, or one without an update.
    """
    try:
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        config = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("run", str(folder), "the folder of a run") from error
    if not isinstance(config, dict):
        raise ConfigError("run", str(folder), f"a run whose {CONFIG_FILE} holds its options")
    rows = _rows(folder, lines)
    if not rows:
        raise ConfigError("run", str(folder), "a run with at least one update")
    return RunRecord(folder=folder, config=config, rows=rows, finished=(folder / SUMMARY_FILE).exists())


def read_runs(folders: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """The runs that can be read, and a sentence for each folder that cannot.

    Raises:
        ConfigError: if none can be read.
    """
    if not folders:
        raise ConfigError("runs", [], "at least one folder of a run")
    records, problems = [], []
    for folder in folders:
        try:
            records.append(read_run(folder))
        except ConfigError as error:
            problems.append(f"{error}; it is left out")
            first = error
    if not records:
        raise first
    return records, problems


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run; empty if there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _rows(folder: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            expected = f"a run whose {METRICS_FILE} is JSON in line {number}"
            raise ConfigError("run", str(folder), expected) from error
        if not isinstance(row, dict) or not isinstance(row.get("steps"), int):
            raise ConfigError("run", str(folder), f"a run whose {METRICS_FILE} tells steps in line {number}")
        rows.append(row)
    return rows
