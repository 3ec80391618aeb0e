"""What Slurm's commands print, as values: job ids, states, reasons, lists of hosts. Nothing is run here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clusterenv.launchers.base import WorkerState

STATES: Final[Mapping[str, WorkerState]] = {
    **dict.fromkeys(
        (
            "CONFIGURING",
            "PENDING",
            "REQUEUED",
            "REQUEUE_FED",
            "REQUEUE_HOLD",
            "RESV_DEL_HOLD",
            "SPECIAL_EXIT",
        ),
        WorkerState.PENDING,
    ),
    **dict.fromkeys(
        ("COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
        WorkerState.RUNNING,
    ),
    "COMPLETED": WorkerState.EXITED,
    **dict.fromkeys(
        (
            "BOOT_FAIL",
            "CANCELLED",
            "DEADLINE",
            "FAILED",
            "FORGOTTEN",
            "LAUNCH_FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "RECONFIG_FAIL",
            "REVOKED",
            "TIMEOUT",
        ),
        WorkerState.FAILED,
    ),
}
"""Every state that Slurm has a word for, and one of ours."""

SQUEUE_FIELDS: Final = (
    "JobArrayID",
    "State",
    "Reason",
    "exit_code",
    "RestartCnt",
    "NodeList",
    "BatchHost",
    "Partition",
)
SQUEUE_FORMAT: Final = ",".join(f"{name}:|" for name in SQUEUE_FIELDS)
"""Without a width nothing is cut off; but for exit codes the same in 22.05 and 24.11, unlike --json."""

LIMITS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "PartitionNodeLimit": (
        "it asks for more nodes than its partition allows, or these are down",
        ("MaxNodes", "TotalNodes"),
    ),
    "PartitionTimeLimit": ("its time limit is above that of the partition", ("MaxTime",)),
    "PartitionConfig": (
        "it asks for more cores or nodes than the partition can ever give",
        ("TotalCPUs", "TotalNodes"),
    ),
    "PartitionDown": ("its partition is down", ("State",)),
    "PartitionInactive": ("its partition is inactive", ("State",)),
    "BadConstraints": ("no node can satisfy its constraints", ()),
    "DependencyNeverSatisfied": ("the job that it depends on has failed", ()),
    "InvalidAccount": ("its account is not valid", ()),
    "InvalidQOS": ("its quality of service is not valid", ()),
    "JobHeldAdmin": ("an administrator holds it", ()),
    "JobHeldUser": ("it is held; `scontrol release` lets it go", ()),
    "launch failed requeued held": ("it failed to start and is held", ()),
    "job requeued in held state": ("it was requeued and is held", ()),
}
"""Reasons for which jobs may wait for ever: their meaning, and facts of a partition that show the limit."""


@dataclass(frozen=True, slots=True)
class JobId:
    """Number of a job or of a whole job array, and its cluster where Slurm named one."""

    number: str
    cluster: str | None = None

    def __str__(self) -> str:
        """As Slurm writes it in `scancel`."""
        return self.number


def parse_job_id(stdout: str) -> JobId | None:
    """The job that `sbatch`, with or without --parsable, says it has accepted; None if it does not."""
    for line in stdout.splitlines():
        found = re.fullmatch(r"(\d+)(?:;(\S+))?", line.strip()) or re.fullmatch(
            r"Submitted batch job (\d+)(?: on cluster (\S+))?", line.strip()
        )
        if found:
            return JobId(found[1], found[2])
    return None


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What Slurm says about one job, or one element of a job array."""

    word: str
    """The state in Slurm's word."""
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    hosts: tuple[str, ...] = ()
    batch_host: str | None = None
    partition: str | None = None

    @property
    def state(self) -> WorkerState:
        """The state in the words of all launchers; a word that we do not know is taken for a running job."""
        return STATES.get(self.word, WorkerState.RUNNING)

    @property
    def ended(self) -> bool:
        """Whether it will do nothing more."""
        return self.state in (WorkerState.EXITED, WorkerState.FAILED)

    @property
    def lost_its_script(self) -> bool:
        """Whether the node of the batch script is gone from a job that was told to go on without lost nodes.

        Slurm then says RUNNING until the time limit, although nothing would end the job any more.
        """
        return self.word == "RUNNING" and bool(self.hosts) and self.batch_host not in (None, *self.hosts)

    def __str__(self) -> str:
        """State and reason, such as "PENDING (Resources)"."""
        return f"{self.word} ({self.reason})" if self.reason else self.word


