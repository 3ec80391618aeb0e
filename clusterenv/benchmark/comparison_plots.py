"""The picture of a comparison: a row of panels for each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clusterenv.benchmark.aaps_statistics import iqm
from clusterenv.benchmark.comparison import Comparison, Group, Task, at, peak_memory_bytes, steps_per_s
from clusterenv.learners.plot import write_figure
from clusterenv.learners.reading import RunRecord

POINTS = 200
"""Places at which curves of several seeds are read off."""


def draw(comparison: Comparison, out: Path) -> None:
    """`out` shows of each task return against steps and against time, steps a second, and memory.

    Raises:
        ConfigError: if it cannot be written in the format of its ending.
    """
    tasks = comparison.tasks
    labels = list(dict.fromkeys(group.label for task in tasks for group in task.groups))
    colors = {label: f"C{number % 10}" for number, label in enumerate(labels)}
    figure = Figure(figsize=(17, 0.7 + 3.6 * len(tasks)), layout="constrained")
    rows = figure.subplots(len(tasks), 4, squeeze=False, width_ratios=(3, 3, 2, 2))
    for task, (by_steps, by_time, rate, memory) in zip(tasks, rows, strict=True):
        by_steps.set_title(task.title, loc="left", fontsize="medium")
        _curves(by_steps, task, "steps", colors)
        _curves(by_time, task, "seconds", colors)
        _bars(rate, task.groups, steps_per_s, colors, "environment steps a second")
        _bars(memory, task.groups, lambda run: peak_memory_bytes(run) / 2**20, colors, "peak memory, MiB")
    write_figure(figure, out)


def _curves(axes: Axes, task: Task, against: Literal["steps", "seconds"], colors: dict[str, str]) -> None:
    """The interquartile mean of a group's curves, and what lies between the least and the greatest."""
    for group in task.groups:
        ends = [run.column(against)[-1] for run in group.runs]
        places = np.linspace(0, min(ends), POINTS + 1)[1:]
        read = np.array([[at(run, against, place) for place in places] for run in group.runs])
        seen = np.isfinite(read).all(axis=0)
        axes.plot(
            places[seen],
            [iqm(column) for column in read[:, seen].T],
            color=colors[group.label],
            label=f"{group.label} ({len(group.runs)})",
        )
        if len(group.runs) > 1:
            low, high = read[:, seen].min(axis=0), read[:, seen].max(axis=0)
            axes.fill_between(places[seen], low, high, color=colors[group.label], alpha=0.15, linewidth=0)
    axes.set_xlabel("environment steps" if against == "steps" else "seconds")
    axes.set_ylabel("return of the last 100 episodes")
    axes.grid(alpha=0.3)
    if against == "steps":
        axes.legend(fontsize="small", title="runs (seeds)")
    if task.score_range is not None and against == "seconds":
        _add_normalized_axis(axes, *task.score_range)


def _add_normalized_axis(axes: Axes, lowest: float, highest: float) -> None:
    def score(value: Any) -> Any:  # noqa: ANN401 - matplotlib calls both with arrays and with numbers
        return (value - lowest) / (highest - lowest)

    def value(score: Any) -> Any:  # noqa: ANN401
        return lowest + score * (highest - lowest)

    axes.secondary_yaxis("right", functions=(score, value)).set_ylabel("normalised score")


def _bars(
    axes: Axes,
    groups: Sequence[Group],
    number: Callable[[RunRecord], float],
    colors: dict[str, str],
    title: str,
) -> None:
    """The mean of each group, and a dot for each run; nothing where no run tells."""
    for place, group in enumerate(groups):
        values = np.array([number(run) for run in group.runs])
        values = values[np.isfinite(values)]
        if values.size:
            axes.barh(place, values.mean(), color=colors[group.label], alpha=0.6)
            axes.plot(values, np.full(values.size, place), "k.", markersize=4)
    axes.set_yticks(range(len(groups)), [group.label for group in groups], fontsize="small")
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlabel(title)
    axes.grid(alpha=0.3, axis="x")
