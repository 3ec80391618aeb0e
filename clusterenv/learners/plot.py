"""Draw the learning curves of runs: `clusterenv plot`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml
from matplotlib.figure import Figure

from clusterenv.errors import ConfigError
from clusterenv.learners.run_folder import CONFIG_FILE, METRICS_FILE


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Draw return and weight syncs against environment steps."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs."""
    out: Path = Path("curves.png")
    """File to write; its ending chooses the format."""


def plot(runs: Sequence[Path], out: Path) -> None:
    """Write a figure with a line for each run: above the mean return, below the weight syncs.

    Raises:
        ConfigError: if a folder holds no metrics, or `out` cannot be written in the format of its ending.
    """
    figure = Figure(figsize=(8, 7), layout="constrained")
    returns, syncs = figure.subplots(2, sharex=True)
    for folder in runs:
        rows, config = read_run(folder)
        steps = [row["steps"] for row in rows]
        line = returns.plot(steps, [row["episode_return"] for row in rows], label=folder.name)[0]
        syncs.plot(steps, [row["syncs"] for row in rows], color=line.get_color())
        each_update = [row["updates"] * config["workers"] for row in rows]
        syncs.plot(steps, each_update, color=line.get_color(), linestyle=":", linewidth=1)
    returns.set_ylabel("mean return, last 100 episodes")
    returns.legend(fontsize="small")
    syncs.set_ylabel("weight syncs of all workers\n(dotted: one at each update)")
    syncs.set_xlabel("environment steps")
    for axes in (returns, syncs):
        axes.grid(alpha=0.3)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError("out", str(out), "a file name that ends in .png, .pdf or .svg") from error


def read_run(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The metrics of a run, one dict for each update, and its configuration.

    A last line that a killed run has not finished is left out.

    Raises:
        ConfigError: if the folder holds no run, or one without an update.
    """
    try:
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        config = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("run", str(folder), "the folder of a run") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                expected = f"a run whose {METRICS_FILE} is JSON in line {number}"
                raise ConfigError("run", str(folder), expected) from error
    if not rows:
        raise ConfigError("run", str(folder), "a run with at least one update")
    return rows, config


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status."""
    config = tyro.cli(PlotConfig, prog="clusterenv plot", args=list(argv))
    if not config.runs:
        raise ConfigError("runs", [], "at least one folder of a run")
    plot(config.runs, config.out)
    sys.stdout.write(f"wrote {config.out}\n")
    return 0
