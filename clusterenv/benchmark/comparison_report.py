"""A comparison of runs as Markdown: a table for each task, and one over all games of Procgen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from clusterenv.benchmark.aaps_statistics import Interval, iqm, iqm_interval, iqm_over_tasks
from clusterenv.benchmark.comparison import (
    Comparison,
    Group,
    Task,
    at,
    final_return,
    peak_memory_bytes,
    steps_per_s,
)
from clusterenv.learners.evaluate import EVALUATION_FILE
from clusterenv.learners.procgen_levels import SOURCE
from clusterenv.learners.reading import RunRecord, read_json

FEWEST = 3
"""Seeds below which no interval is shown, since it would be too narrow."""


def report(comparison: Comparison, picture: str | None) -> str:
    """The whole comparison, with a link to its picture."""
    parts = ["# Comparison of runs"]
    if picture is not None:
        parts.append(f"![Return, steps a second and memory of the runs]({picture})")
    parts += [f"## {task.title}\n\n{table(task)}" for task in comparison.tasks]
    over_games = games_table(comparison.tasks)
    if over_games:
        parts.append(f"## Procgen, over games\n\n{over_games}")
    parts.append(_explanation(comparison))
    if comparison.remarks:
        parts.append("## Remarks\n\n" + "\n".join(f"- {remark}" for remark in comparison.remarks))
    return "\n\n".join(parts) + "\n"


def table(task: Task) -> str:
    """A row for each group; intervals where there are at least three seeds."""
    steps, seconds = task.common_steps, task.common_seconds

    def normalized(run: RunRecord) -> float:
        return task.normalized(final_return(run))

    columns: dict[str, Callable[[Group], str]] = {
        "runs": lambda group: group.label,
        "seeds": lambda group: str(len(group.runs)),
        "steps": lambda group: f"{_mean(group, lambda run: run.column('steps')[-1]):,.0f}",
        "seconds": lambda group: f"{_mean(group, lambda run: run.column('seconds')[-1]):,.0f}",
        "return at the end": lambda group: _score(group, final_return),
        "best": lambda group: _score(group, _best),
        f"at {steps:,} steps": lambda group: _score(group, lambda run: at(run, "steps", steps)),
        f"at {seconds:,.0f} s": lambda group: _score(group, lambda run: at(run, "seconds", seconds)),
        "steps/s": lambda group: f"{_mean(group, steps_per_s):,.0f}",
        "peak memory": lambda group: _memory(_mean(group, peak_memory_bytes)),
    }
    if task.score_range is not None:
        columns["normalised"] = lambda group: _score(group, normalized, ".3f")
    for levels in sorted({name for group in task.groups for run in group.runs for name in _evaluated(run)}):
        columns[f"evaluated, {levels}" if levels else "evaluated"] = partial(_evaluation, levels)
    return markdown(list(columns), [[cell(group) for cell in columns.values()] for group in task.groups])


def games_table(tasks: Sequence[Task]) -> str:
    """Normalised scores over the games that each group has; "" with fewer than two games."""
    games = [task for task in tasks if task.score_range is not None]
    if len(games) < 2:
        return ""
    rows = []
    for label in dict.fromkeys(group.label for task in games for group in task.groups):
        scores = [
            [task.normalized(final_return(run)) for run in group.runs]
            for task in games
            for group in task.groups
            if group.label == label
        ]
        finite = [kept for of in scores if (kept := [value for value in of if np.isfinite(value)])]
        if finite:
            score = _shown(iqm_over_tasks(finite), ".3f", few=min(map(len, finite)) < FEWEST)
            rows.append([label, str(len(finite)), str(sum(map(len, finite))), score])
    return markdown(["runs", "games", "runs counted", "normalised score at the end"], rows)


def _explanation(comparison: Comparison) -> str:
    text = (
        "Return is the mean of the last 100 training episodes. Of several seeds it is the interquartile "
        "mean, with the 90 % interval of its bootstrap over seeds in brackets from "
        f"{FEWEST} seeds on (Agarwal and others, 2021). Steps/s counts environment steps over the whole run, "
        "learning included; memory is that of learner and workers together. The columns at equal steps and "
        "equal seconds are where the shortest run ends."
    )
    ranges = [
        f"{task.title} {task.score_range[0]:g} to {task.score_range[1]:g}"
        for task in comparison.tasks
        if task.score_range is not None
    ]
    if ranges:
        text += (
            " A normalised score is (return - lowest) / (highest - lowest), with the constants of "
            f"{SOURCE}: {', '.join(ranges)}."
        )
    return text


def _evaluated(run: RunRecord) -> dict[str, float]:
    """Mean returns that `clusterenv evaluate --save` has kept, by levels."""
    kept = read_json(run.folder / EVALUATION_FILE)
    return {
        levels: float(np.mean(one["returns"]))
        for levels, one in kept.items()
        if isinstance(one, dict) and one.get("returns")
    }


def _evaluation(levels: str, group: Group) -> str:
    return _score(group, lambda run: _evaluated(run).get(levels, np.nan))


def _best(run: RunRecord) -> float:
    returns = run.column("episode_return")
    return float(np.nanmax(returns)) if np.isfinite(returns).any() else np.nan


def _mean(group: Group, number: Callable[[RunRecord], float]) -> float:
    return float(np.mean([number(run) for run in group.runs]))


def _score(group: Group, score: Callable[[RunRecord], float], form: str = ".1f") -> str:
    scores = [value for run in group.runs if np.isfinite(value := score(run))]
    if not scores:
        return "-"
    if len(scores) < FEWEST:
        return f"{iqm(scores):{form}}"
    return _shown(iqm_interval(scores), form, few=False)


def _shown(of: Interval, form: str, *, few: bool) -> str:
    return f"{of.value:{form}}" if few else f"{of.value:{form}} [{of.low:{form}}, {of.high:{form}}]"


def _memory(number: float) -> str:
    return f"{number / 2**20:,.0f} MiB" if np.isfinite(number) else "-"


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
