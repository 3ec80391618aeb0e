"""What the numbers of a measurement depend on: the processor, the cores granted, the versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from clusterenv import __version__

PACKAGES = ("gymnasium", "numpy", "torch", "pyzmq")


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on: processor, cores granted, load before the run, memory, versions."""
    return {
        "processor": _processor(),
        "cores granted": len(os.sched_getaffinity(0)),
        "load before": round(os.getloadavg()[0], 2),
        "memory bytes": psutil.virtual_memory().total,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "clusterenv": __version__,
        **{name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
