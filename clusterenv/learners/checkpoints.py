"""Checkpoints: what is in one, and reading and writing it safely."""

from __future__ import annotations

import dataclasses
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clusterenv.errors import ConfigError

FORMAT = 2
"""Version of the file; those of version 1 have no `training`."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that is needed to act with an agent again, and the state of its optimiser."""

    algorithm: str
    env_id: str
    steps: int
    agent: dict[str, Any]
    """State dict of the agent."""
    agent_options: dict[str, Any]
    """Keyword arguments of `Agent`, other than its spaces."""
    optimizer: dict[str, Any]
    config: dict[str, Any]
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What else a run needs to go on to the same numbers (`resuming.py`); empty where it only acts."""
    format: int = FORMAT

    def save(self, path: Path) -> None:
        """Write the file in one move: whoever reads `path` sees the old file or the new one, whole.

        Raises:
            OSError: if the file cannot be written; the old one is as it was.
        """
        content = io.BytesIO()  # written by us, since torch does not say what the system said of a full disk
        torch.save({item.name: getattr(self, item.name) for item in dataclasses.fields(self)}, content)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())  # some file systems tell of a full disk only now
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a file that `save` wrote; only tensors and plain data are accepted, nothing in it is run.

        Raises:
            ConfigError: if there is no such file, or it is not a checkpoint of ours.
        """
        if not path.is_file():
            raise ConfigError("checkpoint", str(path), "the checkpoint.pt of a run folder")
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            checkpoint = cls(**content)
        except Exception as error:
            raise ConfigError("checkpoint", str(path), "a file that `clusterenv train` wrote") from error
        if not 1 <= checkpoint.format <= FORMAT:
            raise ConfigError("checkpoint", str(path), f"format {FORMAT}, not {checkpoint.format}")
        return checkpoint


def remove_unfinished(folder: Path) -> None:
    """What a killed process has not written to its end is gone."""
    for path in folder.glob(".*.pt.*"):
        path.unlink(missing_ok=True)
