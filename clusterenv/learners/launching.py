"""Where a training run's workers are to run, as a command line says it: `--launcher` and `--slurm.*`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError

LauncherName = Literal["local", "slurm"]
LAUNCHER_HELP = (
    "Where the workers run: processes of this machine, or one on each of as many nodes of a Slurm cluster."
)


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(SlurmConfig):
    """With --launcher slurm; --workers says how many nodes."""

    nodes: tyro.conf.Suppress[int] = 1
    directives: dict[str, str] = field(default_factory=dict)
    """Any other options of sbatch, as pairs such as "mail-type END"; True: no value; None: leave out ours."""
    setup: tuple[str, ...] = ()
    """Shell lines that run on the first node of a job before the workers, such as "module load cuda"."""
    srun_args: tuple[str, ...] = ()
    """Further arguments of srun; one that begins with a dash is given so: --slurm.srun-args=--mpi=none."""

    def __post_init__(self) -> None:
        """Check nothing: what is given may need the number of nodes to be right."""

    @property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        return [
            item.name for item in fields(self) if getattr(self, item.name) != getattr(_DEFAULT, item.name)
        ]

    def config(self, nodes: int) -> SlurmConfig:
        """The options as the launcher takes them.

        Raises:
            ConfigError: if one has a value that cannot work.
        """
        words: dict[str, bool | None] = {"True": True, "False": False, "None": None}
        options = {item.name: getattr(self, item.name) for item in fields(self)}
        directives = {name: words.get(value, value) for name, value in self.directives.items()}
        return SlurmConfig(**{**options, "nodes": nodes, "directives": directives})


_DEFAULT = SlurmOptions()


def described(launcher: LocalConfig | SlurmConfig) -> dict[str, Any]:
    """The launcher as a configuration file says it, beside `workers` and `serial`."""
    if isinstance(launcher, LocalConfig):
        return {"launcher": "local"}
    default = SlurmConfig()
    given = {
        item.name: getattr(launcher, item.name)
        for item in fields(launcher)
        if item.name != "nodes" and getattr(launcher, item.name) != getattr(default, item.name)
    }
    return {"launcher": "slurm", "slurm": {name: _plain(value) for name, value in given.items()}}


def _plain(value: Any) -> Any:  # noqa: ANN401 - an option of any type
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def launcher_config(
    launcher: LauncherName, slurm: SlurmOptions, workers: int, serial: bool
) -> LocalConfig | SlurmConfig:
    """The launcher that the options of a command line ask for.

    Raises:
        ConfigError: if two of them contradict each other, or one has a value that cannot work.
    """
    if launcher == "local":
        if slurm.given:
            name = slurm.given[0]
            raise ConfigError(f"slurm.{name}", getattr(slurm, name), "nothing without --launcher slurm")
        return LocalConfig(nodes=workers, serial=serial)
    if serial:
        raise ConfigError("serial", serial, "False with --launcher slurm, whose workers are on other nodes")
    return slurm.config(workers)
