"""Benchmarks: what they compare runs in one go and is published as ratios, with the script."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of the benchmark that the command line `argv` names."""
    from clusterenv.benchmark.commands import run_command

    return run_command(argv)
