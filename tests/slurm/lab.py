"""A real Slurm cluster of several hosts on this machine, driven from tests."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SCRIPT = Path(__file__).with_name("slurm-cluster")
NEEDED = ("sbatch", "srun", "slurmctld", "slurmd", "munged", "ip")
NODES = ("node1", "node2", "node3", "node4")
CPUS = 4


def why_not() -> str | None:
    """Why no cluster can be had here; None: one can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        return (
            f"Slurm is not installed ({', '.join(missing)} not found): "
            "apt-get install slurmctld slurmd slurm-client munge iproute2"
        )
    return None if os.geteuid() == 0 else "only root can start the daemons of a Slurm cluster"


class Lab:
    """The cluster: its environment for Slurm's commands, and what can happen to its hosts."""

    def __init__(self) -> None:
        self.was_up = self._call("status", check=False).returncode == 0
        self._call("up", "--nodes", str(len(NODES)), "--cpus", str(CPUS))
        lines = self._call("env").stdout
        self.environ = dict(re.findall(r"^export (\w+)=(.*)$", lines, re.MULTILINE))
        self.head_address = self.environ["SLURM_LAB_HEAD"]
        self._saved_jobs = Path(self.environ["SLURM_CONF"]).parent / "state" / "job_state"

    def _call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([str(SCRIPT), *words], capture_output=True, text=True, timeout=180, check=False)
        assert not check or done.returncode == 0, f"slurm-cluster {words}: {done.stdout}{done.stderr}"
        return done

    def host(self, what: str, name: str, *options: str) -> None:
        """`kill-node`, `start-node`, `cut-node` or `heal-node`."""
        self._call(what, *options, name)

    def execute(self, host: str, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A command on one of the hosts."""
        words = ["env", *(f"{key}={value}" for key, value in (env or {}).items()), *argv]
        return subprocess.Popen(
            [str(SCRIPT), "exec", host, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def on(self, host: str, *argv: str) -> None:
        """A command that succeeds on one of the hosts."""
        self._call("exec", host, *argv)

    def submit(self, command: str, *options: str, output: Path | str = "/dev/null") -> str:
        """The number of a job that runs `command`."""
        argv = ("sbatch", "--parsable", f"--output={output}", *options, "--wrap", command)
        return self.tell(*argv).strip()

    def run(self, command: str, *options: str, output: Path, within_s: float = 60.0) -> list[str]:
        """The lines that a job has printed, once it has ended."""
        job = self.submit(command, *options, output=output)
        until(lambda: job not in self.active(), within_s, f"job {job} has ended")
        return output.read_text().splitlines()

    def tell(self, *argv: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **self.environ}
        )
        assert done.returncode == 0, f"{shlex.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """State of every job that Slurm remembers, by id."""
        listed = self.tell("squeue", "--noheader", "--array", "--states=all", "--format=%i %T")
        return dict(line.split() for line in listed.splitlines())

    def active(self) -> list[str]:
        """Jobs that have not ended."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        return [job for job, state in self.jobs().items() if state not in ended]

    def save(self, job: str) -> None:
        """Wait until the controller would still know the job as it is now if it were killed.

        It writes its state some seconds after each change.
        """
        mark = f"saved at {time.monotonic()}"
        self.tell("scontrol", "update", f"jobid={job}", f"comment={mark}")
        until(lambda: mark.encode() in self._saved_jobs.read_bytes(), 30, "the job has been saved")

    def worker_pids(self) -> list[int]:
        """Worker processes on all hosts, which are namespaces of this machine."""
        found = []
        here = Path("/proc/self/ns/pid").readlink()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/pid").readlink() == here:
                    continue
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:4] == [b"-m", b"clusterenv", b"worker"]:
                found.append(int(folder.name))
        return found

    def clean(self) -> None:
        """End every job and bring every host back."""
        for name in NODES:
            self._call("heal-node", name, check=False)
        if self._call("status", check=False).returncode != 0:
            for name in ("ctl", *NODES):
                self._call("start-node", name)
        if self.active():
            self.tell("scancel", f"--user={os.environ.get('USER', 'root')}")
        start = time.monotonic()
        until(lambda: not self.active() and self._all_idle(time.monotonic() - start), 40, "it is idle")

    def _all_idle(self, for_s: float) -> bool:
        listed = self.tell("sinfo", "--noheader", "--Node", "--format=%N %T")
        nodes = {name: state.rstrip("*") for name, state in map(str.split, set(listed.splitlines()))}
        for name, state in nodes.items():
            # A job that was cancelled while its node was dead would else be "completing" for minutes.
            if state == "completing" and for_s > 6.0:
                self.tell("scontrol", "update", f"nodename={name}", "state=down", "reason=test")
            elif state == "down":
                self.tell("scontrol", "update", f"nodename={name}", "state=resume")
        return set(nodes.values()) == {"idle"}

    def down(self) -> None:
        """End the cluster, unless it was up before."""
        if not self.was_up:
            self._call("down")


def until(holds: Callable[[], object], within_s: float, what: str) -> float:
    """Seconds until `holds()`; fails after `within_s`."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - start
