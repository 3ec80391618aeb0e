"""Slurm's commands as functions: what they are given, for how long, and what they answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterenv.errors import LaunchError
from clusterenv.launchers.command import CommandError, run
from clusterenv.launchers.slurm_states import (
    SQUEUE_FORMAT,
    JobId,
    JobInfo,
    parse_facts,
    parse_job_id,
    parse_squeue,
)

COMMAND_S: Final = 60.0
"""Limit of one command: with its controller away Slurm gives up by itself after 9 to 30 s."""

KEPT: Final = frozenset({"SLURM_CONF", "SLURM_JWT"})
"""Variables of Slurm that tell its commands where the cluster is and who we are."""

LEAKING: Final = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SCANCEL_", "SQUEUE_", "PMI")
"""Beginnings of variables that describe the allocation of this process, or change what a command does."""

OF_THE_ALLOCATION: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
"""Variables that Slurm sets in an allocation with GPUs, and that would hide the GPUs of another."""

_log = logging.getLogger(__name__)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what the job in which this process may run has put there."""
    inside = "SLURM_JOB_ID" in environ
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT or not (name.startswith(LEAKING) or (inside and name in OF_THE_ALLOCATION))
    }


@dataclass(frozen=True, slots=True)
class Slurm:
    """The commands of the cluster that `environ` leads to."""

    environ: Mapping[str, str]

    def submit(self, script: Path, arguments: Sequence[str], secret_env: Mapping[str, str]) -> JobId:
        """The job that Slurm has accepted.

        Raises:
            LaunchError: if it was refused or its number could not be read; holds all that `sbatch` said.
        """
        argv = ["sbatch", "--parsable", *arguments, str(script)]
        try:
            result = run(argv, timeout_s=COMMAND_S, env={**self.environ, **secret_env})
        except CommandError as error:
            raise _without_slurm(error) from error
        job = parse_job_id(result.stdout)
        if job is None:
            raise LaunchError(
                f"`sbatch` ended well but named no job for {script}; look with `squeue --me`. It said:\n"
                f"{result.stdout}{result.stderr}".rstrip()
            )
        for line in result.stderr.splitlines():
            _log.warning("sbatch said of job %s: %s", job, line)
        return job

    def query(self, jobs: Iterable[JobId], timeout_s: float = COMMAND_S) -> dict[str, JobInfo]:
        """What Slurm knows of all `jobs`, in one query for each cluster; those it has forgotten are left out.

        Raises:
            LaunchError: if Slurm does not answer.
        """
        found: dict[str, JobInfo] = {}
        for cluster, numbers in _by_cluster(jobs).items():
            # With a single number that it has forgotten squeue fails; with two it leaves it out.
            listed = ",".join([*numbers, numbers[0]])
            argv = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={listed}"]
            argv += [f"--Format={SQUEUE_FORMAT}", *cluster]
            found |= parse_squeue(run(argv, timeout_s=timeout_s, env=self.environ).stdout)
        return found

    def cancel(self, jobs: Iterable[JobId], *, timeout_s: float = COMMAND_S) -> None:
        """All `jobs` have been told to end, pending ones too; what ignores it Slurm kills after its KillWait.

        Raises:
            LaunchError: if Slurm does not answer.
        """
        for cluster, numbers in _by_cluster(jobs).items():
            run(["scancel", *cluster, *numbers], timeout_s=timeout_s, env=self.environ)

    def signal(self, steps: Iterable[str], name: str, *, timeout_s: float = COMMAND_S) -> None:
        """The tasks of all `steps` have been sent a signal; without one, `scancel` would kill them at once.

        Raises:
            LaunchError: if Slurm does not answer.
        """
        try:
            run(["scancel", f"--signal={name}", *steps], timeout_s=timeout_s, env=self.environ)
        except CommandError as error:
            if "Invalid job id" not in error.stderr:  # 22.05 says so of steps that it has just signalled
                raise

    def jobs_of(self, run_dir: Path, clusters: str | None = None) -> list[str]:
        """Numbers of this user's jobs, pending or running, whose script lies in `run_dir`.

        Raises:
            LaunchError: if Slurm does not answer.
        """
        argv = ["squeue", "--me", "--noheader", "--format=%F|%o", *_clusters(clusters)]
        lines = run(argv, timeout_s=COMMAND_S, env=self.environ).stdout.splitlines()
        found = [line.strip().partition("|") for line in lines]
        return list(dict.fromkeys(job for job, _, command in found if command.startswith(f"{run_dir}/")))

    def partition(self, name: str) -> dict[str, str]:
        """Facts about a partition; none if Slurm does not answer."""
        try:
            argv = ["scontrol", "--oneliner", "show", "partition", name]
            return parse_facts(run(argv, timeout_s=COMMAND_S, env=self.environ).stdout)
        except LaunchError:
            return {}


def _clusters(names: str | None) -> tuple[str, ...]:
    return () if names is None else (f"--clusters={names}",)


def _by_cluster(jobs: Iterable[JobId]) -> dict[tuple[str, ...], list[str]]:
    """Numbers of jobs, by the option that names their cluster."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for job in jobs:
        groups.setdefault(_clusters(job.cluster), []).append(job.number)
    return groups


def _without_slurm(error: CommandError) -> LaunchError:
    if error.exit_code is None and "could not be started" in str(error):
        return LaunchError(
            f"{error}; Slurm's commands are needed here: start on a login node, or use LocalConfig"
        )
    return error
