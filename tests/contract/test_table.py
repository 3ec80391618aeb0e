"""docs/gymnasium.md names a test for each point of the contract, and these tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gymnasium.md").read_text()
TABLE = PAGE[PAGE.index("## Point by point") : PAGE.index("## Where we differ")]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")][2:]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_row_names_a_test(row: list[str]) -> None:
    assert len(row) == 3
    assert "::test_" in row[2]


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_named_test_exists(path: str, name: str) -> None:
    file = ROOT / path if "/" in path else Path(__file__).with_name(path)
    functions = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name in functions


def test_every_difference_is_explained() -> None:
    explained = PAGE[PAGE.index("## Where we differ") :]
    for number in re.findall(r"\((\d)\)", TABLE):
        assert f"\n{number}. " in explained
