"""What one head could bear, from what it bore: straight lines through the measured points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusterenv.benchmark.scale_head import ScalePoint

FULL = 0.8
"""Share of a core, or of a network, up to which a head is trusted with it."""


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed + each * x`."""

    fixed: float
    each: float

    @classmethod
    def through(cls, xs: Sequence[float], ys: Sequence[float]) -> Line:
        """The line with the least squared relative errors, neither of whose numbers is negative."""
        x, y = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
        weights = 1 / np.maximum(y, 1e-9)
        if len(x) > 1:
            terms: NDArray[np.float64] = np.stack([weights, weights * x], axis=1)
            fixed, each = np.linalg.lstsq(terms, weights * y, rcond=None)[0]
            if fixed >= 0 and each >= 0:
                return cls(float(fixed), float(each))
        each = float((weights**2 * x * y).sum() / (weights**2 * x * x).sum())
        return cls(0.0, each)

    def at(self, x: float) -> float:
        """Its height."""
        return self.fixed + self.each * x


@dataclass(frozen=True, slots=True)
class ScaleModel:
    """One head by its number of workers, for fragments of the measured size."""

    python: Line
    """Share of a core of the threads that run Python, with a fragment from each worker in `fragment_s`."""
    idle: Line
    """The same without fragments."""
    network: Line
    """Share of a core of the threads that encrypt."""
    memory: Line
    """Bytes."""
    register_s: Line
    step_s: Line
    pull_s: Line
    fragment_s: float
    fragment_bytes: float
    weight_bytes_each: float

    @classmethod
    def fit(cls, points: Sequence[ScalePoint], fragment_s: float) -> ScaleModel:
        """Of what was measured; loads count by the fragments that came, not by those that should have."""
        workers = [float(point.workers) for point in points]
        served = [point.fragments_per_s * fragment_s for point in points]
        last = points[-1]
        return cls(
            python=Line.through(served, [point.stream.python for point in points]),
            idle=Line.through(workers, [point.idle.python for point in points]),
            network=Line.through(served, [point.stream.network for point in points]),
            memory=Line.through(workers, [point.stream_bytes_per_worker * point.workers for point in points]),
            register_s=Line.through(workers, [point.register_s for point in points]),
            step_s=Line.through(workers, [point.step_ms / 1e3 for point in points]),
            pull_s=Line.through(workers, [point.pull_s for point in points]),
            fragment_s=fragment_s,
            fragment_bytes=last.fragment_bytes,
            weight_bytes_each=last.weight_bytes / last.workers,
        )

    @property
    def us_per_fragment(self) -> float:
        """Processor time of one fragment, of all threads, the worker's heartbeats included."""
        return 1e6 * (self.python.each + self.network.each) * self.fragment_s

    def most_by_core(self) -> float:
        """Workers at which the threads that run Python fill FULL of one core."""
        return (FULL - self.python.fixed) / self.python.each if self.python.each > 0 else float("inf")

    def most_by_network(self, gbit_per_s: float) -> float:
        """Workers whose fragments fill FULL of a network."""
        return FULL * gbit_per_s * 1e9 / 8 * self.fragment_s / self.fragment_bytes

    def text(self, nodes: int, gbit_per_s: float) -> str:
        """What `nodes` would need of one head, and where that ends."""
        mb_s = nodes * self.fragment_bytes / self.fragment_s / 1e6
        weights_s = nodes * self.weight_bytes_each * 8 / (gbit_per_s * 1e9)
        heads = max(nodes / self.most_by_core(), nodes / self.most_by_network(gbit_per_s))
        size = f"{self.fragment_bytes / 1e3:.1f} kB"
        by_network = f"{self.most_by_network(gbit_per_s):,.0f} by a network of {gbit_per_s:g} Gbit/s"
        lines = [
            f"{nodes:,} workers, each with a fragment of {size} in {self.fragment_s:g} s:",
            f"  Python threads       {self.python.at(nodes):8.2f} cores (one can be used), "
            f"{self.idle.at(nodes):.2f} of them without fragments",
            f"  encryption           {self.network.at(nodes):8.2f} cores",
            f"  network              {mb_s:8.0f} MB/s of {gbit_per_s * 125:,.0f}",
            f"  memory               {self.memory.at(nodes) / 1e9:8.2f} GB",
            f"  to register          {self.register_s.at(nodes):8.1f} s",
            f"  step(actions)        {self.step_s.at(nodes):8.2f} s, environments apart",
            f"  pull by all          {max(self.pull_s.at(nodes), weights_s):8.1f} s",
            f"one head: {self.us_per_fragment:.0f} us for each fragment; "
            f"up to {self.most_by_core():,.0f} workers by its core, {by_network} ({FULL:.0%} of each)",
        ]
        if heads > 1:
            lines.append(f"beyond that: longer fragments, or {np.ceil(heads):.0f} relays (docs/scaling.md)")
        return "\n".join(lines) + "\n"
