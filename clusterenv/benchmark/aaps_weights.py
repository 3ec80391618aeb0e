"""Whether weights should travel as compressed differences: bytes and times on a CNN agent, measured."""

from __future__ import annotations

import json
import lzma
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn import functional

from clusterenv.errors import ConfigError
from clusterenv.machine import machine_facts
from clusterenv.policy import encode_state

ACTIONS = 6
PLAIN = "plain"
Words = NDArray[np.uint32]
Combine = Callable[[Words, Words], Words]
Recode = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True)
class WeightsBenchmark:
    """Bytes and microseconds of a CNN's weights: plain, and as lossless differences against older weights."""

    updates: tuple[int, ...] = (1, 8)
    """PPO updates between the weights that the worker has and the newest."""
    learning_rates: tuple[float, ...] = (2.5e-4, 2.5e-5)
    """Adam's step sizes: that of PPO on Atari at its start, and late in its annealing."""
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 4
    """Steps of Adam in each pass."""
    batch: int = 64
    """Frames in a batch; made up, since the sizes of Adam's steps hardly depend on what is in them."""
    repeats: int = 3
    """Times that each way is measured; medians are shown."""
    json: Path | None = None
    """File to write the result to as well."""

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("epochs", "minibatches", "batch", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number from 1")
        if any(count < 1 for count in self.updates) or not self.updates:
            raise ConfigError("updates", self.updates, "whole numbers from 1")

    def run(self) -> None:
        """Measure and print a table, Markdown."""
        measured = [row for rate in self.learning_rates for row in self._measured(rate)]
        lines = ["| learning rate | updates | way | bytes | of plain | pack | unpack | pays below |"]
        lines += ["|---|---|---|---|---|---|---|---|", *(row.text() for row in measured)]
        sys.stdout.write("\n".join(lines) + "\n")
        if self.json is not None:
            found = {"machine": machine_facts(), "rows": [vars(row) for row in measured]}
            self.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    def _measured(self, learning_rate: float) -> list[Measured]:
        torch.manual_seed(1)
        agent = NatureCNN()
        trainer = Trainer(agent, learning_rate, self)
        trainer.update()  # Adam's moments are no longer zero
        rows = []
        for count in self.updates:
            older = _words(agent)
            for _ in range(count):
                trainer.update()
            newest = _words(agent)
            plain = len(encode_state({name: t.numpy() for name, t in agent.state_dict().items()}))
            for way in ways():
                rows.append(measure(way, older, newest, plain, self.repeats, (learning_rate, count)))
        return rows


class NatureCNN(nn.Module):
    """Policy and value over four frames of 84 x 84: 1.7 million parameters."""

    def __init__(self) -> None:
        """Draw orthogonal weights from torch's global generator."""
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
        )
        self.actor = nn.Linear(512, ACTIONS)
        self.critic = nn.Linear(512, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, 0.01 if module is self.actor else 2**0.5)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def distribution(self, obs: Tensor) -> Distribution:
        """The policy at frames [n, 4, 84, 84] uint8."""
        return Categorical(logits=self.actor(self.trunk(obs.float() / 255)))

    def value(self, obs: Tensor) -> Tensor:
        """The values [n] of frames."""
        values: Tensor = self.critic(self.trunk(obs.float() / 255)).squeeze(-1)
        return values


class Trainer:
    """PPO's updates of an agent, on made-up frames, advantages and returns."""

    def __init__(self, agent: NatureCNN, learning_rate: float, options: WeightsBenchmark) -> None:
        """Use Adam as PPO does."""
        self._agent = agent
        self._options = options
        self._adam = torch.optim.Adam(agent.parameters(), lr=learning_rate, eps=1e-5)

    def update(self) -> None:
        """One update: some epochs over a new batch."""
        size = self._options.batch
        frames = torch.randint(0, 256, (size, 4, 84, 84), dtype=torch.uint8)
        with torch.no_grad():
            policy = self._agent.distribution(frames)
            actions = policy.sample()
            before = policy.log_prob(actions)
        advantages, returns = torch.randn(size), torch.randn(size)
        for _ in range(self._options.epochs):
            for rows in torch.randperm(size).tensor_split(self._options.minibatches):
                ratios = (self._agent.distribution(frames[rows]).log_prob(actions[rows]) - before[rows]).exp()
                gains = torch.min(ratios * advantages[rows], ratios.clamp(0.8, 1.2) * advantages[rows])
                loss = (
                    0.5 * functional.mse_loss(self._agent.value(frames[rows]), returns[rows]) - gains.mean()
                )
                self._adam.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(self._agent.parameters(), 0.5)
                self._adam.step()


