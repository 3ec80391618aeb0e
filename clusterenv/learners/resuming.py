"""Go on with a run to the numbers that it would have come to: what is kept, and where environments restart.

A run has milestones, one every `checkpoint_every` environment steps. At each, its whole state is written and
all environments are reset with seeds that follow from the run's seed and the step, so that what comes after
depends on nothing that was not written. So a run that goes on from a milestone is the run that never stopped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.checkpoints import Checkpoint

RESUME_FILE = "resume.pt"
"""In the folder of a run: its state at the last milestone."""


class Part(Protocol):
    """Something that a run changes, and that can be brought back."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state as tensors and plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> object:
        """Go on from what `state_dict` gave."""


Parts = Mapping[str, Part | torch.Generator]
"""All that a run changes, by name."""


class GlobalGenerators:
    """The random generators that a process has once: torch's, NumPy's older one and Python's."""

    def state_dict(self) -> dict[str, Any]:
        """Their states."""
        name, keys, *rest = np.random.get_state()
        return {
            "torch": torch.get_rng_state(),
            "numpy": [str(name), torch.from_numpy(np.asarray(keys, np.int64)), *rest],
            "python": random.getstate(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        name, keys, *rest = state["numpy"]
        torch.set_rng_state(state["torch"])
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])


def state_of(parts: Parts) -> dict[str, Any]:
    """What `restore` needs: of each part its state, as it is now."""
    return {
        name: part.get_state() if isinstance(part, torch.Generator) else part.state_dict()
        for name, part in parts.items()
    }


def restore(parts: Parts, state: Mapping[str, Any]) -> None:
    """Every part is as it was when `state_of` was asked.

    Raises:
        ConfigError: if the state is of other parts.
    """
    if parts.keys() != state.keys():
        raise ConfigError("resume", sorted(state), f"the state of {', '.join(sorted(parts))}")
    for name, part in parts.items():
        if isinstance(part, torch.Generator):
            part.set_state(state[name])
        else:
            part.load_state_dict(state[name])


def milestone(folder: Path, algorithm: str) -> Checkpoint:
    """The last milestone of the run in `folder`.

    Raises:
        ConfigError: if it has none, or another algorithm wrote it.
    """
    path = folder / RESUME_FILE
    if not path.is_file():
        raise ConfigError(
            "resume", str(folder), f"the folder of a run that has come to a milestone, {RESUME_FILE}"
        )
    checkpoint = Checkpoint.load(path)
    if checkpoint.algorithm != algorithm or not checkpoint.training:
        raise ConfigError("resume", str(folder), f"a run of {algorithm}, not of {checkpoint.algorithm}")
    return checkpoint


def reset_seed(seed: int, steps: int) -> int:
    """The seed of the reset at a milestone: `seed` itself at the start, then one that follows from both."""
    if steps == 0:
        return seed
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0]) >> 2  # environment i gets i more
