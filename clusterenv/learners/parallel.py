"""What the learners of one run do together, in data-parallel training; one alone gets back what it gives.

N learners hold the same agent, and each has its share of the workers. They average gradients by rows,
normalise by the moments of all rows, and do what the first one decides, so that an optimiser step is the
one that a single learner would make with the N batches as one, to rounding.

Learners are processes that share a folder, in which locks tell the others which one has gone, or hangs
(`presence.py`). Tensors travel by gloo, on GPUs by NCCL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import FileStore  # torch.distributed has it, but not for type checkers

from clusterenv.errors import ClusterEnvError
from clusterenv.learners.presence import TELL_AFTER_S, Presence
from clusterenv.private_files import remove_folder

RENDEZVOUS_S = 60.0
"""Seconds within which all learners have to come."""
OTHERS_S = 10.0
"""Seconds in which learners that have nothing left to do end."""
LOOK_EVERY_S = 0.05
SELDOM_S = 1.0
"""Between two looks at what may take long."""
SETTLE_S = 2 * TELL_AFTER_S
"""A lost connection is known at once, what there is to tell of the process behind it within this time."""


class LearnerLost(ClusterEnvError):
    """Another learner of the run has ended, has not come, or does not answer; names which one."""


@dataclass(frozen=True)
class Seat:
    """The place of this process among the learners of a run."""

    rank: int
    size: int
    folder: Path
    """That all of them share, and nobody else may enter."""

    @contextmanager
    def joined(self, *, timeout_s: float = 300.0, backend: str = "gloo") -> Iterator[None]:
        """All learners have come, and the functions of this module are for all of them together.

        Args:
            timeout_s: how long the others wait for one that lives, in each thing that they do together.
            backend: of `torch.distributed`.

        Raises:
            LearnerLost: if one has not come in time.
        """
        global _seat, _presence
        with Presence(self.folder, self.rank, self.size) as presence:
            self._wait_for_all(presence)
            store = FileStore(str(self.folder / "store"), self.size)
            _seat, _presence = self, presence
            try:
                with _answered():
                    distributed.init_process_group(
                        backend,
                        store=store,
                        rank=self.rank,
                        world_size=self.size,
                        timeout=timedelta(seconds=timeout_s),
                    )
                yield
            finally:
                _seat = _presence = None
                if distributed.is_initialized():
                    distributed.destroy_process_group()

    def clear_away(self) -> None:
        """Nothing is left of the folder, once the other learners have ended or some seconds have passed."""
        others = Presence(self.folder, self.rank, self.size)
        deadline = time.monotonic() + OTHERS_S
        while len(others.others_not("lives")) < self.size - 1 and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        remove_folder(self.folder)

    def _wait_for_all(self, presence: Presence) -> None:
        deadline = time.monotonic() + RENDEZVOUS_S
        while missing := presence.others_not("lives"):
            if time.monotonic() > deadline:
                raise LearnerLost(
                    f"{_named(missing)} of {self.size} did not come to {self.folder} within "
                    f"{RENDEZVOUS_S:.0f} s; all learners start at once, and share that folder"
                )
            time.sleep(LOOK_EVERY_S)


_seat: Seat | None = None
_presence: Presence | None = None


def rank() -> int:
    """The number of this learner, from 0."""
    return 0 if _seat is None else _seat.rank


def size() -> int:
    """How many learners there are."""
    return 1 if _seat is None else _seat.size


def average_gradients(agent: nn.Module, rows: int) -> None:
    """The gradients are the mean over the rows of all learners, of which this one had `rows`."""
    if _seat is None:
        return
    gradients = [p.grad for p in agent.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients] + [gradients[0].new_ones(1)])
    if rows:
        flat *= rows
    else:
        flat.zero_()  # the mean over no rows is not a number
    with _answered():
        distributed.all_reduce(flat)
    flat /= flat[-1].clone()
    begin = 0
    for gradient in gradients:
        gradient.copy_(flat[begin : begin + gradient.numel()].view_as(gradient))
        begin += gradient.numel()


def normalized(values: Tensor) -> Tensor:
    """The values [rows] with mean 0 and deviation 1 over the rows of all learners."""
    if _seat is None:
        return (values - values.mean()) / (values.std(correction=0) + 1e-8)
    rows = len(values)
    mean, var = (values.mean(), values.var(correction=0)) if rows else (values.sum(), values.sum())
    mean, var, _ = pooled(mean, var, rows)
    scaled: Tensor = (values - mean.to(values)) / (var.sqrt().to(values) + 1e-8)
    return scaled


def pooled(mean: Any, var: Any, count: float) -> tuple[Any, Any, float]:  # noqa: ANN401 - tensors or numbers
    """Mean, variance and count of the samples of all learners, where this one's are given.

    Tensors come back in float64; `mean` and `var` do not matter where `count` is 0.
    """
    if _seat is None:
        return mean, var, count
    means, variances = (torch.as_tensor(part, dtype=torch.float64) for part in (mean, var))
    own = torch.cat([means.new_tensor([count]), means.flatten().cpu(), variances.flatten().cpu()])
    each = [torch.empty_like(own) for _ in range(_seat.size)]
    with _answered():
        distributed.all_gather(each, own)
    parts = [one for one in each if one[0]]
    if not parts:
        return mean, var, 0
    counts = torch.stack([one[0] for one in parts])
    weights = (counts / counts.sum())[:, None]
    of_each, spread = torch.stack([one[1:] for one in parts]).chunk(2, dim=1)
    together = (weights * of_each).sum(0)
    variance = (weights * (spread + (of_each - together) ** 2)).sum(0)
    result = [part.view_as(means).to(means.device) for part in (together, variance)]
    if isinstance(mean, float):
        return float(result[0]), float(result[1]), float(counts.sum())
    return result[0], result[1], float(counts.sum())


def most(number: int) -> int:
    """The greatest of what the learners give."""
    return number if _seat is None else max(gathered(number))


def mean(value: float, rows: int) -> float:
    """The mean of what the learners give, weighted by their rows."""
    if _seat is None:
        return value
    each: list[tuple[float, int]] = [(one, count) for one, count in gathered([value, rows]) if count]
    return sum(one * count for one, count in each) / max(sum(count for _, count in each), 1)


def of_first(value: float) -> float:
    """What the first learner gives."""
    if _seat is None:
        return value
    held = torch.tensor([value], dtype=torch.float64)
    with _answered():
        distributed.broadcast(held, src=0)
    return float(held)


def gathered(data: Any) -> list[Any]:  # noqa: ANN401 - plain data
    """What each learner gives, by rank; plain data, as JSON holds it."""
    if _seat is None:
        return [data]
    own = torch.frombuffer(bytearray(json.dumps(data).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(_seat.size)]
    with _answered():
        distributed.all_gather(lengths, torch.tensor([len(own)]))
        longest = max(int(length) for length in lengths)
        each = [torch.empty(longest, dtype=torch.uint8) for _ in range(_seat.size)]
        distributed.all_gather(each, nn.functional.pad(own, (0, longest - len(own))))
    return [
        json.loads(one[: int(length)].numpy().tobytes()) for one, length in zip(each, lengths, strict=True)
    ]


def share(tensors: dict[str, Tensor]) -> None:
    """All learners have the tensors of the first one, in place."""
    if _seat is None:
        return
    with _answered():
        for tensor in tensors.values():
            distributed.broadcast(tensor, src=0)


def all_ready(timeout_s: float) -> None:
    """All learners have their workers; a worker may be long in coming, as in the queue of a cluster.

    Raises:
        LearnerLost: if one has ended meanwhile, or is not ready `timeout_s` after this one.
    """
    if _seat is None or _presence is None:
        return
    _presence.is_ready()
    began = time.monotonic()
    while missing := _presence.others_not("ready"):
        gone = _presence.to_blame("lives")
        if gone:
            raise LearnerLost(_has_ended(gone))
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise LearnerLost(
                f"{_named(missing)} of {_seat.size} had no workers {waited:.0f} s after this one; see its "
                "output"
            )
        time.sleep(LOOK_EVERY_S if waited < SELDOM_S else SELDOM_S)


@contextmanager
def _answered() -> Iterator[None]:
    """Around what the learners do together: if one has gone, or hangs, that is said of it."""
    assert _seat is not None
    assert _presence is not None
    began = time.monotonic()
    try:
        with _presence.waits():
            yield
    except RuntimeError as error:
        waited = time.monotonic() - began
        deadline = time.monotonic() + SETTLE_S
        while not (gone := _presence.to_blame("lives")) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        silent = _presence.to_blame("waits")
        _presence.has_lost_another()
        if gone:
            raise LearnerLost(_has_ended(gone)) from error
        who = f"{_named(silent)} of {_seat.size}" if silent else f"a learner of {_seat.size}"
        told = str(error).strip().splitlines()[0][:200]
        raise LearnerLost(
            f"{who} did not come within {waited:.0f} s to what all do together, though its process lives: it "
            f"hangs, or waits for its workers; --learner-timeout lets the others wait longer ({told})"
        ) from error


def _has_ended(gone: list[int]) -> str:
    assert _seat is not None
    return f"{_named(gone)} of {_seat.size} has ended; see its output"


def _named(ranks: list[int]) -> str:
    return f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
