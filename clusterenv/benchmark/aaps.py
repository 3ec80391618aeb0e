"""A sweep over rules of AAPS and seeds that may stop and go on; each run is a `clusterenv train`."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from clusterenv import __version__
from clusterenv.benchmark import aaps_results as results
from clusterenv.benchmark.trained import train
from clusterenv.errors import ConfigError
from clusterenv.learners.run_folder import METRICS_FILE
from clusterenv.learners.runs import plain
from clusterenv.machine import machine_facts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RULES = ("0", "0.001", "0.01", "0.05", "0.1", "0.2", "0.5", "0.8", "1.0", "inf", "interval:4", "never")
NO_MILESTONE = 1 << 40
"""Steps between two milestones: none in a sweep, since workers pull there whatever the rule says."""
LOG_TAIL = 2000
"""Characters of a failed run's output that its line keeps."""


@dataclass(frozen=True, kw_only=True)
class AapsSweep:
    """Train with each rule and seed in turn, and add a line to a file for each run.

    Started again with the same options it goes on where it stopped.
    """

    results: Path
    """File with one JSON line for each run. Runs that it holds are not made again, unless they failed."""
    algorithm: Literal["ppo", "impala"] = "ppo"
    """What trains."""
    env_id: str = "LunarLander-v3"
    """Environment."""
    rules: tuple[str, ...] = RULES
    """KL thresholds in nats ("inf" too), and "every", "interval:k", "broadcast", "never"."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Seeds; all rules run with the first before any runs with the second."""
    total_steps: int = 500_000
    """Environment steps of each run."""
    options: tuple[str, ...] = ()
    """Further options of `clusterenv train` for all runs, as NAME=VALUE: max_lag=64 clip_around=behaviour."""
    run_timeout_s: float = 3600.0
    """Seconds after which a run counts as failed."""

    def __post_init__(self) -> None:
        """Check what no run checks."""
        for option in self.options:
            if not re.fullmatch(r"[a-z][a-z_.]*=.*", option):
                raise ConfigError("options", option, "NAME=VALUE, such as max_lag=64")
        if not self.run_timeout_s > 0:
            raise ConfigError("run_timeout_s", self.run_timeout_s, "a number of seconds above 0")

    def run(self) -> None:
        """Make the runs that are missing, and say how each went."""
        runs = [SweepRun.of(self, rule, seed) for seed in self.seeds for rule in self.rules]
        with _alone(self.results):
            there = results.load(self.results)
            missing = [run for run in runs if not any(run.is_in(line) for line in there)]
            _say(f"{len(runs)} runs, {len(runs) - len(missing)} of them are in {self.results}")
            for number, run in enumerate(missing, start=1):
                line = run.line(self.run_timeout_s)
                results.append(self.results, line)
                _say(f"[{number}/{len(missing)}] {run.name}: {_outcome(line)}")


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run: the options of `clusterenv train` and what they come to."""

    algorithm: str
    rule: str
    seed: int
    options: tuple[str, ...]
    argv: tuple[str, ...]
    settings: dict[str, Any]
    defaults: dict[str, Any]

    @classmethod
    def of(cls, sweep: AapsSweep, rule: str, seed: int) -> SweepRun:
        """The run of `rule` with `seed`, its options checked and laid over the environment's defaults."""
        argv = (
            *("--env-id", sweep.env_id, "--seed", str(seed), "--total-steps", str(sweep.total_steps)),
            *("--checkpoint-every", str(NO_MILESTONE)),
            *_rule_options(rule),
            *(f"--{name.replace('_', '-')}={value}" for name, _, value in _parted(sweep.options)),
        )
        config = import_module(f"clusterenv.learners.{sweep.algorithm}").parse(argv)[0]
        settings = {"algorithm": sweep.algorithm, **_settings(config)}
        defaults = _settings(type(config)(env_id=sweep.env_id))
        return cls(sweep.algorithm, rule, seed, sweep.options, argv, settings, defaults)

    def is_in(self, line: results.Line) -> bool:
        """Whether `line` is what this run would give; a changed option or default makes another run."""
        return results.has(line, self.settings, self.defaults, __version__)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.algorithm} {self.settings['env_id']} rule {self.rule} seed {self.seed}"

    def line(self, timeout_s: float) -> results.Line:
        """Run it in a process of its own, and return what is known of it.

        Raises:
            KeyboardInterrupt: if the run was interrupted: it is neither done nor failed.
        """
        line: results.Line = {
            "version": __version__,
            "rule": self.rule,
            "seed": self.seed,
            "options": list(self.options),
            "settings": self.settings,
            "machine": machine_facts(),
        }
        with tempfile.TemporaryDirectory(prefix="clusterenv-aaps-") as name:
            folder = Path(name, "run")
            log = Path(name, "log.txt")
            started = time.monotonic()
            problem = train(self.algorithm, self.argv, folder, log, timeout_s)
            line["wall_s"] = round(time.monotonic() - started, 2)
            if problem is None:
                return line | {"status": results.DONE} | results.measured(_metrics(folder))
            tail = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
            return line | {"status": results.FAILED, "error": problem, "log_tail": tail}


def _rule_options(rule: str) -> tuple[str, ...]:
    try:
        float(rule)
    except ValueError:
        return ("--kl-threshold", rule) if rule == "auto" else ("--sync", rule)
    return ("--kl-threshold", rule)


def _parted(options: Sequence[str]) -> list[tuple[str, str, str]]:
    return [option.partition("=") for option in options]


def _settings(config: DataclassInstance) -> dict[str, Any]:
    """The fields of a learner's configuration as JSON holds them, but for where the run's files go."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in plain(config).items()
        if name != "run_dir"
    }


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _alone(path: Path) -> FileLock:
    """Held by the one sweep that writes to `path`.

    Raises:
        ConfigError: if another one does, or there can be no file.
    """
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError("results", str(path), "a file that no other sweep is writing to") from None
    except OSError as error:
        raise ConfigError("results", str(path), f"a file that can be written ({error.strerror})") from error
    return lock


def _outcome(line: results.Line) -> str:
    if line["status"] == results.FAILED:
        last = line["log_tail"].strip().rsplit("\n", 1)[-1]
        return f"failed: {line['error']}; {last}"
    shown = "-" if line["episode_return"] is None else f"{line['episode_return']:.1f}"
    syncs = ", ".join(str(sum(reasons.values())) for reasons in line["syncs_by_worker"])
    return f"return {shown}, syncs {syncs} of {line['updates']} updates, {line['wall_s']:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
