"""The job scripts of a run, as text made from options alone: nothing is run, read or looked up here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers.base import THREAD_VARIABLES, WORKER_DEFAULTS, WorkerCommand
from clusterenv.launchers.slurm_records import ExitRecords

SHELL = "/bin/bash"
WARNING = "USR1"
"""Signal that Slurm sends `warn_s` before the time limit; workers that do not know it ignore it."""


@dataclass(frozen=True, slots=True)
class SlurmScript:
    """One job, or job array, with the workers that it starts."""

    name: str
    """Name of its file."""
    text: str
    ranks: tuple[int, ...]
    incarnation: int
    array: bool
    secret_env: Mapping[str, str] = field(repr=False)
    """What the job needs in its environment, and no text may show."""


@dataclass(frozen=True, slots=True)
class SlurmRequest:
    """The workers to be started, by rank, and how Slurm is asked for them."""

    config: SlurmConfig
    commands: tuple[WorkerCommand, ...]
    run_dir: Path

    @property
    def array(self) -> bool:
        """Whether each worker has a job of its own from the start."""
        return self.config.mode == "array"

    @property
    def shared(self) -> bool:
        """Whether the nodes see the run's folder."""
        return self.config.shared_folder is not None

    @property
    def log_folder(self) -> Path | None:
        """Where logs go; None where no folder is known to exist on the nodes."""
        if self.config.log_folder is not None:
            return Path(self.config.log_folder).expanduser()
        return self.run_dir if self.shared else None

    def log_path(self, rank: int) -> Path:
        """The log of a worker; on its node if nothing is shared."""
        return (self.log_folder or self.run_dir) / f"worker-{rank}.log"

    def job_log_path(self, job_id: str) -> Path | None:
        """The output of a job's batch script; `job_id` is "12", or "12_3" in an array."""
        return None if self.log_folder is None else self.log_folder / f"job-{job_id}.log"

    def script(self) -> str:
        """The job script that starts all workers; secrets are left out."""
        return self.first().text

    def first(self) -> SlurmScript:
        """The job, or job array, of all workers."""
        return self._script("job.sh", tuple(range(len(self.commands))), 0, array=self.array)

    def replacement(self, rank: int, incarnation: int) -> SlurmScript:
        """A job of one node that starts the worker of one rank again."""
        return self._script(f"job-{rank}.{incarnation}.sh", (rank,), incarnation, array=False)

    def _script(self, name: str, ranks: tuple[int, ...], incarnation: int, *, array: bool) -> SlurmScript:
        nodes = 1 if array else len(ranks)
        secret_env = {key: value for rank in ranks for key, value in self.commands[rank].secret_env.items()}
        worker = self._worker(ranks, incarnation, array=array)
        setup = self.config.setup if isinstance(self.config.setup, str) else "\n".join(self.config.setup)
        parts = [
            f"#!{SHELL}",
            *self._directives(nodes, ranks, array=array, export=bool(secret_env)),
            "",
            *(f"# The environment of sbatch brings {name}, whose value is not shown." for name in secret_env),
            *([setup] if setup else []),
            *(f'export {name}="${{{name}:-{_default(name)}}}"' for name in WORKER_DEFAULTS),
            "",
            *(self._started_by_srun(nodes, worker) if self.config.use_srun else worker),
            "",
        ]
        return SlurmScript(name, "\n".join(parts), ranks, incarnation, array, secret_env)

    def _directives(self, nodes: int, ranks: Sequence[int], *, array: bool, export: bool) -> list[str]:
        config = self.config
        options: dict[str, str | int | bool | None] = {
            "job-name": config.job_name,
            "array": f"{ranks[0]}-{ranks[-1]}" if array else None,
            "nodes": nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": config.cpus_per_node,
            "gres": gres(config.gpus_per_node),
            "mem": config.mem,
            "mem-per-cpu": config.mem_per_cpu,
            "mem-per-gpu": config.mem_per_gpu,
            "partition": config.partition,
            "account": config.account,
            "qos": config.qos,
            "constraint": config.constraint,
            "reservation": config.reservation,
            "time": config.time_limit,
            "exclusive": config.exclusive,
            # Those on other nodes go on when a node is lost; without, Slurm ends the whole job.
            "no-kill": nodes > 1,
            "signal": f"{WARNING}@{config.warn_s}" if self._warns() else None,
            "export": "ALL" if export else None,
            "output": self._job_log_pattern(array),
            "open-mode": "append",
            **config.directives,
        }
        return [
            f"#SBATCH {option(name, value)}"
            for name, value in options.items()
            if value is not None and value is not False
        ]

    def _warns(self) -> bool:
        """Whether Slurm is to send a warning: it goes to steps alone, and may come 60 s too early."""
        limit_s = seconds_of(self.config.time_limit)
        useful = limit_s is None or limit_s > 2 * (self.config.warn_s + 60)
        return self.config.warn_s > 0 and self.config.use_srun and useful

    def _job_log_pattern(self, array: bool) -> str:
        if self.log_folder is None:
            return "/dev/null"
        return str(self.log_folder).replace("%", "%%") + f"/job-{'%A_%a' if array else '%j'}.log"

    def _started_by_srun(self, nodes: int, worker: Sequence[str]) -> list[str]:
        end = "END_OF_WORKER"
        while end in "\n".join(worker).split("\n"):
            end += "_"
        arguments = [
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            *resources(self.config),
            *(["--no-kill"] if nodes > 1 else []),
            # A worker that ends is the head's business: the others go on, whatever the site's defaults are.
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--export=ALL",
            *self.config.srun_args,
        ]
        return [
            f"IFS= read -r -d '' worker <<'{end}' || true",
            *worker,
            end,
            f'srun {shlex.join(arguments)} {SHELL} -c "$worker"',
        ]

    def _worker(self, ranks: Sequence[int], incarnation: int, *, array: bool) -> list[str]:
        """What runs on each node: shell lines around the worker's command."""
        rank = "$SLURM_ARRAY_TASK_ID" if array else "$SLURM_PROCID" if len(ranks) > 1 else str(ranks[0])
        lines = [
            f"rank={rank}",
            "# Slurm signals everything in a step: this shell waits for the worker to leave by itself.",
            "trap : TERM",
            f"trap '' {WARNING}",
        ]
        if self.log_folder is not None:
            lines.append(f"exec >>{self._ranked(self.log_folder, 'worker-', '.log')} 2>&1")
        if self.shared:
            before, after = ExitRecords.name("@", incarnation).split("@")
            lines.append(f"ended={self._ranked(self.run_dir, before, after)}")
            lines.append('rm -f "$ended"')
        lines += [
            'echo "== rank $rank, Slurm job $SLURM_JOB_ID on $SLURMD_NODENAME, $(taskset -cp $$)"',
            *self._command_lines(ranks, incarnation),
        ]
        if self.shared:
            lines += [
                "code=$?",
                'echo "$code ${SLURM_RESTART_COUNT:-0}" >"$ended.new" && mv "$ended.new" "$ended"',
                'exit "$code"',
            ]
        return lines

    @staticmethod
    def _ranked(folder: Path, before: str, after: str) -> str:
        return f'{shlex.quote(f"{folder}/{before}")}"$rank"{shlex.quote(after)}'

    def _command_lines(self, ranks: Sequence[int], incarnation: int) -> list[str]:
        """One line for all ranks if their commands differ by nothing but their rank, else a case for each."""
        commands = {rank: self.command(rank, incarnation) for rank in ranks}
        lines = {shell_line(command, rank) for rank, command in commands.items()}
        if len(lines) == 1:
            return [lines.pop()]
        cases = [f"{rank}) {shell_line(command)} ;;" for rank, command in commands.items()]
        return ['case "$rank" in', *cases, "esac"]

    def command(self, rank: int, incarnation: int) -> WorkerCommand:
        """What starts a worker; to its incarnation it adds how often Slurm has requeued its job."""
        command = self.commands[rank]
        if self.config.python is not None:
            command = replace(command, argv=(self.config.python, *command.argv[1:]))
        return command.incarnated(incarnation) if incarnation else command


