"""An adapter whose library is missing says how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("adapter", "library", "extra"),
    [("sb3", "stable_baselines3", "sb3"), ("tianshou", "tianshou", "tianshou")],
)
def test_missing_library_is_named_with_its_extra(adapter: str, library: str, extra: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; import clusterenv.integrations.{adapter}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert f'is not installed: pip install "clusterenv-rl[{extra}]"' in done.stderr
    assert done.returncode == 1
