"""How many workers one head can serve: simulated ones, with real sockets, keys and messages."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from clusterenv.benchmark.scale_head import ScalePoint, ScaleSetting, measure_head
from clusterenv.benchmark.scale_model import ScaleModel
from clusterenv.errors import ClusterEnvError, ConfigError, DeadlineError, EnvError
from clusterenv.machine import machine_facts

if TYPE_CHECKING:
    Pipe = Connection[Any, Any]

TITLES = (
    "workers",
    "registered s",
    "step ms",
    "pull s",
    "fragments/s",
    "of",
    "MB/s",
    "Python",
    "crypto",
    "us/fragment",
    "idle",
    "kB/worker",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleBenchmark:
    """Measure one head with more and more simulated workers, and say what many more would need."""

    workers: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    """Numbers of workers, each with a fresh head."""
    envs_per_worker: int = 4
    """Environments of a worker, as CartPole-v1."""
    num_steps: int = 128
    """Steps of a fragment."""
    fragment_s: float = 1.0
    """Seconds that a worker takes to make one."""
    lease_s: float = 10.0
    """Silence after which the head takes a worker for lost; raise it where simulating is slow."""
    seconds: float = 10.0
    """Length of each measurement: without work, of `step`, and of a stream."""
    processes: int = 2
    """Processes that simulate the workers."""
    nodes: int = 10_000
    """Number of workers for which the model is printed."""
    gbit_per_s: float = 10.0
    """The network of the head that the model assumes."""
    timeout_s: float = 300.0
    """How long the workers may take to register, and the head to answer one of them."""
    json: Path | None = None
    """File to write the result to as well."""
    plot: Path | None = None
    """File for a figure of it, such as result.png."""

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.workers or min(self.workers) < 1 or list(self.workers) != sorted(set(self.workers)):
            raise ConfigError("workers", self.workers, "numbers from 1, each greater than the one before")
        for name in ("envs_per_worker", "num_steps", "processes", "nodes"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number from 1")
        for name in ("fragment_s", "lease_s", "seconds", "gbit_per_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, getattr(self, name), "a number above 0")
        for path in ("json", "plot"):
            file: Path | None = getattr(self, path)
            if file is not None and not file.absolute().parent.is_dir():
                raise ConfigError(path, str(file), "a file in a folder that exists")

    def run(self) -> None:
        """Measure, print, and write what was asked for."""
        machine = machine_facts()
        sys.stdout.write(_line(TITLES))
        points = []
        for workers in self.workers:
            points.append(self._measure(workers))
            sys.stdout.write(_line(_row(points[-1])))
            sys.stdout.flush()
        model = ScaleModel.fit(points, self.fragment_s)
        facts = "".join(f"{name}: {fact}\n" for name, fact in machine.items())
        sys.stdout.write("\n" + model.text(self.nodes, self.gbit_per_s) + "\n" + facts)
        settings = dataclasses.asdict(self)
        del settings["json"], settings["plot"]
        if self.json is not None:
            told = [dataclasses.asdict(point) for point in points]
            result = {
                "settings": settings,
                "machine": machine,
                "model": dataclasses.asdict(model),
                "points": told,
            }
            self.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        if self.plot is not None:
            draw(self.plot, points, model)

    def _measure(self, workers: int) -> ScalePoint:
        """One number of workers, with a head in a process of its own.

        Raises:
            ClusterEnvError: what the head raises, such as a limit of the system.
        """
        setting = ScaleSetting(
            workers=workers,
            envs_per_worker=self.envs_per_worker,
            num_steps=self.num_steps,
            fragment_s=self.fragment_s,
            lease_s=self.lease_s,
            seconds=self.seconds,
            processes=min(self.processes, workers),
            timeout_s=self.timeout_s,
        )
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_head, args=(theirs, setting))
        process.start()
        theirs.close()
        try:
            limit_s = 3 * self.timeout_s + 10 * self.seconds
            if not ours.poll(limit_s):
                raise DeadlineError(f"a head with {workers} workers was not measured within {limit_s:g} s")
            try:
                found: ScalePoint | ClusterEnvError = ours.recv()
            except EOFError:
                raise EnvError(f"the process of a head with {workers} workers has died") from None
        finally:
            ours.close()
            process.join(timeout=10.0)
            process.kill()
            process.join()
        if isinstance(found, ClusterEnvError):
            raise found
        return found


def _head(pipe: Pipe, setting: ScaleSetting) -> None:
    """Measure in this fresh process, and tell the result or the error."""
    found: ScalePoint | ClusterEnvError
    try:
        found = measure_head(setting)
    except ClusterEnvError as error:
        found = error
    except Exception as error:  # noqa: BLE001 - told to the parent
        found = EnvError(f"{type(error).__name__}: {error}", remote_traceback=traceback.format_exc())
    with contextlib.suppress(BrokenPipeError):
        pipe.send(found)


def _row(point: ScalePoint) -> list[str]:
    return [
        f"{point.workers:,}",
        f"{point.register_s:.2f}",
        f"{point.step_ms:.1f}",
        f"{point.pull_s:.3f}",
        f"{point.fragments_per_s:,.0f}",
        f"{point.offered_per_s:,.0f}",
        f"{point.fragments_per_s * point.fragment_bytes / 1e6:.2f}",
        f"{point.stream.python:.1%}",
        f"{point.stream.network:.1%}",
        f"{1e6 * point.stream.total / point.fragments_per_s:.0f}",
        f"{point.idle.total:.1%}",
        f"{point.stream_bytes_per_worker / 1e3:.0f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>12}" for cell in cells) + "\n"


def draw(path: Path, points: Sequence[ScalePoint], model: ScaleModel) -> None:
    """The file at `path` is a figure of what was measured, and of the model's lines.

    Raises:
        ConfigError: if it cannot be written, or its ending is of no kind of figure.
    """
    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    workers = [point.workers for point in points]
    served = [point.fragments_per_s * model.fragment_s for point in points]
    shares = (
        ("Python threads", served, [point.stream.python for point in points], model.python),
        ("encryption", served, [point.stream.network for point in points], model.network),
        ("Python threads, no fragments", workers, [point.idle.python for point in points], model.idle),
    )
    for label, at, values, line in shares:
        drawn = panels[0, 0].plot(at, values, "o", label=label)
        panels[0, 0].plot(at, [line.at(x) for x in at], color=drawn[0].get_color(), linewidth=1)
    panels[0, 0].legend()
    panels[0, 0].set_ylabel("share of one core")
    others = (
        (panels[0, 1], "seconds to register", [point.register_s for point in points], model.register_s),
        (panels[1, 0], "step(actions), seconds", [point.step_ms / 1e3 for point in points], model.step_s),
        (panels[1, 1], "new weights for all, seconds", [point.pull_s for point in points], model.pull_s),
    )
    for axes, label, values, line in others:
        axes.plot(workers, values, "o")
        axes.plot(workers, [line.at(x) for x in workers], linewidth=1)
        axes.set_ylabel(label)
    for axes in panels.flat:
        axes.set_xlabel("workers")
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError("plot", str(path), f"a figure that can be written ({error})") from error