def shell_line(command: WorkerCommand, rank: int | None = None) -> str:
    """The command as a shell reads it, with `"$rank"` in the place of arguments that are `rank`."""
    words = [f"{name}={shlex.quote(value)}" for name, value in command.env.items()]
    words += ['"$rank"' if word == str(rank) else shlex.quote(word) for word in command.argv]
    return " ".join(words)


def option(name: str, value: str | int | bool) -> str:
    """A long option as a line of directives holds it; Slurm reads quotes and backslashes as C does."""
    if value is True:
        return f"--{name}"
    text = str(value)
    if not re.fullmatch(r"[\w@%+=:,./-]+", text, re.ASCII):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        text = f'"{escaped}"'
    return f"--{name}={text}"


def resources(config: SlurmConfig) -> list[str]:
    """What srun must be told again: since 22.05 it does not take it from the job."""
    cpus, gpus = config.cpus_per_node, gres(config.gpus_per_node)
    return [
        *([f"--cpus-per-task={cpus}"] if cpus is not None else []),
        *([f"--gres={gpus}"] if gpus is not None else []),
    ]


def seconds_of(time_limit: str | None) -> int | None:
    """A time in one of Slurm's forms, such as "90" (minutes), "1:30:00" or "1-12"; None: not known."""
    if time_limit is None or time_limit == "UNLIMITED":
        return None
    days, _, rest = time_limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:  # "minutes", "minutes:seconds", "hours:minutes:seconds"
        hours, minutes, seconds = parts if len(parts) == 3 else (0, *parts, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _default(name: str) -> str:
    """Where only OMP_NUM_THREADS is set, it speaks for the other libraries too."""
    follows = name in THREAD_VARIABLES and name != "OMP_NUM_THREADS"
    return "$OMP_NUM_THREADS" if follows else WORKER_DEFAULTS[name]


def gres(gpus: int | str | None) -> str | None:
    """GPUs as a generic resource: 2 is "gpu:2", "a100:2" is "gpu:a100:2"."""
    if isinstance(gpus, str):
        return gpus if gpus.split(":")[0] == "gpu" else f"gpu:{gpus}"
    return f"gpu:{gpus}" if gpus else None
