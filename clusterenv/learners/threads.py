"""How many threads the learner's arithmetic gets of the cores granted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from clusterenv.worker import granted_cores

CPUS: Final = Path("/sys/devices/system/cpu")
QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def learner_threads(*, large: bool, cores: int) -> int:
    """Threads for a learner on `cores` cores.

    Workers that step on the same cores while the learner computes take none away: where networks are large
    they are done first, and sleep until the learner takes what they have made.

    Args:
        large: whether the network is worth more than one thread, as those for images are.
        cores: physical cores that were granted.
    """
    return max(1, cores) if large else 1


def available_cores() -> int:
    """Physical cores that this process may use: by affinity, Slurm's grant and the quota of its cgroup."""
    cores = min(granted_cores(os.environ), physical_cores(os.sched_getaffinity(0), CPUS))
    quota = cpu_quota(QUOTA)
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """Cores behind the processors `cpus`, of which two may be threads of one; `folder`: that of sysfs."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def cpu_quota(path: Path) -> float | None:
    """Processor seconds that a cgroup may use in a second; None: as many as there are."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
