"""The same training in one process and over workers, for equal times: what a machine's cores are worth."""

from __future__ import annotations

import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from clusterenv.benchmark.comparison import compare, steps_per_s
from clusterenv.benchmark.comparison_plots import draw
from clusterenv.benchmark.comparison_report import markdown, report
from clusterenv.benchmark.trained import train
from clusterenv.errors import ConfigError
from clusterenv.learners.duration_option import seconds_of
from clusterenv.learners.evaluate import EVALUATION_FILE, EvaluateConfig, evaluations, save
from clusterenv.learners.procgen_levels import Levels
from clusterenv.learners.reading import RunRecord, read_json, read_run
from clusterenv.learners.run_folder import CHECKPOINT_FILE, RESULTS_FILE
from clusterenv.learners.threads import available_cores

Layout = Literal["sequential", "sequential-threads", "parallel"]
MARGIN_S = 300.0
"""Beyond its time that a run may take to start and to end."""
ASKED_OF_ONE_THREAD = 1.5
ASKED_OF_BEST = 0.95


@dataclass(frozen=True, kw_only=True)
class ClusterBenchmark:
    """Train each algorithm on each task, sequential and parallel, for equal times, and compare.

    Started again with the same options it goes on where it stopped.
    """

    results: Path = Path("cluster")
    """Folder for the runs, and for comparison.md and comparison.png."""
    tasks: tuple[str, ...] = ("procgen:coinrun=10m", "procgen:starpilot=3m", "procgen:bigfish=3m")
    """Environments, each with the time of a run on it."""
    algorithms: tuple[str, ...] = ("ppo", "impala")
    """Which train."""
    layouts: tuple[Layout, ...] = ("sequential", "sequential-threads", "parallel")
    """"sequential": one process with one thread; "sequential-threads": with a thread on each core;
    "parallel": worker processes, with the threads that a run chooses."""
    workers: int = 2
    """Of a parallel run."""
    seeds: tuple[int, ...] = (1,)
    """All runs are made with the first before any is with the second."""
    config: str | None = "procgen-laptop"
    """Configuration of every run, as `train --config` takes it; none: the defaults of the environment."""
    options: tuple[str, ...] = ()
    """Further options of `clusterenv train` for all runs, as NAME=VALUE: learning_rate=3e-4 num_envs=64."""
    episodes: int = 0
    """Episodes that each trained agent then plays on the levels of training and on held-out ones; 0: none."""

    def __post_init__(self) -> None:
        """Check what no run checks."""
        for task in self.tasks:
            _parted_task(task)
        for option in self.options:
            if not re.fullmatch(r"[a-z][a-z_.]*=.*", option):
                raise ConfigError("options", option, "NAME=VALUE, such as num_envs=64")
        for name, least in (("workers", 1), ("episodes", 0)):
            if getattr(self, name) < least:
                raise ConfigError(name, getattr(self, name), f"a whole number from {least}")

    def run(self) -> None:
        """Make the runs that are missing, and write and show the comparison of all."""
        runs = self.runs()
        for run in runs:
            run.check()
        for number, run in enumerate(runs, start=1):
            problem = run.make()
            said = "is there" if problem is None else problem or "done"
            _say(f"[{number}/{len(runs)}] {run.folder.name}: {said}")
            if run.is_done and self.episodes:
                run.play(self.episodes)
        done = [run for run in runs if run.is_done]
        if not done:
            raise ConfigError(
                "results", str(self.results), "a run that has ended well; see train.log in each"
            )
        text = self._report(done)
        (self.results / "comparison.md").write_text(text, encoding="utf-8")
        _say(f"{text}\nwrote {self.results / 'comparison.md'} and comparison.png")

    def runs(self) -> list[LayoutRun]:
        """All runs, in their order."""
        return [
            LayoutRun(
                self.results / f"{env_id.replace(':', '_')}-{algorithm}-{layout}-seed{seed}",
                env_id,
                algorithm,
                layout,
                seconds,
                self._argv(env_id, seconds, layout, seed),
            )
            for seed in self.seeds
            for env_id, seconds in map(_parted_task, self.tasks)
            for algorithm in self.algorithms
            for layout in self.layouts
        ]

    def _argv(self, env_id: str, seconds: float, layout: Layout, seed: int) -> tuple[str, ...]:
        config = () if self.config is None else ("--config", self.config)
        where = {
            "sequential": ("--workers", "1", "--serial", "--num-threads", "1"),
            "sequential-threads": ("--workers", "1", "--serial", "--num-threads", str(available_cores())),
            "parallel": ("--workers", str(self.workers)),
        }[layout]
        given = (option.partition("=") for option in self.options)
        further = (f"--{name.replace('_', '-')}={value}" for name, _, value in given)
        task = ("--env-id", env_id, "--duration", f"{seconds:g}s", "--seed", str(seed))
        return (*config, *task, *where, *further)

    def _report(self, runs: Sequence[LayoutRun]) -> str:
        comparison = compare([run.record for run in runs])
        draw(comparison, self.results / "comparison.png")
        return f"{report(comparison, 'comparison.png')}\n## Parallel against sequential\n\n{speeds(runs)}\n"


