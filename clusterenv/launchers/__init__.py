"""Launchers start workers: child processes of this machine; Slurm jobs later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clusterenv.config import LocalConfig, SlurmConfig
from clusterenv.errors import LaunchError
from clusterenv.launchers.base import Launcher, Request, WorkerCommand, WorkerState, WorkerStatus
from clusterenv.launchers.local import LocalLauncher, LocalRequest

__all__ = ["Launcher", "Request", "WorkerCommand", "WorkerState", "WorkerStatus", "make_launcher"]


def make_launcher(
    config: LocalConfig | SlurmConfig, command_for: Callable[[int], WorkerCommand], *, run_dir: Path
) -> Launcher:
    """The launcher that `config` asks for, with nothing started.

    Args:
        config: which launcher, and its options.
        command_for: what starts the worker of a rank.
        run_dir: an existing folder, private to the user, for logs and whatever else the launcher writes.

    Raises:
        LaunchError: if there is no launcher for `config` yet.
    """
    if isinstance(config, SlurmConfig):
        raise LaunchError("launching with SlurmConfig is not available yet; use LocalConfig")
    return LocalLauncher(
        LocalRequest.make(
            config,
            command_for,
            run_dir=run_dir,
            granted_cpus=sorted(os.sched_getaffinity(0)),
            environ=os.environ,
        )
    )
