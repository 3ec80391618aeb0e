"""The folder of a run: its files by name, and how it comes to be there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FILE = "checkpoint.pt"
SUMMARY_FILE = "summary.json"
RESULTS_FILE = "benchmark_metrics.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is: the folder of its files, what started its workers, and the learner's device."""

    folder: Path
    launcher: LocalConfig | SlurmConfig
    device: torch.device


def make_folder(folder: Path, *, resume: bool = False) -> None:
    """`folder` is there and ready for a run, which is better known before workers are waited for.

    Raises:
        ConfigError: if it holds a run already that is not to `resume`, cannot be made, or takes no files.
    """
    with as_config_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / METRICS_FILE).exists() and not resume:
            raise ConfigError("run_dir", str(folder), "a folder without a run in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError("run_dir", str(folder), "a folder in which files can be written")


@contextmanager
def ready_folder(folder: Path, *, resume: bool = False) -> Iterator[None]:
    """`folder` is there, as `make_folder` makes it; if the block fails, no empty one is left.

    Raises:
        ConfigError: as `make_folder`.
    """
    with as_config_error(folder):
        made = not folder.exists()
    make_folder(folder, resume=resume)
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def as_config_error(folder: Path) -> Iterator[None]:
    """Around what makes or writes `folder` at the start of a run."""
    try:
        yield
    except OSError as error:
        expected = f"a folder that can be made and written ({error.strerror})"
        raise ConfigError("run_dir", str(folder), expected) from error


def default_folder(algorithm: str, env_id: str, seed: int) -> Path:
    """A folder for a run that was given none: below runs/, named by what is run and when."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in env_id)
    return Path("runs", f"{name}-{algorithm}-seed{seed}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def keep_lines_until(path: Path, steps: int) -> None:
    """The metrics at `path` tell of no update after `steps`; half a line at the end is no line."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            if json.loads(line)["steps"] <= steps:
                kept.append(f"{line}\n")
    shorter = path.with_name(f".{path.name}.shorter")
    shorter.write_text("".join(kept), encoding="utf-8")
    shorter.replace(path)