@dataclass(frozen=True, slots=True)
class LayoutRun:
    """One run of the benchmark, to be made or made."""

    folder: Path
    env_id: str
    algorithm: str
    layout: Layout
    seconds: float
    argv: tuple[str, ...]

    def check(self) -> None:
        """Say what is wrong with the options before hours are spent.

        Raises:
            ConfigError: if the run would be refused.
        """
        import_module(f"clusterenv.learners.{self.algorithm}").parse(self.argv)

    @property
    def is_done(self) -> bool:
        """Whether the folder holds the run, ended by its duration or its steps."""
        return read_json(self.folder / RESULTS_FILE).get("ended") in ("duration", "steps", "return")

    @property
    def record(self) -> RunRecord:
        """What the run has left."""
        return read_run(self.folder)

    def make(self) -> str | None:
        """Train, unless that was done: None; "" if it is now, or what happened.

        Raises:
            KeyboardInterrupt: if the run was interrupted; it is made anew next time.
        """
        if self.is_done:
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        log = self.folder / "train.log"
        problem = train(self.algorithm, self.argv, self.folder, log, self.seconds + MARGIN_S)
        if problem is None:
            return ""
        last = log.read_text(encoding="utf-8", errors="replace").strip().rsplit("\n", 1)[-1]
        return f"failed: {problem}; {last}"

    def play(self, episodes: int) -> None:
        """The agent has played on both kinds of levels, which `compare` shows."""
        if read_json(self.folder / EVALUATION_FILE):
            return
        levels: tuple[Levels, ...] = ("train", "held-out") if "procgen" in self.env_id else ()
        config = EvaluateConfig(
            checkpoint=self.folder / CHECKPOINT_FILE, levels=levels, num_episodes=episodes, seed=10_000
        )
        for evaluation in evaluations(config):
            save(self.folder / EVALUATION_FILE, evaluation)


def speeds(runs: Sequence[LayoutRun]) -> str:
    """A row for each task and algorithm: steps a second, and the ratios of parallel to sequential runs.

    Over several seeds a speed is the median, and a ratio the median of the ratios of equal seeds.
    """
    layouts = list(dict.fromkeys(run.layout for run in runs))
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        of_task = rates.setdefault((run.env_id, run.algorithm), {})
        of_task.setdefault(run.layout, []).append(steps_per_s(run.record))
    rows = []
    for (env_id, algorithm), of_layout in rates.items():
        cells = [
            f"{statistics.median(of_layout[name]):,.0f}" if name in of_layout else "-" for name in layouts
        ]
        one, threads = (of_layout.get(name, []) for name in ("sequential", "sequential-threads"))
        best = [max(pair) for pair in zip(one, threads, strict=False)] or one or threads
        parallel = of_layout.get("parallel", [])
        rows.append([env_id, algorithm, *cells, _ratio(parallel, one), _ratio(parallel, best)])
    titles = ["task", "algorithm", *(f"{name}, steps/s" for name in layouts)]
    titles += ["parallel / one thread", "parallel / best sequential"]
    asked = (
        f"Asked for are {ASKED_OF_ONE_THREAD} and {ASKED_OF_BEST}. Steps of training runs, learning included."
    )
    return f"{markdown(titles, rows)}\n\n{asked}"


def _ratio(numbers: Sequence[float], base: Sequence[float]) -> str:
    ratios = [number / other for number, other in zip(numbers, base, strict=False)]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _parted_task(task: str) -> tuple[str, float]:
    env_id, _, time = task.rpartition("=")
    try:
        seconds = seconds_of(time)
    except ValueError:
        seconds = 0.0
    if not env_id or not seconds > 0:
        raise ConfigError("tasks", task, "ENVIRONMENT=TIME, such as procgen:coinrun=10m")
    return env_id, seconds


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
