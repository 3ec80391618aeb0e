"""What the import contracts of pyproject.toml cannot see: compiled modules, and imports inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "clusterenv").rglob("*.py"), *(ROOT / "registry").rglob("*.py")])

LEARNING = ("clusterenv/learners/", "clusterenv/benchmark/", "clusterenv/integrations/")
ALLOWED = {  # module -> where it may be imported at the top, and where only inside a function
    "torch": ((*LEARNING, "clusterenv/adapters/", "clusterenv/_preload.py"), ("clusterenv/rollout.py",)),
    "clusterenv._core": (("clusterenv/native.py",), ("clusterenv/native.py",)),
    "pluggy": (("registry/clusterenv_registry/plugins.py", "registry/clusterenv_registry/hookspecs.py"), ()),
}


@pytest.mark.parametrize("module", ALLOWED)
def test_module_is_imported_only_in_its_places(module: str) -> None:
    at_top, inside_functions = ALLOWED[module]

    wrong = [
        f"{name}:{line}"
        for name, line, imported, is_top in _imports()
        if imported == module or imported.startswith(f"{module}.")
        if not name.startswith(at_top if is_top else at_top + inside_functions)
    ]

    assert wrong == []


@pytest.mark.process
def test_import_contracts_are_kept() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def _imports() -> Iterator[tuple[str, int, str, bool]]:
    """Every import at run time: file, line, module with the name taken from it, and whether at the top."""
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        for node, is_top in _run_time_nodes(ast.parse(path.read_text()), is_top=True):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield name, node.lineno, alias.name, is_top
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}:{node.lineno} is a relative import"
                for alias in node.names:
                    yield name, node.lineno, f"{node.module}.{alias.name}", is_top


def _run_time_nodes(node: ast.AST, *, is_top: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, is_top
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _run_time_nodes(child, is_top=is_top and not inside)
