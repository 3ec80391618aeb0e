"""No wait and no limit depends on the clock on the wall, which people and time servers set."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today", "time.localtime"}
FOR_PEOPLE = {
    "learners/board.py": "moments of curves",
    "learners/run_folder.py": "names of folders",
    "learners/runs.py": "when a run began",
    "monitor/finding.py": "the age of another process's report",
    "monitor/tables.py": "the same, as shown",
    "reporting.py": "moments of reports",
}
"""Files that tell moments to people or to other processes, and none of which waits for one."""


def readings(path: Path) -> set[str]:
    """The functions of the wall's clock that a file uses, however it calls the modules."""
    names = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    imported = {
        f"{node.module}.{name.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    return (names | imported) & WALL


def test_wall_clock_is_read_only_where_people_are_told_a_moment() -> None:
    package = ROOT / "clusterenv"
    files = {str(path.relative_to(package)) for path in package.rglob("*.py") if readings(path)}
    assert {name for name in files if not name.startswith("benchmark/")} == set(FOR_PEOPLE)


def test_waits_in_cpp_use_the_monotonic_clock() -> None:
    text = "".join(path.read_text() for path in (ROOT / "csrc").rglob("*.[ch]pp"))
    assert "steady_clock" in text
    assert not re.findall(r"system_clock|CLOCK_REALTIME|gettimeofday|high_resolution_clock", text)
