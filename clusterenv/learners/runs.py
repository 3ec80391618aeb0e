"""One training run as seen from outside: its folder, metrics, curves, checkpoints and closing summary."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from clusterenv.errors import ClusterEnvError
from clusterenv.learners.board import Board
from clusterenv.learners.checkpoints import Checkpoint, remove_unfinished
from clusterenv.learners.progress import ProgressLine, bytes_text, short_number
from clusterenv.learners.resources import Resources
from clusterenv.learners.results import FORMAT, WINDOW
from clusterenv.learners.resuming import RESUME_FILE
from clusterenv.learners.run_folder import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    METRICS_FILE,
    RESULTS_FILE,
    SUMMARY_FILE,
    as_config_error,
    keep_lines_until,
    make_folder,
)
from clusterenv.learners.sync_counts import added
from clusterenv.learners.tally import Tally
from clusterenv.machine import machine_facts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from clusterenv.rollout import Rollout

SHOWN_OF_WORKERS = ("kl", "kl_threshold", "checks", "syncs_by_reason")
CHECKPOINT_INTERVAL_S = 30.0


class RunFolderError(ClusterEnvError, OSError):
    """A file of the run cannot be written any more, as on a full disk; says which and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did and what it sent."""

    seconds: float
    steps: int
    steps_per_s: float
    """Environment steps a second, learning included."""
    updates: int
    episodes: int
    episode_return: float | None
    """Mean of the last 100 episodes; None before the first has ended."""
    syncs_by_worker: list[dict[str, int]]
    """For each worker, its weight pulls by reason."""
    weight_bytes_sent: int
    check_bytes_sent: int
    broadcast_bytes: int
    """What sending the weights to every worker at each update would have sent."""

    def text(self) -> str:
        """The summary in a few lines for people."""
        returns = "none has ended" if self.episode_return is None else f"{self.episode_return:.1f}"
        lines = [
            f"{self.steps:,} steps in {self.seconds:.1f} s ({self.steps_per_s:,.0f} steps/s), "
            f"{self.updates:,} updates",
            f"mean return of the last {min(self.episodes, WINDOW)} of {self.episodes:,} episodes: {returns}",
        ]
        for rank, reasons in enumerate(self.syncs_by_worker):
            listed = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
            lines.append(f"worker {rank}: {sum(reasons.values())} syncs ({listed})")
        lines.append(
            f"weights sent: {bytes_text(self.weight_bytes_sent)} (and {bytes_text(self.check_bytes_sent)} of "
            f"checks); a broadcast at each update would have sent {bytes_text(self.broadcast_bytes)}"
        )
        return "\n".join(lines)


class Run(Tally):
    """The folder and the counters of one run; as a context it shows and writes the summary at its end."""

    def __init__(
        self,
        algorithm: str,
        config: DataclassInstance,
        folder: Path,
        *,
        total_steps: int,
        weight_bytes: int,
        checkpoint_every: int | None = None,
        log_interval: int = 1,
        launcher: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        """Make the folder, write the configuration into it and start the clock.

        Args:
            algorithm: its name.
            config: its options.
            folder: of the run.
            total_steps: environment steps that the run is to make.
            weight_bytes: of one copy of what workers act with.
            checkpoint_every: environment steps between two milestones; none: there are none.
            log_interval: updates between two lines of the metrics.
            launcher: where the workers run, as a configuration file says it; none: nothing is said.
            resume: the folder holds the run, and `load_state_dict` comes next.

        Raises:
            ConfigError: if the folder holds a run already, cannot be made, or takes no files.
        """
        super().__init__()
        make_folder(folder, resume=resume)
        self.folder = folder
        self._total_steps = total_steps
        self._weight_bytes = weight_bytes
        self._log_interval = log_interval
        self._resources = Resources(self.usage)
        self._machine = machine_facts()
        self._began = datetime.now(UTC)
        self._unwritten: Callable[[], None] | None = None
        self._checkpoint_every = checkpoint_every
        self._milestones = 0
        self._stats: Mapping[str, Any] = {"workers": [], "weight_bytes_sent": 0, "check_bytes_sent": 0}
        self._workers: list[Mapping[str, Any]] = []
        self._earlier = self._stats  # what was sent before the run was resumed
        self._config = {"algorithm": algorithm, **repeatable(config), **(launcher or {})}
        with as_config_error(folder):
            text = yaml.safe_dump(self._config, sort_keys=False)
            (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
            self._board = Board(folder)
            mode = "a" if resume else "w"
            self._metrics = (folder / METRICS_FILE).open(mode, encoding="utf-8", buffering=1)
        self._progress = ProgressLine()
        self._started = self._saved = self._logged = time.monotonic()
        self._rates: deque[tuple[float, int]] = deque([(self._started, 0)], maxlen=20)

    def __enter__(self) -> Run:
        """The run itself."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close every file, then write the results, and write and show the summary.

        Raises:
            RunFolderError: the first of what cannot be written, once all has been tried.
        """
        self._progress.close()
        summary = self.summary()
        if error is not None:
            self.ended = "interrupt" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        failures = []
        for name, close in (
            (METRICS_FILE, self._write_newest),
            (METRICS_FILE, self._metrics.close),
            (self._board.path.name, self._board.close),
            (SUMMARY_FILE, lambda: self._write(SUMMARY_FILE, dataclasses.asdict(summary))),
            (RESULTS_FILE, lambda: self._write(RESULTS_FILE, self.results())),
        ):
            try:
                with self._writing(name):
                    close()
            except RunFolderError as failure:
                failures.append(failure)
        self._progress.say(f"{summary.text()}\nrun folder: {self.folder}")
        if failures and not isinstance(error, RunFolderError):
            raise failures[0]

    @property
    def episode_return(self) -> float | None:
        """Mean return of the last episodes; None before the first has ended."""
        return self._returns.mean

    def log(self, rollout: Rollout, stats: Mapping[str, Any], losses: Mapping[str, float]) -> None:
        """Count one update made with `rollout`, and write and show what is known after it."""
        self.count(rollout)
        self._stats = added(self._earlier, stats)
        self._workers = stats["workers"]
        collected = self._collected(rollout) | self._resources.row(stats)
        self._progress.show(self._line(collected))
        self._unwritten = partial(self._write_line, collected, self._by_worker(rollout), losses)
        if self.updates % self._log_interval == 0:
            self._write_newest()

    def _write_newest(self) -> None:
        """Write what is known of the newest update, if that was not done."""
        write, self._unwritten = self._unwritten, None
        if write is not None:
            write()

    def _write_line(
        self, collected: Mapping[str, Any], by_worker: Mapping[str, Any], losses: Mapping[str, float]
    ) -> None:
        with self._writing(METRICS_FILE):
            row = {**collected, **by_worker, **losses}
            self._metrics.write(json.dumps(_finite(row), allow_nan=False) + "\n")
        curves = {f"run/{name}": value for name, value in collected.items() if value is not None}
        with self._writing(self._board.path.name):
            self._board.add(curves | {f"loss/{name}": value for name, value in losses.items()}, self.steps)

    def checkpoint_is_due(self) -> bool:
        """Whether the last checkpoint is some time ago."""
        return time.monotonic() - self._saved > CHECKPOINT_INTERVAL_S

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the run's checkpoint in one move: a reader sees the old one or the new one, whole."""
        with self._writing(CHECKPOINT_FILE):
            checkpoint.save(self.folder / CHECKPOINT_FILE)
        self._saved = time.monotonic()

    def milestone_is_due(self) -> bool:
        """Whether `checkpoint_every` steps were made since the last milestone; depends on steps alone."""
        every = self._checkpoint_every
        return every is not None and self.steps // every > self._milestones

    def save_milestone(self, checkpoint: Checkpoint) -> None:
        """Replace the last milestone in one move, and let `checkpoint` be the newest agent too."""
        self.save(checkpoint)
        with self._writing(RESUME_FILE):
            checkpoint.save(self.folder / RESUME_FILE)
        self._milestones = self.steps // (self._checkpoint_every or 1)

    def state_dict(self) -> dict[str, Any]:
        """The counters of the run."""
        return {
            "steps": self.steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "returns": self._returns.state_dict(),
            "used": self._resources.totals(),
            "seconds": self._logged - self._started,
            "stats": added(self._stats, {"workers": []}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave: what the folder tells of later steps is taken back."""
        self.steps, self.updates, self.episodes = (state[name] for name in ("steps", "updates", "episodes"))
        self._returns.load_state_dict(state["returns"])
        self._resources.go_on_from(state["used"])
        self._milestones = self.steps // (self._checkpoint_every or 1)
        self._stats = self._earlier = state["stats"]
        now = time.monotonic()
        self._logged, self._started = now, now - state["seconds"]
        self._rates = deque([(now, self.steps)], maxlen=20)
        with self._writing(METRICS_FILE):
            self._metrics.close()
            remove_unfinished(self.folder)
            keep_lines_until(self.folder / METRICS_FILE, self.steps)
            self._metrics = (self.folder / METRICS_FILE).open("a", encoding="utf-8", buffering=1)
        with self._writing(self._board.path.name):
            self._board.go_on_from(self.steps)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"{self.folder / name} cannot be written: {reason}") from error

    def summary(self) -> Summary:
        """What the run has done so far, up to its last update."""
        seconds = self._logged - self._started
        return Summary(
            seconds=seconds,
            steps=self.steps,
            steps_per_s=self.steps / max(seconds, 1e-9),
            updates=self.updates,
            episodes=self.episodes,
            episode_return=self.episode_return,
            syncs_by_worker=[dict(worker["syncs_by_reason"]) for worker in self._stats["workers"]],
            weight_bytes_sent=self._stats["weight_bytes_sent"],
            check_bytes_sent=self._stats["check_bytes_sent"],
            broadcast_bytes=self._broadcast_bytes(),
        )

    def results(self) -> dict[str, Any]:
        """What the run came to, up to its last update, as `benchmark_metrics.json` has it."""
        summary = self.summary()
        names = ("rank", "host", "steps", "restarts", "memory_bytes")
        return {
            "format": FORMAT,
            "algorithm": self._config["algorithm"],
            "env_id": self._config["env_id"],
            "seed": self._config["seed"],
            "began": self._began.isoformat(timespec="seconds"),
            "ended": self.ended,
            "seconds": summary.seconds,
            "steps": self.steps,
            "updates": self.updates,
            "episodes": self.episodes,
            "steps_per_s": summary.steps_per_s,
            "steps_per_hour": 3600 * summary.steps_per_s,
            **self._returns.summary(),
            **self._resources.totals(),
            "workers": [{name: worker.get(name) for name in names} for worker in self._workers],
            "config": self._config,
            "machine": self._machine,
        }

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(_finite(content), indent=2) + "\n", encoding="utf-8")

    def _collected(self, rollout: Rollout) -> dict[str, Any]:
        now = self._logged = time.monotonic()
        self._rates.append((now, self.steps))
        then, steps_then = self._rates[0]
        return {
            "steps": self.steps,
            "updates": self.updates,
            "seconds": now - self._started,
            "steps_per_s": (self.steps - steps_then) / max(now - then, 1e-9),
            "episodes": self.episodes,
            "episode_return": self.episode_return,
            "episode_length": self._returns.mean_length,
            "kl": max((float(kl) for kl in rollout.kl if math.isfinite(kl)), default=None),
            "policy_lag": float(rollout.policy_lag.mean()),
            "syncs": sum(worker["sync_count"] for worker in self._stats["workers"]),
            "weight_bytes_sent": self._stats["weight_bytes_sent"],
            "check_bytes_sent": self._stats["check_bytes_sent"],
            "broadcast_bytes": self._broadcast_bytes(),
        }

    def _by_worker(self, rollout: Rollout) -> dict[str, Any]:
        """What is no curve: valid rows by policy lag, and each worker's comparisons and syncs so far."""
        lags, rows = np.unique(rollout.policy_lag[rollout.valid], return_counts=True)
        return {
            "rows_by_lag": dict(zip(map(str, lags.tolist()), rows.tolist(), strict=True)),
            "workers": [
                _finite({name: worker[name] for name in SHOWN_OF_WORKERS})
                for worker in self._stats["workers"]
            ],
        }

    def _broadcast_bytes(self) -> int:
        return self._weight_bytes * self.updates * len(self._stats["workers"])

    def _line(self, collected: Mapping[str, Any]) -> str:
        returns = "-" if collected["episode_return"] is None else f"{collected['episode_return']:.1f}"
        kl = "-" if collected["kl"] is None else f"{collected['kl']:.4f}"
        saved = collected["broadcast_bytes"] - collected["weight_bytes_sent"]
        return (
            f"{short_number(self.steps)}/{short_number(self._total_steps)} steps  "
            f"{collected['steps_per_s']:,.0f} steps/s  return {returns}  KL {kl}  "
            f"syncs {collected['syncs']}  {bytes_text(max(saved, 0))} saved"
        )


def repeatable(config: DataclassInstance) -> dict[str, Any]:
    """The options of a run with which another can be made: without those that name the folder of this one."""
    return {name: value for name, value in plain(config).items() if name not in ("run_dir", "resume")}


def plain(config: DataclassInstance) -> dict[str, Any]:
    """The fields of a configuration as YAML holds them: paths as text, tuples as lists."""
    values = dataclasses.asdict(config)
    values |= {name: str(value) for name, value in values.items() if isinstance(value, Path)}
    return values | {name: list(value) for name, value in values.items() if isinstance(value, tuple)}


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON holds them: None for numbers that are not finite."""

    def held(value: Any) -> Any:  # noqa: ANN401 - of any type
        if isinstance(value, Mapping):
            return _finite(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: held(value) for name, value in values.items()}
