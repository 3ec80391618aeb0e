"""Learners: single-file algorithms over the public interface, and the commands that train with them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from clusterenv.errors import ConfigError
from clusterenv.learners.interrupts import Interrupts

ALGORITHMS = ("ppo", "a2c", "a3c", "impala", "dqn", "sac")


def main(algorithm: str, argv: Sequence[str]) -> int:
    """Train with `algorithm` as the options in `argv` say; the exit status, above 128 after a signal.

    Raises:
        ClusterEnvError: whatever keeps the run from starting or going on, to be shown as a sentence.
    """
    if algorithm not in ALGORITHMS:
        near = difflib.get_close_matches(algorithm, ALGORITHMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(ALGORITHMS)}"
        sys.stderr.write(f"clusterenv: there is no algorithm {algorithm!r}; {hint}\n")
        return 2
    module = import_module(f"clusterenv.learners.{algorithm}")
    config, launcher = module.parse(argv)
    if config.learners > 1:
        from clusterenv.learners.parallel_launch import main as train_in_parallel

        return train_in_parallel(algorithm, argv, config, launcher)
    with Interrupts() as interrupts:
        module.train(config, launcher)
    return interrupts.status


def agent_class(algorithm: str) -> Any:  # noqa: ANN401 - each algorithm has a class of its own
    """The class of the agents in the checkpoints of `algorithm`, to be called with spaces and options.

    Raises:
        ConfigError: if there is no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError("algorithm", algorithm, f"one of {', '.join(ALGORITHMS)}")
    return import_module(f"clusterenv.learners.{algorithm}").Agent
