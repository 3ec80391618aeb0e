"""What training runs have in common: how they begin, minibatches, and what their checkpoints hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from clusterenv import ClusterEnv, LocalConfig, SlurmConfig
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.options import Options
from clusterenv.learners.runs import default_folder, plain, ready_folder

SamplesT = TypeVar("SamplesT", bound=Any)  # a dataclass of tensors


@contextmanager
def launched(
    algorithm: str, config: Options, launcher: LocalConfig | SlurmConfig | None
) -> Iterator[tuple[ClusterEnv, Path]]:
    """Environments whose workers are up, and the folder for the run; torch is seeded.

    Args:
        algorithm: names the folder, if `config` does not.
        config: the options of the run.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    launcher = launcher or LocalConfig(nodes=config.workers, serial=config.serial)
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    folder = config.run_dir or default_folder(algorithm, config.env_id, config.seed)
    with ClusterEnv(config.env_options, launcher) as env:
        with ready_folder(folder):
            env.launch()
        yield env, folder


def shuffled(samples: SamplesT, num_minibatches: int, generator: torch.Generator) -> list[SamplesT]:
    """All rows of a dataclass of tensors [rows, ...] in a new order, in minibatches of nearly one size."""
    columns = [getattr(samples, item.name) for item in dataclasses.fields(samples)]
    order = torch.randperm(len(columns[0]), generator=generator)
    return [
        type(samples)(*(column[rows] for column in columns))
        for rows in order.tensor_split(min(num_minibatches, len(order)))
    ]


def checkpoint(
    algorithm: str,
    config: Options,
    steps: int,
    agent: nn.Module,
    optimizer: torch.optim.Optimizer,
    learner: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """The agent as it is now, what it takes to build it again, and what learning goes on with."""
    return Checkpoint(
        algorithm=algorithm,
        env_id=config.env_id,
        steps=steps,
        agent=agent.state_dict(),
        agent_options=config.agent_options,
        optimizer=optimizer.state_dict(),
        config=plain(config),
        learner=dict(learner or {}),
    )
