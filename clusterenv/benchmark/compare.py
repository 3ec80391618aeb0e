"""Compare training runs: `clusterenv compare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from clusterenv.benchmark.comparison import compare
from clusterenv.benchmark.comparison_plots import draw
from clusterenv.benchmark.comparison_report import report
from clusterenv.errors import ConfigError
from clusterenv.learners.reading import read_runs


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Compare runs: a table for each environment (Markdown), and curves (PNG)."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs; those that differ by their seeds alone are one line."""
    out: Path = Path("comparison")
    """What to write, without its ending: the table to OUT.md, the picture to OUT.png."""


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit status."""
    config = tyro.cli(CompareConfig, prog="clusterenv compare", args=list(argv))
    runs, problems = read_runs(config.runs)
    comparison = compare(runs)
    comparison.remarks[:0] = problems
    picture, page = (config.out.with_name(f"{config.out.name}{ending}") for ending in (".png", ".md"))
    draw(comparison, picture)
    text = report(comparison, picture.name)
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("out", str(page), f"a file that can be written ({error.strerror})") from error
    sys.stdout.write(text)
    sys.stdout.write(f"\nwrote {page} and {picture}\n")
    return 0
