"""The cluster for all tests in this folder; each test leaves it idle."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterenv.launcher_config import SlurmConfig
from clusterenv.launchers.slurm_allocation import Allocation
from clusterenv.launchers.slurm_states import expand_hosts
from tests.slurm.lab import CPUS, Lab, why_not

MakeConfig = Callable[..., SlurmConfig]
Record = Callable[[str, str], None]
"""`record(what, value)`: shown at the end of the test run."""

_RECORD = "record"


@pytest.fixture(scope="session")
def _lab() -> Iterator[Lab]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    lab = Lab()
    lab.clean()
    yield lab
    lab.down()


@pytest.fixture
def lab(_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The cluster, idle, and reachable by Slurm's commands."""
    for name in list(os.environ):
        if name.startswith(("SLURM_JOB", "SLURM_STEP", "SBATCH_")):
            monkeypatch.delenv(name)
    for name, value in _lab.environ.items():
        monkeypatch.setenv(name, value)
    yield _lab
    _lab.clean()


@pytest.fixture
def slurm_config(lab: Lab, tmp_path: Path) -> MakeConfig:
    """`SlurmConfig` with the runs' folder in the test's own, which all hosts see."""

    def make(**options: object) -> SlurmConfig:
        return SlurmConfig(**{"shared_folder": tmp_path / "runs", **options})  # type: ignore[arg-type]

    return make


@pytest.fixture
def allocation(lab: Lab) -> Iterator[Allocation]:
    """Three whole nodes that a test may start steps on."""
    done = subprocess.run(
        ["salloc", "--nodes=3", "--exclusive", "--no-kill", "--no-shell"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    job = done.stderr.split("job allocation ")[-1].split()[0].rstrip(".")
    hosts = expand_hosts(lab.tell("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
    yield Allocation(job, 3, (CPUS, CPUS, CPUS), tuple(hosts))
    lab.tell("scancel", job)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Tells people what a test has measured."""
    node = request.node
    # Properties come back from the process in which the test runs.
    return lambda what, value: node.user_properties.append((_RECORD, f"{node.name}: {what} {value}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, line in report.user_properties:
                    if name == _RECORD:
                        terminalreporter.write_line(line)
