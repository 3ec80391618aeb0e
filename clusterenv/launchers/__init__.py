"""Launchers start workers: processes of this machine, Slurm jobs or steps, or by a person's hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
from clusterenv.launchers.base import Launcher, Request, WorkerCommand, WorkerState, WorkerStatus
from clusterenv.launchers.local import LocalLauncher, LocalRequest
from clusterenv.launchers.manual import ManualLauncher, ManualRequest
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.slurm_allocation import Allocation, StepsRequest, uses_steps
from clusterenv.launchers.slurm_commands import Slurm, clean_environment
from clusterenv.launchers.slurm_request import SlurmRequest
from clusterenv.launchers.slurm_steps import StepsLauncher

__all__ = ["Launcher", "Request", "WorkerCommand", "WorkerState", "WorkerStatus", "make_launcher"]


def make_launcher(
    config: LocalConfig | ManualConfig | SlurmConfig,
    command_for: Callable[[int], WorkerCommand],
    *,
    run_dir: Path,
) -> Launcher:
    """The launcher that `config` asks for, with nothing started and nothing asked of any cluster.

    Args:
        config: which launcher, and its options.
        command_for: what starts the worker of a rank.
        run_dir: an existing folder, private to the user, for logs and whatever else the launcher writes.

    Raises:
        LaunchError: if this process cannot start workers so, such as steps outside of an allocation.
    """
    if isinstance(config, LocalConfig):
        return LocalLauncher(
            LocalRequest.make(
                config,
                command_for,
                run_dir=run_dir,
                granted_cpus=sorted(os.sched_getaffinity(0)),
                environ=os.environ,
            )
        )
    commands = tuple(command_for(rank) for rank in range(config.nodes))
    if isinstance(config, ManualConfig):
        return ManualLauncher(ManualRequest(commands, run_dir))
    allocation = Allocation.of(os.environ)
    if uses_steps(config, allocation):
        return StepsLauncher(StepsRequest.make(config, commands, run_dir, allocation), os.environ)
    return SlurmLauncher(SlurmRequest(config, commands, run_dir), Slurm(clean_environment(os.environ)))
