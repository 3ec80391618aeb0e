from __future__ import annotations

from inspect import signature
from pathlib import Path

from clusterenv_registry import hookspecs

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


def test_every_hook_is_documented_with_its_arguments() -> None:
    hooks = {name: value for name, value in vars(hookspecs).items() if name.startswith("clusterenv_")}
    text = DOCS.read_text()

    assert hooks
    for name, hook in hooks.items():
        assert f"### {name}({', '.join(signature(hook).parameters)})" in text
