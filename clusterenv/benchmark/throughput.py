"""Steps per second of ClusterEnv, of what a user writes by hand, and of other libraries, in one run."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from clusterenv.benchmark.contenders import Shape
from clusterenv.benchmark.subject_process import (
    Sample,
    SubjectFailed,
    SubjectMissing,
    SubjectProcess,
    end_all,
)
from clusterenv.benchmark.subjects import SUBJECTS
from clusterenv.benchmark.tasks import TASKS
from clusterenv.benchmark.throughput_report import Outcome, ThroughputReport
from clusterenv.errors import ConfigError
from clusterenv.machine import machine_facts


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThroughputBenchmark:
    """Steps per second of every subject on every task, one after the other, round by round."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks, by name."""
    subjects: tuple[str, ...] = tuple(SUBJECTS)
    """What is measured, by name."""
    baselines: tuple[str, ...] = ("bare", "hand-written")
    """Subjects that the others are divided by, within each round."""
    workers: int = field(default_factory=_cores)
    """Workers of each subject that has such; by default the granted cores."""
    num_envs: int = field(default_factory=lambda: 32 * _cores())
    """Environments of a subject in all, a multiple of `workers`; by default 32 for each granted core."""
    num_steps: int = 128
    """Steps of a rollout."""
    seconds: float = 3.0
    """Length of a measurement."""
    repeats: int = 5
    """Rounds; in each of them all subjects run, one after the other."""
    patience_s: float = 120.0
    """How long a subject may take to start, and to answer after a measurement, before it is given up."""
    pythons: tuple[str, ...] = ()
    """Interpreters of subjects that need other versions than ours, such as `rllib=/opt/ray/bin/python`."""
    json: Path | None = None
    """File to write the result to as well."""
    plot: Path | None = None
    """File for a figure of it, such as result.png."""

    def __post_init__(self) -> None:
        """Check every value."""
        for option, known in (("tasks", TASKS), ("subjects", SUBJECTS)):
            _check_names(option, getattr(self, option), known)
        for name in self.baselines:
            if name not in self.subjects:
                raise ConfigError("baselines", name, "one of `subjects`")
        for name in ("workers", "num_steps", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number from 1")
        if self.num_envs < 1 or self.num_envs % self.workers:
            raise ConfigError("num_envs", self.num_envs, f"a multiple of workers = {self.workers}")
        for name in ("seconds", "patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, getattr(self, name), "a number of seconds above 0")
        for path in ("json", "plot"):
            file: Path | None = getattr(self, path)
            if file is not None and not file.absolute().parent.is_dir():
                raise ConfigError(path, str(file), "a file in a folder that exists")
        self._interpreters()

    def _interpreters(self) -> Mapping[str, str]:
        """By subject, where it does not run with our own."""
        found = {}
        for words in self.pythons:
            name, _, python = words.partition("=")
            if name not in SUBJECTS or not os.access(python, os.X_OK):
                raise ConfigError("pythons", words, "SUBJECT=INTERPRETER, a subject's name and a file to run")
            found[name] = python
        return found

    def run(self) -> None:
        """Measure, print the tables, and write what was asked for."""
        report = self.measure()
        if self.json is not None:
            report.write(self.json)
        if self.plot is not None:
            report.draw(self.plot)

    def measure(self) -> ThroughputReport:
        """Every task in turn; its table is printed as soon as it is there."""
        settings = dataclasses.asdict(self)
        del settings["json"], settings["plot"]
        report = ThroughputReport(settings, machine_facts(), self.baselines)
        for name in self.tasks:
            report.tasks[name] = self._task(name)
            sys.stdout.write(report.table(name) + "\n")
            sys.stdout.flush()
        sys.stdout.write(report.footer())
        return report

    def _task(self, task: str) -> dict[str, Outcome]:
        outcomes = {name: Outcome() for name in self.subjects}
        running: dict[str, SubjectProcess] = {}
        try:
            for name in self.subjects:
                self._start(task, name, outcomes[name], running)
            for turn in range(self.repeats):
                names = list(running)
                first = turn % len(names) if names else 0
                for name in names[first:] + names[:first]:
                    self._measure(name, outcomes[name], running)
        finally:
            for process in running.values():
                process.close()
            end_all()
        return outcomes

    def _start(self, task: str, name: str, outcome: Outcome, running: dict[str, SubjectProcess]) -> None:
        _say(f"{task}: {name} starts")
        python = self._interpreters().get(name, sys.executable)
        shape = Shape(self.num_envs, self.workers, self.num_steps)
        try:
            running[name] = SubjectProcess(name, task, shape, python=python, patience_s=self.patience_s)
        except SubjectMissing as missing:
            outcome.missing = str(missing)
        except SubjectFailed as failed:
            outcome.failed = str(failed)
        else:
            outcome.versions = running[name].versions

    def _measure(self, name: str, outcome: Outcome, running: dict[str, SubjectProcess]) -> None:
        """One more sample; a subject that fails is not asked again, and what it has shown does not count."""
        _say(f"{name} runs")
        try:
            sample: Sample = running[name].measure(self.seconds)
        except SubjectFailed as failed:
            outcome.failed = str(failed)
            outcome.samples.clear()
            running.pop(name).close()
        else:
            outcome.samples.append(sample)


def _check_names(option: str, names: tuple[str, ...], known: Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(option, name, f"one or more of {', '.join(known)}")
    if not names or len(set(names)) < len(names):
        raise ConfigError(option, " ".join(names), "at least one name, and none twice")


def _say(what: str) -> None:
    """Shown on a terminal, written over by the next."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{what}\r")
        sys.stderr.flush()
