"""docs/reliability.md names a test for each promise, and these tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
TABLE = PAGE[PAGE.index("## Promises") : PAGE.index("## The chaos suite")]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")][2:]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))
SECURITY = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_promise_names_a_test(row: list[str]) -> None:
    assert len(row) == 2
    assert "::test_" in row[1]


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_named_test_exists(path: str, name: str) -> None:
    functions = {
        node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


def test_files_that_the_threat_model_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", SECURITY)
    assert len(named) >= 8
    assert all((ROOT / path).is_file() for path in named)
