"""The plots of a sweep over rules of AAPS: one figure for a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clusterenv.benchmark import aaps_results as results
from clusterenv.benchmark.aaps_statistics import iqm
from clusterenv.errors import ConfigError

Runs = Mapping[str, Sequence[results.Line]]
Color = NDArray[np.float64]
"""Red, green, blue and alpha."""
POINTS = 200
"""Steps at which curves of several seeds are read off."""


def draw(path: Path, title: str, runs: Runs) -> None:
    """`path` is a figure of the runs of one task, by rule.

    Raises:
        ConfigError: if it cannot be written.
    """
    figure = Figure(figsize=(13, 14), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(3, 2)
    shades = np.asarray(colormaps["turbo"](np.linspace(0.03, 0.97, len(runs))))
    colors = dict(zip(runs, shades, strict=True))
    for rule, of in runs.items():
        _curve(panels[0, 0], of, "episode_return", rule, colors[rule])
        _curve(panels[0, 1], of, "syncs_by_worker", rule, colors[rule])
        _bytes_against_return(panels[1, 0], of, rule, colors[rule])
        _lags(panels[1, 1], of, rule, colors[rule])
        _divergences(panels[2, 0], of, rule, colors[rule])
        _curve(panels[2, 1], of, "kl_threshold", rule, colors[rule])
    _label(panels[0, 0], "return of the last 100 episodes\n(IQM of the seeds, least and greatest)", "steps")
    _label(panels[0, 1], "syncs of a worker", "steps", y="log")
    _label(panels[1, 0], "return at the end, each run", "bytes of weights sent", x="log")
    _label(panels[1, 1], "rows with this lag or more", "policy lag, versions", x="symlog", y="log")
    _label(panels[2, 0], "comparisons", "KL found, nats", x="log")
    _label(panels[2, 1], "threshold in force, nats", "steps", y="log")
    panels[0, 0].legend(fontsize="small", title="rule", ncols=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError("out", str(path), f"a file that can be written ({error.strerror})") from error


def _label(axes: Axes, vertical: str, horizontal: str, x: str = "linear", y: str = "linear") -> None:
    axes.set_ylabel(vertical)
    axes.set_xlabel(horizontal)
    axes.set_xscale(x)
    axes.set_yscale(y)
    axes.grid(alpha=0.3)


def _curve(axes: Axes, runs: Sequence[results.Line], name: str, rule: str, color: Color) -> None:
    """The interquartile mean of a curve over seeds, and what lies between the least and the greatest."""
    last = min(run["curves"]["steps"][-1] for run in runs)
    steps = np.linspace(0, last, POINTS + 1)[1:]
    found = np.array([_read_off(run["curves"], name, steps) for run in runs])
    seen = np.isfinite(found).all(axis=0)
    if not seen.any():
        return
    found, steps = found[:, seen], steps[seen]
    axes.plot(steps, [iqm(column) for column in found.T], color=color, label=rule)
    axes.fill_between(steps, found.min(axis=0), found.max(axis=0), color=color, alpha=0.1, linewidth=0)


def _read_off(curves: Mapping[str, Any], name: str, steps: NDArray[Any]) -> NDArray[np.float64]:
    """A curve at `steps`, NaN before its first value; of one for each worker the mean."""
    values = [
        np.mean([np.nan if part is None else part for part in value]) if isinstance(value, list) else value
        for value in curves[name]
    ]
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    there = np.isfinite(numbers)
    if not there.any():
        return np.full(len(steps), np.nan)
    known = np.array(curves["steps"])[there]
    read: NDArray[np.float64] = np.interp(steps, known, numbers[there], left=np.nan)
    return read


def _bytes_against_return(axes: Axes, runs: Sequence[results.Line], rule: str, color: Color) -> None:
    sent = [run["bytes"]["weight"] for run in runs]
    returns = [np.nan if run["episode_return"] is None else run["episode_return"] for run in runs]
    axes.scatter(sent, returns, color=color, s=18)
    axes.annotate(rule, (float(np.mean(sent)), float(np.nanmean(returns))), color=color, fontsize="small")


def _lags(axes: Axes, runs: Sequence[results.Line], rule: str, color: Color) -> None:
    rows: dict[int, int] = {}
    for run in runs:
        for lag, count in run["rows_by_lag"].items():
            rows[int(lag)] = rows.get(int(lag), 0) + count
    lags = np.array(sorted(rows))
    counts = np.array([rows[lag] for lag in lags], dtype=np.float64)
    axes.plot(
        lags, counts[::-1].cumsum()[::-1] / counts.sum(), color=color, label=rule, drawstyle="steps-post"
    )


def _divergences(axes: Axes, runs: Sequence[results.Line], rule: str, color: Color) -> None:
    counts = np.sum([run["kl_at_checks"]["counts"] for run in runs], axis=0)[1:-1]  # not 0 and not infinite
    if counts.any():
        axes.stairs(counts, np.array(results.KL_EDGES[1:-1]), color=color, label=rule)
