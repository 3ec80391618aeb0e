"""What the doctor finds, as a table that grows line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table: what was looked at, whether it is well (None: just told), and what was seen."""

    what: str
    well: bool | None
    seen: str
    hint: str = ""

    def __str__(self) -> str:
        """The line, and the hint below it where something is wrong."""
        word = {True: "ok", False: "FAIL", None: "-"}[self.well]
        line = f"{word:4}  {self.what:22}  {self.seen}"
        return f"{line}\n{'':30}-> {self.hint}" if self.hint and self.well is False else line


@dataclass(slots=True)
class Diagnosis:
    """All findings, each shown as soon as it is made, and the settings that worked."""

    say: Callable[[str], object]
    findings: list[Finding] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, well: bool | None, seen: str, hint: str = "") -> None:
        """Note a finding and show it."""
        finding = Finding(what, well, seen, hint)
        self.findings.append(finding)
        self.say(f"{finding}\n")

    def title(self, text: str) -> None:
        """Show the heading of the findings that follow."""
        self.say(f"\n{text}\n")

    @property
    def well(self) -> bool:
        """Whether nothing has failed."""
        return all(finding.well is not False for finding in self.findings)
