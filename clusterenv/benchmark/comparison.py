"""Runs side by side: which are repetitions of one setting, and the numbers that are compared."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.learners.procgen_levels import score_range
from clusterenv.learners.reading import RunRecord

NOT_SETTINGS = frozenset({"algorithm", "env_id", "env_kwargs", "seed", "run_dir", "resume"})
"""What is no difference between two settings of one algorithm on one task."""
MOST_SHOWN = 3
"""Settings by which a name tells groups apart."""


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seeds alone."""

    label: str
    """Algorithm, and the settings by which it differs from other groups of the comparison."""
    runs: Sequence[RunRecord]


@dataclass(frozen=True)
class Task:
    """The runs of one environment with the same arguments."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    groups: Sequence[Group]
    score_range: tuple[float, float] | None
    """Returns that count as 0 and 1; None but for Procgen's games with published constants."""

    @property
    def title(self) -> str:
        """For people."""
        told = ", ".join(f"{name}={value}" for name, value in self.env_kwargs.items())
        return f"{self.env_id} ({told})" if told else self.env_id

    @property
    def common_steps(self) -> int:
        """Environment steps that all runs have made."""
        return int(min(run.column("steps")[-1] for group in self.groups for run in group.runs))

    @property
    def common_seconds(self) -> float:
        """Seconds that all runs have taken."""
        return float(min(run.column("seconds")[-1] for group in self.groups for run in group.runs))

    def normalized(self, episode_return: float) -> float:
        """(return - lowest) / (highest - lowest), not clipped."""
        assert self.score_range is not None
        lowest, highest = self.score_range
        return (episode_return - lowest) / (highest - lowest)


@dataclass
class Comparison:
    """All tasks, and what a reader must be told of the runs."""

    tasks: list[Task] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def compare(runs: Sequence[RunRecord]) -> Comparison:
    """The runs by task and setting, the newest of each seed.

    Raises:
        ConfigError: if none can be compared.
    """
    comparison = Comparison()
    by_task: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        missing = [name for name in ("algorithm", "env_id") if not run.config.get(name)]
        missing += [name for name in ("steps", "seconds") if np.isnan(run.column(name)).any()]
        if missing:
            comparison.remarks.append(f"{run.folder} does not tell {', '.join(missing)}; it is left out")
            continue
        kwargs = run.config.get("env_kwargs") or {}
        by_task[json.dumps([run.env_id, kwargs], sort_keys=True)].append(run)
        comparison.remarks += _remarks(run)
    if not by_task:
        raise ConfigError("runs", [str(run.folder) for run in runs], "a run that tells algorithm and steps")
    for key, of_task in by_task.items():
        env_id, env_kwargs = json.loads(key)
        comparison.tasks.append(
            Task(
                env_id,
                env_kwargs,
                _groups(of_task, comparison.remarks),
                _range(env_id, env_kwargs, comparison),
            )
        )
    return comparison


def at(run: RunRecord, against: str, value: float) -> float:
    """The mean return of the last 100 episodes when `against` was `value`; NaN before the first had ended."""
    returns, where = run.column("episode_return"), run.column(against)
    known = np.isfinite(returns)
    if not known.any():
        return np.nan
    return float(np.interp(value, where[known], returns[known], left=np.nan))


def final_return(run: RunRecord) -> float:
    """The mean return of the last 100 episodes at the end; NaN if none had ended."""
    return at(run, "steps", run.column("steps")[-1])


def steps_per_s(run: RunRecord) -> float:
    """Environment steps a second over the whole run, learning included."""
    return float(run.column("steps")[-1] / max(run.column("seconds")[-1], 1e-9))


def peak_memory_bytes(run: RunRecord) -> float:
    """The most memory that learner and workers together were seen to have; NaN if the run does not tell."""
    seen = run.column("memory_peak_bytes")
    return float(np.nanmax(seen)) if np.isfinite(seen).any() else np.nan


def _remarks(run: RunRecord) -> list[str]:
    remarks = []
    if not run.finished:
        remarks.append(f"{run.folder} has no summary: it goes on, or was killed")
    if not np.isfinite(run.column("episode_return")).any():
        remarks.append(f"no episode has ended in {run.folder}: it has no return")
    return remarks


def _range(env_id: str, env_kwargs: Mapping[str, Any], comparison: Comparison) -> tuple[float, float] | None:
    try:
        return score_range(env_id, env_kwargs)
    except ImportError:
        remark = "normalised scores need Procgen's constants: pip install ./plugins/clusterenv-procgen"
        if remark not in comparison.remarks:
            comparison.remarks.append(remark)
        return None


def _groups(runs: Sequence[RunRecord], remarks: list[str]) -> list[Group]:
    settings: dict[str, dict[Any, RunRecord]] = defaultdict(dict)
    for run in runs:
        of_seed = settings[_setting(run)]
        seed = run.config.get("seed")
        if seed in of_seed:
            remarks.append(
                f"{of_seed[seed].folder} has the settings and seed of {run.folder}; it is left out"
            )
        of_seed[seed] = run
    grouped = [list(of_seed.values()) for of_seed in settings.values()]
    return [Group(_label(group[0], [other[0] for other in grouped]), group) for group in grouped]


def _setting(run: RunRecord) -> str:
    settings = {name: value for name, value in run.config.items() if name not in NOT_SETTINGS}
    return json.dumps([run.algorithm, settings], sort_keys=True, default=str)


def _label(run: RunRecord, others: Sequence[RunRecord]) -> str:
    same_algorithm = [other.config for other in others if other.algorithm == run.algorithm]
    names = dict.fromkeys(name for config in same_algorithm for name in config if name not in NOT_SETTINGS)
    differing = [
        name for name in names if any(config.get(name) != run.config.get(name) for config in same_algorithm)
    ]
    shown = [f"{name}={run.config.get(name)}" for name in differing[:MOST_SHOWN]]
    return " ".join([run.algorithm, *shown, *(["..."] if len(differing) > MOST_SHOWN else [])])