@dataclass(frozen=True)
class Way:
    """How weights are packed, given those that the worker has; and back."""

    name: str
    pack: Callable[[Words, Words], bytes]
    unpack: Callable[[Words, bytes], Words]


@dataclass(frozen=True)
class Measured:
    """What one way came to."""

    learning_rate: float
    updates: int
    way: str
    packed_bytes: int
    plain_bytes: int
    pack_us: float
    unpack_us: float
    pays_below_mbit_s: float = field(default=0.0)

    def text(self) -> str:
        """A row of the table; `pays below`: the rate of a link at which the time saved is the time spent."""
        pays = "-" if self.way == PLAIN else f"{self.pays_below_mbit_s:,.0f} Mbit/s"
        return (
            f"| {self.learning_rate:g} | {self.updates} | {self.way} | {self.packed_bytes:,} "
            f"| {self.packed_bytes / self.plain_bytes:.1%} | {self.pack_us / 1000:.1f} ms "
            f"| {self.unpack_us / 1000:.1f} ms | {pays} |"
        )


def measure(
    way: Way, older: Words, newest: Words, plain: int, repeats: int, after: tuple[float, int]
) -> Measured:
    """Pack and unpack some times.

    Raises:
        RuntimeError: if the weights that come out are not those that went in, bit for bit.
    """
    packing, unpacking, packed = [], [], b""
    for _ in range(repeats):
        started = time.process_time()
        packed = way.pack(older, newest)
        between = time.process_time()
        again = way.unpack(older, packed)
        packing.append(between - started)
        unpacking.append(time.process_time() - between)
        if not np.array_equal(again, newest):
            raise RuntimeError(f"{way.name} does not give the weights back")
    spent = median(packing) + median(unpacking)
    saved_bits = 8 * (plain - len(packed))
    return Measured(
        *(after[0], after[1], way.name, len(packed), plain),
        pack_us=1e6 * median(packing),
        unpack_us=1e6 * median(unpacking),
        pays_below_mbit_s=max(0.0, saved_bits / spent / 1e6),
    )


def ways() -> list[Way]:
    """Each difference with each compression that is installed."""
    compressions: dict[str, tuple[Recode, Recode]] = {
        "zlib 1": (lambda data: zlib.compress(data, 1), zlib.decompress),
        "zlib 6": (lambda data: zlib.compress(data, 6), zlib.decompress),
        "lzma 0": (lambda data: lzma.compress(data, preset=0), lzma.decompress),
        **_installed(),
    }
    found = [Way(PLAIN, lambda _, newest: newest.tobytes(), lambda _, data: np.frombuffer(data, np.uint32))]
    for name, (compress, decompress) in compressions.items():
        for how, (forth, back) in _DIFFERENCES.items():
            found.append(_way(f"{how}, {name}", forth, back, compress, decompress))
    return found


def _way(name: str, forth: Combine, back: Combine, compress: Recode, decompress: Recode) -> Way:
    return Way(
        name,
        lambda older, newest: compress(_shuffled(forth(older, newest))),
        lambda older, data: back(older, _unshuffled(decompress(data))),
    )


def _zigzag(older: Words, newest: Words) -> Words:
    """The difference of the bit patterns as whole numbers, small ones of either sign near 0."""
    steps = (newest - older).view(np.int32)
    return ((steps << 1) ^ (steps >> 31)).view(np.uint32)


def _unzigzag(older: Words, coded: Words) -> Words:
    return older + ((coded >> 1) ^ -(coded & 1).view(np.int32).view(np.uint32))


_DIFFERENCES: dict[str, tuple[Combine, Combine]] = {
    "no difference": (lambda _, newest: newest, lambda _, words: words),
    "xor": (lambda older, newest: older ^ newest, lambda older, words: older ^ words),
    "difference": (_zigzag, _unzigzag),
}


def _shuffled(words: Words) -> bytes:
    """All first bytes, then all second ones and so on."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 4).T).tobytes()


def _unshuffled(data: bytes) -> Words:
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(4, -1).T).view(np.uint32).reshape(-1)


def _installed() -> dict[str, tuple[Recode, Recode]]:
    found: dict[str, tuple[Recode, Recode]] = {}
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        pass
    else:
        for level in (1, 3):
            packer, unpacker = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
            found[f"zstd {level}"] = (packer.compress, unpacker.decompress)
    try:
        lz4 = import_module("lz4.frame")
    except ImportError:
        pass
    else:
        found["lz4"] = (lz4.compress, lz4.decompress)
    return found


def _words(agent: nn.Module) -> Words:
    """The bits of all weights."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in agent.state_dict().values()])
    return flat.numpy().copy().view(np.uint32)
