"""What a benchmark found out: the samples of every contender, their ratios, and the machine it ran on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some numbers."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Those of `numbers`."""
        return cls(median(numbers), min(numbers), max(numbers))


@dataclass(frozen=True, slots=True)
class Report:
    """Steps per second of each contender, one number for each repeat; all contenders ran in each."""

    title: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    rates: Mapping[str, Sequence[float]]
    compared: Sequence[tuple[str, str]]
    """The pairs of contenders whose ratio is of interest."""

    def ratio(self, one: str, other: str) -> Spread:
        """`one` by `other`, divided within each repeat, so that what slows a whole repeat down cancels."""
        return Spread.of([a / b for a, b in zip(self.rates[one], self.rates[other], strict=True)])

    def text(self) -> str:
        """The report for a person."""
        width = max(len(f"{one} / {other}") for one, other in self.compared)
        lines = [self.title, "", f"{'env steps/s':{width}}  {'median':>10}  {'min':>10}  {'max':>10}"]
        for name, rates in self.rates.items():
            spread = Spread.of(rates)
            numbers = f"{spread.median:10,.0f}  {spread.min:10,.0f}  {spread.max:10,.0f}"
            lines.append(f"{name:{width}}  {numbers}")
        lines += ["", f"{'ratio, paired':{width}}  {'median':>10}  {'min':>10}  {'max':>10}"]
        for one, other in self.compared:
            spread = self.ratio(one, other)
            numbers = f"{spread.median:10.3f}  {spread.min:10.3f}  {spread.max:10.3f}"
            lines.append(f"{f'{one} / {other}':{width}}  {numbers}")
        lines += ["", *(f"{name}: {fact}" for name, fact in self.machine.items()), ""]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "title": self.title,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "steps_per_s": {
                name: {"samples": list(rates), **asdict(Spread.of(rates))}
                for name, rates in self.rates.items()
            },
            "ratios": {f"{one} / {other}": asdict(self.ratio(one, other)) for one, other in self.compared},
        }

    def write(self, path: Path) -> None:
        """The file at `path` is the report as JSON."""
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
