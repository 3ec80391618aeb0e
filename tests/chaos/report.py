"""What a run of the chaos suite has seen, and its table: `python -m tests.chaos.report chaos.json`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

GROWTH = 1.1
"""Most that resident memory of a head may be at the end of a part, times what it was after its second run."""


@dataclass
class Outcome:
    """What a fault led to."""

    kind: str
    call: str
    outcome: str
    """"rows": rows of a lost worker; "error": an EnvError; "unharmed"; anything else is a failure."""
    recovered_s: float
    longest_call_s: float


@dataclass
class Part:
    """What one head process has gone through: runs one after the other, with a measurement after each."""

    batches: list[int] = field(default_factory=list)
    """Numbers of the runs that were finished."""
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    rows: int = 0
    fragments: int = 0
    """Of streams."""
    failures: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def grown(self) -> list[str]:
        """What is said of memory, descriptors and threads that have grown since the second run."""
        said = []
        for name, seen, most in (
            ("RSS in MB", self.rss_mb, GROWTH),
            ("descriptors", self.descriptors, 1.0),
            ("threads", self.threads, 1.0),
        ):
            if len(seen) > 2 and seen[-1] > most * seen[1]:
                said.append(f"{name} of the head grew from {seen[1]} to {seen[-1]}")
        return said

    def write(self, path: Path) -> None:
        """As JSON, in one move."""
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(asdict(self), indent=1))
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Part:
        """What `write` wrote."""
        content = json.loads(path.read_text())
        return cls(**content | {"outcomes": [Outcome(**each) for each in content["outcomes"]]})


def part_path(report: Path, number: int) -> Path:
    """Where the part of a report is that one of several heads writes."""
    return report.with_name(f"{report.stem}.part{number}{report.suffix}")


def merged(parts: Sequence[Part], *, seed: int) -> dict[str, object]:
    """The report of all parts, as JSON holds it."""
    return {
        "seed": seed,
        "faults": sum(len(part.outcomes) for part in parts),
        "rows": sum(part.rows for part in parts),
        "fragments": sum(part.fragments for part in parts),
        "failures": [failure for part in parts for failure in part.failures],
        "parts": [asdict(part) for part in parts],
    }


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown: faults by kind, outcomes and times."""
    outcomes = list(outcomes)
    lines = [
        "| fault | times | rows lost | error | unharmed | recovered in s: median, most | longest call |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in sorted({each.kind for each in outcomes}):
        own = [each for each in outcomes if each.kind == kind]
        counts = [sum(each.outcome == name for each in own) for name in ("rows", "error", "unharmed")]
        times = [each.recovered_s for each in own]
        spread = f"{np.median(times):.1f}, {max(times):.1f}"
        longest = max(each.longest_call_s for each in own)
        lines.append(f"| {kind} | {len(own)} | {' | '.join(map(str, counts))} | {spread} | {longest:.1f} |")
    return "\n".join(lines)


def described(parts: Sequence[Part], *, seed: int) -> str:
    """What docs/reliability.md says of a run: what was injected, checked and measured, and the table."""
    outcomes = [outcome for part in parts for outcome in part.outcomes]
    by_call = ", ".join(
        f"{sum(each.call == call for each in outcomes)} in `{call}`"
        for call in sorted({each.call for each in outcomes})
    )
    lines = [
        f"Seed {seed}: {len(outcomes):,} faults in {max(part.seconds for part in parts) / 60:.0f} minutes, "
        f"{len(parts)} heads side by side; {by_call}.",
        f"{sum(part.rows for part in parts):,} rows and {sum(part.fragments for part in parts):,} fragments "
        f"checked; {sum(len(part.failures) for part in parts)} failures.",
    ]
    for number, part in enumerate(parts):
        lines.append(
            f"Head {number} after the first and the last of its {len(part.rss_mb)} runs: "
            f"RSS {_ends(part.rss_mb)} MB, {_ends(part.descriptors)} descriptors, "
            f"{_ends(part.threads)} threads."
        )
    failures = [f"FAILED: {failure}" for part in parts for failure in part.failures]
    return "\n".join([*lines, "", table(outcomes), *failures])


def _ends(seen: Sequence[float]) -> str:
    return f"{seen[0]:g} and {seen[-1]:g}" if seen else "not measured"


def main() -> int:
    """Print the table of a report."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.report", description=__doc__)
    parser.add_argument("report", type=Path)
    content = json.loads(parser.parse_args().report.read_text())
    parts = [
        Part(**part | {"outcomes": [Outcome(**each) for each in part["outcomes"]]})
        for part in content["parts"]
    ]
    sys.stdout.write(f"{described(parts, seed=content['seed'])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
