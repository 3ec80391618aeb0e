"""Steps of the allocation that the head runs in, as a value: whether and how workers become steps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers.base import WorkerCommand, worker_defaults
from clusterenv.launchers.slurm_commands import clean_environment
from clusterenv.launchers.slurm_request import SHELL, WARNING, resources
from clusterenv.launchers.slurm_states import expand_cpus, expand_hosts

# Slurm signals everything in a step, and the environments must not die of a warning.
_BIRTH = (
    f'echo "== step $SLURM_JOB_ID.$SLURM_STEP_ID on $SLURMD_NODENAME, $(taskset -cp $$)"; trap "" {WARNING}'
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation that a process runs in."""

    job_id: str
    nodes: int
    cpus: tuple[int, ...] = ()
    """Granted cores of each node, as far as Slurm told."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes, as far as Slurm told."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation | None:
        """What the environment says; None outside of any allocation."""
        job_id = environ.get("SLURM_JOB_ID")
        if not job_id:
            return None
        nodes = environ.get("SLURM_JOB_NUM_NODES", environ.get("SLURM_NNODES", "1"))
        cpus = tuple(expand_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        hosts = tuple(expand_hosts(environ.get("SLURM_JOB_NODELIST", "")))
        return cls(job_id, int(nodes) if nodes.isdigit() else 1, cpus, hosts)


def uses_steps(config: SlurmConfig, allocation: Allocation | None) -> bool:
    """Whether workers are steps of `allocation`; mode "auto" decides as its docstring says."""
    if config.mode != "auto":
        return config.mode == "srun"
    fits = allocation is not None and allocation.nodes >= config.nodes
    return fits and not config.asks_for_a_job


@dataclass(frozen=True, slots=True)
class StepsRequest:
    """The steps to be started, by rank."""

    config: SlurmConfig
    commands: tuple[WorkerCommand, ...]
    run_dir: Path
    allocation: Allocation

    @classmethod
    def make(
        cls,
        config: SlurmConfig,
        commands: tuple[WorkerCommand, ...],
        run_dir: Path,
        allocation: Allocation | None,
    ) -> StepsRequest:
        """The steps that `config` asks for.

        Raises:
            LaunchError: if there is no allocation, or it is too small.
        """
        if allocation is None:
            raise LaunchError(
                'mode="srun" starts steps of the allocation that the head runs in, but SLURM_JOB_ID is not '
                'set; start the head by sbatch or salloc, or use mode="sbatch"'
            )
        if allocation.nodes < config.nodes:
            raise LaunchError(
                f"nodes is {config.nodes}, but the allocation (job {allocation.job_id}) has "
                f'{allocation.nodes}; ask for fewer, or use mode="sbatch"'
            )
        return cls(config, commands, run_dir, allocation)

    def node(self, rank: int, moves: int = 0) -> int:
        """Which node of the allocation a worker runs on, from 0, after it has moved on `moves` times.

        The last ones, so that in a larger allocation the first, where the batch script and usually the head
        run, is left free.
        """
        first = self.allocation.nodes - self.config.nodes
        return first + (rank + moves) % self.config.nodes

    def argv(self, rank: int, moves: int = 0) -> tuple[str, ...]:
        """The command that starts a worker."""
        node = self.node(rank, moves)
        cpus = self.allocation.cpus[node] if node < len(self.allocation.cpus) else None
        hosts = self.allocation.hosts
        own_cpus = [f"--cpus-per-task={cpus}"] if cpus and self.config.cpus_per_node is None else []
        memory = [
            f"--{name.replace('_', '-')}={value}"
            for name in ("mem", "mem_per_cpu", "mem_per_gpu")
            if (value := getattr(self.config, name)) is not None
        ]
        argv = self.commands[rank].argv
        python = argv[0] if self.config.python is None else self.config.python
        return (
            "srun",
            f"--jobid={self.allocation.job_id}",
            "--nodes=1",
            "--ntasks=1",
            # By name where it is known: in 24.11 a step with --relative may land on another node.
            f"--nodelist={hosts[node]}" if node < len(hosts) else f"--relative={node}",
            "--overlap",  # beside the head's own step, if it has one
            *own_cpus,
            *resources(self.config),
            *memory,
            "--no-kill",
            "--export=ALL",
            *self.config.srun_args,
            *(SHELL, "-c", f'{_BIRTH}; exec "$@"', "worker", python, *argv[1:]),
        )

    def log_path(self, rank: int) -> Path:
        """The log of a worker, written on the head's side."""
        folder = self.config.log_folder
        return (self.run_dir if folder is None else Path(folder).expanduser()) / f"worker-{rank}.log"

    def environment(self, rank: int, incarnation: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a worker's srun."""
        clean = clean_environment(environ)
        command = self._command(rank, incarnation)
        return {**clean, **worker_defaults(clean), **command.env, **command.secret_env}

    def _command(self, rank: int, incarnation: int) -> WorkerCommand:
        command = self.commands[rank]
        return command.incarnated(incarnation) if incarnation else command

    def script(self) -> str:
        """One shell line for each worker; secrets are left out."""
        return "".join(f"{self.line(rank)} &\n" for rank in range(len(self.commands)))

    def line(self, rank: int, incarnation: int = 0, moves: int = 0) -> str:
        """The shell line that would start a worker, but for secrets."""
        command = self._command(rank, incarnation)
        words = [f"{name}={shlex.quote(value)}" for name, value in command.env.items()]
        words += [f"{name}='<secret>'" for name in command.secret_env]
        log_path = shlex.quote(str(self.log_path(rank)))
        return " ".join([*words, shlex.join(self.argv(rank, moves)), ">>", log_path, "2>&1"])
