"""What a sweep over rules of AAPS has found: a table for each task, and its plots."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from clusterenv.benchmark import aaps_results as results
from clusterenv.benchmark.aaps_plots import draw
from clusterenv.benchmark.aaps_statistics import difference_interval, iqm, iqm_interval
from clusterenv.errors import ConfigError

FEWEST = 3
"""Seeds below which no interval is shown, since it would be too narrow."""
COLUMNS = (
    "rule",
    "seeds",
    "return at the end",
    "difference",
    "over the run",
    "difference",
    "syncs",
    "weights",
    "fewer bytes",
    "with checks",
    "lag",
    "update KL",
)


@dataclass(frozen=True, kw_only=True)
class AapsReport:
    """Print a table (Markdown) for each task of a sweep, and draw its plots (PNG)."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files that `aaps` has written."""
    out: Path | None = None
    """Folder for the plots; none: tables alone."""
    against: str = "0"
    """Rule from which differences are taken."""
    rules: tuple[str, ...] = ()
    """Rules to show, in this order; none: all."""

    def run(self) -> None:
        """Read, print and draw."""
        lines = [line for path in self.results for line in results.load(path)]
        tasks = tasks_of(lines)
        if not tasks:
            raise ConfigError("results", [str(path) for path in self.results], "files with finished runs")
        for task, runs in tasks.items():
            chosen = {rule: runs[rule] for rule in self.rules or ordered(runs) if rule in runs}
            if not chosen:
                continue
            against = runs.get(self.against)
            sys.stdout.write(f"## {task.title}\n\n{table(chosen, against)}\n\n")
            if self.out is not None:
                path = self.out / f"{task.file_name}.png"
                draw(path, task.title, chosen)
                sys.stdout.write(f"wrote {path}\n\n")


@dataclass(frozen=True, slots=True)
class Task:
    """What the compared runs have in common."""

    algorithm: str
    env_id: str
    total_steps: int
    options: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return " ".join([self.algorithm, self.env_id, f"{self.total_steps:,} steps", *self.options])

    @property
    def file_name(self) -> str:
        """The title as a name."""
        words = ["aaps", self.algorithm, self.env_id, *self.options]
        return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(words)).strip("-").lower()


Runs = Mapping[str, Sequence[results.Line]]


def tasks_of(lines: Sequence[results.Line]) -> dict[Task, dict[str, list[results.Line]]]:
    """The finished runs of each task by rule, one for each seed: its newest."""
    found: dict[Task, dict[str, dict[int, results.Line]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if line["status"] == results.DONE:
            settings = line["settings"]
            task = Task(
                settings["algorithm"],
                settings["env_id"],
                settings["total_steps"],
                tuple(sorted(line["options"])),
            )
            found[task][line["rule"]][line["seed"]] = line
    return {
        task: {rule: [of_seed[seed] for seed in sorted(of_seed)] for rule, of_seed in rules.items()}
        for task, rules in found.items()
    }


def ordered(rules: Mapping[str, object]) -> list[str]:
    """Thresholds by size, then the other rules by name."""

    def place(rule: str) -> tuple[bool, float, str]:
        try:
            return False, float(rule), rule
        except ValueError:
            return True, 0.0, rule

    return sorted(rules, key=place)


def table(runs: Runs, against: Sequence[results.Line] | None) -> str:
    """Markdown, a row for each rule; intervals are of 90 %."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_row(rule, of, against) for rule, of in runs.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(rule: str, runs: Sequence[results.Line], against: Sequence[results.Line] | None) -> Sequence[str]:
    updates = np.mean([run["updates"] for run in runs])
    syncs = np.mean([sum(reasons.values()) for run in runs for reasons in run["syncs_by_worker"]])
    weights = np.mean([run["bytes"]["weight"] for run in runs])
    checks = np.mean([run["bytes"]["check"] for run in runs])
    broadcast = np.mean([run["bytes"]["broadcast"] for run in runs])
    update_kl = [run["update_kl"]["quartiles"][1] for run in runs if run["update_kl"]["count"]]
    comparisons: list[str] = []
    for score in (at_the_end, over_the_run):
        scores = [score(run) for run in runs]
        others = None if against is None else [score(run) for run in against]
        comparisons += [_with_interval(scores), _difference(scores, others)]
    return (
        rule,
        str(len(runs)),
        *comparisons,
        f"{syncs:.1f} of {updates:.0f}",
        f"{weights / 1e6:.2f} MB",
        f"{broadcast / weights:.1f} x",
        f"{broadcast / (weights + checks):.1f} x",
        f"{np.mean([mean_lag(run) for run in runs]):.1f}",
        f"{np.median(update_kl):.4f}" if update_kl else "-",
    )


def at_the_end(run: results.Line) -> float:
    """Mean return of the last episodes of a run; none has ended: -inf."""
    value = run["episode_return"]
    return -np.inf if value is None else float(value)


def over_the_run(run: results.Line) -> float:
    """The same, averaged over the run: how fast it learned."""
    values = [value for value in run["curves"]["episode_return"] if value is not None]
    return float(np.mean(values)) if values else -np.inf


def mean_lag(run: results.Line) -> float:
    """Versions by which the policy that acted was behind, averaged over rows."""
    lags = {int(lag): rows for lag, rows in run["rows_by_lag"].items()}
    return float(sum(lag * rows for lag, rows in lags.items()) / sum(lags.values()))


def _with_interval(scores: Sequence[float]) -> str:
    of = iqm_interval(scores)
    return f"{of.value:.0f} [{of.low:.0f}, {of.high:.0f}]" if len(scores) >= FEWEST else f"{of.value:.0f}"


def _difference(scores: Sequence[float], others: Sequence[float] | None) -> str:
    if others is None:
        return "-"
    of = difference_interval(scores, others)
    percent = 100 / abs(iqm(others))
    if min(len(scores), len(others)) < FEWEST:
        return f"{of.value * percent:+.0f} %"
    return f"{of.value * percent:+.0f} % [{of.low * percent:+.0f}, {of.high * percent:+.0f}]"
