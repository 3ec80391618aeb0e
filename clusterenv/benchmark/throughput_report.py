"""What `bench throughput` found out, as tables, as JSON and as a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clusterenv.benchmark.paired import MedianInterval, median_interval
from clusterenv.benchmark.report import Spread
from clusterenv.benchmark.subject_process import Sample
from clusterenv.errors import ConfigError

WIDEST_WORD = 200
"""Characters of a reason that are shown."""


@dataclass(slots=True)
class Outcome:
    """What became of one subject on one task: samples, one for each round, or why there are none."""

    samples: list[Sample] = field(default_factory=list)
    missing: str = ""
    """The command that installs what is missing."""
    failed: str = ""
    """Why it cannot be measured."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that it ran with."""

    @property
    def rates(self) -> list[float]:
        """Environment steps per second, round by round."""
        return [sample.steps_per_s for sample in self.samples]

    @property
    def cpu_us_per_step(self) -> float:
        """Median processor time of an environment step."""
        return median(sample.cpu_us_per_step for sample in self.samples)

    def reason(self) -> str:
        """Why there are no samples."""
        return f"not installed: {self.missing}" if self.missing else f"failed: {self.failed}"


@dataclass(slots=True)
class ThroughputReport:
    """All tasks."""

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    baselines: Sequence[str]
    tasks: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def ratio(self, task: str, name: str, baseline: str) -> MedianInterval | None:
        """A subject by a baseline, divided within each round; none where one of them was not measured."""
        ours, theirs = (self.tasks[task][each].rates for each in (name, baseline))
        if not ours or not theirs:
            return None
        return median_interval([one / other for one, other in zip(ours, theirs, strict=True)])

    def table(self, task: str) -> str:
        """One task for a person, in Markdown."""
        titles = [task, "env steps/s", "least to greatest", "CPU us/step"]
        rows = [[*titles, *(f"x {name} [interval]" for name in self.baselines)]]
        rows.append(["---"] * len(rows[0]))
        untold = []
        for name, outcome in self.tasks[task].items():
            if outcome.samples:
                rows.append(self._row(task, name, outcome))
            else:
                untold.append(f"{name}: {outcome.reason()[:WIDEST_WORD]}")
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) + " |"
            for row in rows
        ]
        return "\n".join([*lines, *([""] if untold else []), *untold, ""])

    def _row(self, task: str, name: str, outcome: Outcome) -> list[str]:
        spread = Spread.of(outcome.rates)
        cells = [name, f"{spread.median:,.0f}", f"{spread.min:,.0f} to {spread.max:,.0f}"]
        cells.append(f"{outcome.cpu_us_per_step:.1f}")
        for baseline in self.baselines:
            ratio = self.ratio(task, name, baseline)
            cells.append("-" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
        return cells

    def footer(self) -> str:
        """What holds for all tables."""
        coverage = median_interval([0.0] * self.settings["repeats"]).coverage
        facts = [f"{name}: {fact}" for name, fact in self.machine.items()]
        rounds = f"medians of {self.settings['repeats']} rounds of {self.settings['seconds']:g} s"
        ratios = f"ratios within each round, their median, and its interval of {coverage:.0%} coverage"
        return "\n".join([f"{rounds}; {ratios}", *facts, ""])

    def as_dict(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "tasks": {task: self._task_as_dict(task) for task in self.tasks},
        }

    def _task_as_dict(self, task: str) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for name, outcome in self.tasks[task].items():
            if outcome.missing:
                told[name] = {"missing": outcome.missing}
            elif not outcome.samples:
                told[name] = {"failed": outcome.failed}
            else:
                told[name] = {
                    "steps_per_s": {"samples": outcome.rates, **asdict(Spread.of(outcome.rates))},
                    "cpu_us_per_step": outcome.cpu_us_per_step,
                    "ratios": self._ratios(task, name),
                    "versions": dict(outcome.versions),
                }
        return told

    def _ratios(self, task: str, name: str) -> dict[str, Any]:
        found = {baseline: self.ratio(task, name, baseline) for baseline in self.baselines}
        return {baseline: None if ratio is None else asdict(ratio) for baseline, ratio in found.items()}

    def write(self, path: Path) -> None:
        """The file at `path` is the report as JSON."""
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")

    def draw(self, path: Path) -> None:
        """The file at `path` is a figure: a bar for each subject, with its least and greatest.

        Raises:
            ConfigError: if it cannot be written, or its ending is of no kind of figure.
        """
        tallest = max(len(outcomes) for outcomes in self.tasks.values())
        columns = min(3, len(self.tasks))
        rows = -(-len(self.tasks) // columns)
        size = (6 * columns, rows * (1 + 0.3 * tallest))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat[len(self.tasks) :]:
            axes.set_axis_off()
        for axes, task in zip(panels.flat, self.tasks, strict=False):
            self._bars(axes, task)
        try:
            figure.savefig(path, dpi=110)
        except (OSError, ValueError) as error:
            raise ConfigError("plot", str(path), f"a figure that can be written ({error})") from error

    def _bars(self, axes: Axes, task: str) -> None:
        measured = {name: outcome for name, outcome in self.tasks[task].items() if outcome.samples}
        for row, (name, outcome) in enumerate(measured.items()):
            spread = Spread.of(outcome.rates)
            errors = [[spread.median - spread.min], [spread.max - spread.median]]
            color = "tab:gray" if name in self.baselines else "tab:blue"
            axes.barh(row, spread.median, xerr=errors, color=color)
        axes.set_yticks(range(len(measured)), list(measured))
        axes.invert_yaxis()
        axes.set_title(task)
        axes.set_xlabel("env steps/s, median; least to greatest")
        axes.grid(axis="x", alpha=0.3)
