"""The benchmarks by name, and the command line that runs one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import tyro

from clusterenv.benchmark.aaps import AapsSweep
from clusterenv.benchmark.aaps_report import AapsReport
from clusterenv.benchmark.aaps_weights import WeightsBenchmark
from clusterenv.benchmark.cluster import ClusterBenchmark
from clusterenv.benchmark.discovery import DiscoveryBenchmark
from clusterenv.benchmark.profile import ProfileBenchmark
from clusterenv.benchmark.recorded import RecordedBenchmark
from clusterenv.benchmark.rollout import RolloutBenchmark
from clusterenv.benchmark.scale import ScaleBenchmark
from clusterenv.benchmark.throughput import ThroughputBenchmark
from clusterenv.errors import ClusterEnvError
from clusterenv.learners.interrupts import Interrupts
from clusterenv_registry import RegistryError

REFUSED = 2
INTERRUPTED = 130


class Benchmark(Protocol):
    """The options of one benchmark, and what it does with them."""

    def run(self) -> None:
        """Measure, print the result, and write it to a file if asked."""


BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
    "aaps": AapsSweep,
    "aaps-report": AapsReport,
    "aaps-weights": WeightsBenchmark,
    "cluster": ClusterBenchmark,
    "discovery": DiscoveryBenchmark,
    "profile": ProfileBenchmark,
    "recorded": RecordedBenchmark,
    "rollout": RolloutBenchmark,
    "scale": ScaleBenchmark,
    "throughput": ThroughputBenchmark,
}


def run_command(argv: Sequence[str] | None) -> int:
    """The exit status of the benchmark in `argv`: 2 after an expected error, above 128 after a signal."""
    try:
        # Without this SIGTERM would end us at once, and leave running what we have started.
        with Interrupts() as interrupts:
            benchmark: Benchmark = tyro.extras.subcommand_cli_from_dict(
                BENCHMARKS, prog="python -m clusterenv.benchmark", args=argv
            )
            benchmark.run()
    except KeyboardInterrupt:  # a training run of it was interrupted, and not we
        return INTERRUPTED
    except (ClusterEnvError, RegistryError) as error:
        sys.stderr.write(f"clusterenv.benchmark: {error}\n")
        return REFUSED
    return interrupts.status