GONE: Final = JobInfo("FORGOTTEN")
"""Of a job that Slurm no longer knows, as it does some minutes after its end."""


def parse_squeue(stdout: str) -> dict[str, JobInfo]:
    """What `squeue --Format=SQUEUE_FORMAT` printed, by job id or, in an array, "id_element"."""
    jobs = {}
    for line in stdout.splitlines():
        values = line.strip().split("|")
        if len(values) <= len(SQUEUE_FIELDS):  # such as "CLUSTER: name"
            continue
        raw = dict(zip(SQUEUE_FIELDS, (value.strip() for value in values), strict=False))
        word = raw["State"].split(" ")[0].split("+")[0].upper()
        ended = STATES.get(word) in (WorkerState.EXITED, WorkerState.FAILED)
        code, signal = _exit_status(raw["exit_code"]) if ended else (None, None)
        jobs[raw["JobArrayID"]] = JobInfo(
            word=word,
            reason=_given(raw["Reason"]),
            exit_code=code,
            signal=signal,
            restarts=int(raw["RestartCnt"]) if raw["RestartCnt"].isdigit() else 0,
            hosts=tuple(expand_hosts(raw["NodeList"])),
            batch_host=_given(raw["BatchHost"]),
            partition=_given(raw["Partition"]),
        )
    return jobs


def _exit_status(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) from "code:signal", or in 22.05 from a number as wait(2) gives it."""
    if text.isdigit():
        code, signal = int(text) >> 8, int(text) & 0x7F
    elif re.fullmatch(r"\d+:\d+", text):
        code, signal = map(int, text.split(":"))
    else:
        return None, None
    return (None, signal) if signal else shell_status(code)


def shell_status(code: int) -> tuple[int | None, int | None]:
    """(exit code, signal) of what a shell calls `$?`."""
    return (None, code - 128) if 128 < code <= 192 else (code, None)


def _given(text: str) -> str | None:
    return None if text in ("", "n/a", "N/A", "None", "(null)") else text


def explain_pending(reason: str, partition: str | None, facts: Mapping[str, str]) -> str | None:
    """Why a job with this reason may wait for ever, with the limit that it hit; None for an ordinary wait.

    Args:
        reason: Slurm's word.
        partition: the job's partition.
        facts: what `scontrol show partition` said of it; may be empty.
    """
    for word, (meaning, names) in LIMITS.items():
        if reason == word or reason.replace("_", " ") == word:
            shown = [f"{name}={facts[name]}" for name in names if name in facts]
            where = f" (partition {partition}: {', '.join(shown)})" if shown else ""
            return meaning + where
    return None


def parse_facts(line: str) -> dict[str, str]:
    """The `Name=value` pairs of a line of `scontrol --oneliner`; values with spaces are cut at the first."""
    return dict(pair.split("=", 1) for pair in line.split() if "=" in pair)


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list as Slurm writes it: "node[1-3,07],gpu2" and so on."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [literal] if literal else _numbers(ranges)
            names = [name + end for name in names for end in ends]
        hosts += names
    return [host for host in hosts if host.strip() not in ("", "(null)", "n/a")]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            continue
        width = len(first)
        numbers += [f"{number:0{width}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def expand_cpus(text: str) -> list[int]:
    """Cores of each node of an allocation, from SLURM_JOB_CPUS_PER_NODE such as "16(x2),8"."""
    cpus: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        cpus += [int(count)] * int(times or 1)
    return cpus
