"""Every option of the launchers, declared once: where workers run, and what is asked of that place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterenv.checks import at_least, check_connection, check_port_range, folder, is_int, one_line, one_of
from clusterenv.errors import ConfigError

SLURM_MODES = ("auto", "sbatch", "array", "srun")

RESERVED_DIRECTIVES = frozenset(
    {
        "array",
        "error",
        "export",
        "export-file",
        "open-mode",
        "output",
        "parsable",
        "quiet",
        "test-only",
        "wait",
        "wrap",
    }
)
"""Options of sbatch that would break what ClusterEnv does with its jobs."""


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Workers as processes of this machine."""

    nodes: int = 1
    """Worker processes."""
    cpus_per_node: int | None = None
    """Cores of each worker; none: the granted cores divided by `nodes`."""
    serial: bool = False
    """Run worker and environments inside the calling process, for a debugger."""
    port_range: tuple[int, int] | None = None
    """First and last TCP port the head may listen on; none: the system chooses."""

    def __post_init__(self) -> None:
        """Check every value."""
        at_least("nodes", self.nodes, 1)
        if self.cpus_per_node is not None:
            at_least("cpus_per_node", self.cpus_per_node, 1)
        if not isinstance(self.serial, bool):
            raise ConfigError("serial", self.serial, "True or False")
        if self.serial and self.nodes != 1:
            raise ConfigError("nodes", self.nodes, "1 when serial is set, since all runs in one process")
        check_port_range(self.port_range)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """Workers on the nodes of a Slurm cluster, one on each; Slurm is asked for what is set here, no more."""

    nodes: int = 1
    """Nodes, each with one worker."""
    min_nodes: int | None = None
    """Workers with which a run may begin, while the others still wait for their nodes; none: all."""
    mode: str = "auto"
    """"sbatch" for one job, "array" for a job of each node, "srun" for steps in the allocation that the head
    runs in, or "auto": steps if that allocation has at least `nodes` nodes and no option asks for what only
    a new job can have, else one job."""
    job_name: str = "clusterenv"
    """Name of the job."""
    cpus_per_node: int | None = None
    """Cores asked for on each node; none: the site's default."""
    gpus_per_node: int | str | None = None
    """GPUs asked for on each node, as a number or a gres such as "a100:2"."""
    mem: str | None = None
    """Memory of a node, such as "16G"; only one of the three `mem` options can be set."""
    mem_per_cpu: str | None = None
    """Memory for each core asked for."""
    mem_per_gpu: str | None = None
    """Memory for each GPU asked for."""
    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that the nodes must have."""
    reservation: str | None = None
    """Reservation to run in."""
    time_limit: str | None = None
    """Walltime in one of Slurm's forms: "minutes", "hours:minutes:seconds", "days-hours" and so on."""
    exclusive: bool = False
    """Whole nodes, shared with no other job."""
    warn_s: int = 90
    """Seconds before the time limit at which Slurm tells the workers to leave; 0: it does not."""
    directives: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    """Any other option of sbatch by its long name; True: it has no value; None: leave out one of ours."""
    setup: str | Sequence[str] = ()
    """Shell lines that run on the first node of a job before the workers, such as "module load cuda"."""
    srun_args: Sequence[str] = ()
    """Further arguments of srun, such as "--cpu-bind=cores"."""
    use_srun: bool = True
    """False starts the worker of a one-node job without srun."""
    python: str | None = None
    """Absolute path of the workers' interpreter; none: that of the head."""
    shared_folder: str | Path | None = "~/.clusterenv/runs"
    """Folder that head and nodes share: keys and logs of a run lie in a private folder in it. None: nothing
    is shared, and keys travel in the job's environment."""
    log_folder: str | Path | None = None
    """Folder for logs, which must exist on every node and is kept; none: the private folder of the run."""
    interface: str | None = None
    """Where the head listens: a network interface ("ib0"), an address or a subnet; none: everywhere."""
    worker_interface: str | None = None
    """From where workers connect: an interface, address or subnet of their host; none: as that routes."""
    port_range: tuple[int, int] | None = None
    """First and last TCP port the head may listen on; none: the system chooses."""
    queue_timeout_s: float | None = None
    """Seconds to wait in the queue; none: without bound."""

    def __post_init__(self) -> None:
        """Check every value."""
        at_least("nodes", self.nodes, 1)
        if self.min_nodes is not None and not (is_int(self.min_nodes) and 1 <= self.min_nodes <= self.nodes):
            raise ConfigError("min_nodes", self.min_nodes, f"a whole number from 1 to nodes = {self.nodes}")
        one_of("mode", self.mode, SLURM_MODES)
        self._check_resources()
        self._check_job()
        self._check_script()
        check_connection(
            self.shared_folder,
            self.interface,
            self.worker_interface,
            self.port_range,
            self.queue_timeout_s,
        )
        if self.log_folder is not None:
            folder("log_folder", self.log_folder)

    def _check_resources(self) -> None:
        if self.cpus_per_node is not None:
            at_least("cpus_per_node", self.cpus_per_node, 1)
        if is_int(self.gpus_per_node):
            at_least("gpus_per_node", self.gpus_per_node, 0)
        elif not (self.gpus_per_node is None or isinstance(self.gpus_per_node, str)):
            raise ConfigError(
                "gpus_per_node", self.gpus_per_node, 'a number from 0 or a gres such as "a100:2"'
            )
        else:
            one_line("gpus_per_node", self.gpus_per_node)
        memory = {name: getattr(self, name) for name in ("mem", "mem_per_cpu", "mem_per_gpu")}
        for name, value in memory.items():
            one_line(name, value)
            if value is not None and not re.fullmatch(r"\d{1,18}[KMGTkmgt]?", value, re.ASCII):
                raise ConfigError(name, value, 'a size for Slurm such as "16G" or "4000M"')
        given = [name for name, value in memory.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(given[1], memory[given[1]], f"None when {given[0]} is set")

    def _check_job(self) -> None:
        for name in ("job_name", "partition", "account", "qos", "constraint", "reservation", "time_limit"):
            one_line(name, getattr(self, name))
        if self.time_limit is not None and not re.fullmatch(
            r"\d{1,9}(:\d\d){0,2}|\d{1,9}-\d{1,9}(:\d\d){0,2}|UNLIMITED", self.time_limit, re.ASCII
        ):
            raise ConfigError(
                "time_limit", self.time_limit, 'a Slurm time such as "02:00:00", "90" or "1-12"'
            )
        for name in ("exclusive", "use_srun"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, getattr(self, name), "True or False")
        if not (is_int(self.warn_s) and 0 <= self.warn_s <= 65535):
            raise ConfigError("warn_s", self.warn_s, "a whole number of seconds from 0 to 65535")
        if self.mode == "srun" and self.asks_for_a_job:
            name = self.asks_for_a_job[0]
            raise ConfigError(
                name,
                getattr(self, name),
                'nothing with mode="srun", whose steps run in the present allocation',
            )

    def _check_script(self) -> None:
        if not isinstance(self.directives, Mapping):
            raise ConfigError("directives", self.directives, "a mapping from options of sbatch to values")
        for name, value in self.directives.items():
            if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)):
                raise ConfigError("directives key", name, 'a long option without dashes, such as "mail-type"')
            if name in RESERVED_DIRECTIVES:
                raise ConfigError("directives key", name, "an option that ClusterEnv does not need itself")
            if isinstance(value, str) or not (value is None or isinstance(value, bool) or is_int(value)):
                one_line(f"directives[{name!r}]", value)
        for name in ("setup", "srun_args"):
            value = getattr(self, name)
            parts = [value] if isinstance(value, str) else value
            if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
                raise ConfigError(name, value, "a list of texts")
            if "\0" in "".join(parts):
                raise ConfigError(name, value, "text without zero bytes")
        if isinstance(self.srun_args, str):
            raise ConfigError("srun_args", self.srun_args, "a list, with one text for each argument")
        one_line("python", self.python)
        if self.python is not None and not self.python.startswith("/"):
            raise ConfigError("python", self.python, "an absolute path, such as that of a venv's python")
        if not self.use_srun and self.nodes > 1 and self.mode != "array":
            raise ConfigError("use_srun", False, 'True, unless nodes is 1 or mode is "array"')

    @property
    def asks_for_a_job(self) -> list[str]:
        """Names of the options set that only a job of its own can have, not a step."""
        names = ("partition", "account", "qos", "constraint", "reservation", "time_limit")
        given = [name for name in names if getattr(self, name) is not None]
        return given + [name for name in ("exclusive", "directives", "setup") if getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class ManualConfig:
    """Workers that somebody starts by hand, or another scheduler, with the command lines that are printed."""

    nodes: int = 1
    """Workers to wait for."""
    cpus_per_node: int | None = None
    """Runners of each worker; none: one for each core that it may use."""
    shared_folder: str | Path | None = "~/.clusterenv/runs"
    """Folder that head and workers share: keys and logs of a run lie in a private folder inside it. None: a
    folder of this machine, for workers here."""
    interface: str | None = None
    """Where the head listens: a network interface ("ib0"), an address or a subnet; none: everywhere."""
    worker_interface: str | None = None
    """From where workers connect: an interface, address or subnet of their host; none: as that routes."""
    port_range: tuple[int, int] | None = None
    """First and last TCP port the head may listen on; none: the system chooses."""
    queue_timeout_s: float | None = None
    """Seconds to wait for the workers to be started; none: without bound."""

    def __post_init__(self) -> None:
        """Check every value."""
        at_least("nodes", self.nodes, 1)
        if self.cpus_per_node is not None:
            at_least("cpus_per_node", self.cpus_per_node, 1)
        check_connection(
            self.shared_folder,
            self.interface,
            self.worker_interface,
            self.port_range,
            self.queue_timeout_s,
        )
