"""Draw the curves of runs: `clusterenv plot`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clusterenv.errors import ConfigError
from clusterenv.learners.reading import RunRecord, read_runs

DEFAULT_METRICS = ("episode_return", "syncs")
LABELS = {
    "steps": "environment steps",
    "seconds": "seconds",
    "episode_return": "mean return, last 100 episodes",
    "syncs": "weight syncs of all workers\n(dotted: one at each update)",
}


@dataclass(frozen=True, kw_only=True)
class PlotConfig:
    """Draw metrics of runs against environment steps, a panel for each metric and a line for each run."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs."""
    out: Path = Path("curves.png")
    """File to write; its ending chooses the format."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """What to draw: names in the runs' metrics.jsonl, such as steps_per_s or entropy."""
    against: Literal["steps", "seconds"] = "steps"
    """What to draw it against."""


def plot(
    runs: Sequence[RunRecord],
    out: Path,
    metrics: Sequence[str] = DEFAULT_METRICS,
    against: Literal["steps", "seconds"] = "steps",
) -> None:
    """Write a figure with a panel for each metric and a line for each run that has it.

    Raises:
        ConfigError: if no run has a metric, or `out` cannot be written in the format of its ending.
    """
    figure = Figure(figsize=(8, 0.5 + 3.2 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), sharex=True, squeeze=False)[:, 0]
    for name, axes in zip(metrics, panels, strict=True):
        _check_metric(name, runs)
        for number, run in enumerate(runs):
            _line(axes, run, name, against, color=f"C{number % 10}")
        axes.set_ylabel(LABELS.get(name, name))
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    panels[-1].set_xlabel(LABELS[against])
    write_figure(figure, out)


def write_figure(figure: Figure, out: Path) -> None:
    """The figure is in the file `out`, in the format of its ending.

    Raises:
        ConfigError: if that cannot be.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError("out", str(out), "a file name that ends in .png, .pdf or .svg") from error


def _check_metric(name: str, runs: Sequence[RunRecord]) -> None:
    items = [item for run in runs for row in run.rows for item in row.items()]
    numbers = {key for key, value in items if not isinstance(value, list | dict)}
    if name not in numbers:
        near = difflib.get_close_matches(name, numbers, n=1)
        hint = f"such as {near[0]!r}" if near else f"one of {', '.join(sorted(numbers))}"
        raise ConfigError("metrics", name, f"a metric of the runs, {hint}")


def _line(axes: Axes, run: RunRecord, name: str, against: str, color: str) -> None:
    at = run.column(against)
    axes.plot(at, run.column(name), color=color, label=run.name)
    if name == "syncs":
        each_update = run.column("updates") * run.config.get("workers", np.nan)
        axes.plot(at, each_update, color=color, linestyle=":", linewidth=1)


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status."""
    config = tyro.cli(PlotConfig, prog="clusterenv plot", args=list(argv))
    runs, problems = read_runs(config.runs)
    for problem in problems:
        sys.stderr.write(f"clusterenv: {problem}\n")
    plot(runs, config.out, config.metrics, config.against)
    sys.stdout.write(f"wrote {config.out}\n")
    return 0
