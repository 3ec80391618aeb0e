"""Networks that read images: the Nature CNN and IMPALA's ResNet. They take uint8 and scale it themselves.

Nature: Mnih and others, "Human-level control through deep reinforcement learning", 2015. IMPALA: the large
network of Espeholt and others, "IMPALA: Scalable distributed deep-RL", 2018, figure 3, without the LSTM.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from clusterenv.errors import ConfigError, SpaceError

NetworkName = Literal["auto", "mlp", "nature", "impala"]
Precision = Literal["auto", "float32", "bfloat16"]
HIDDEN: Final = {"mlp": (64, 64), "nature": (512,), "impala": (256,)}
"""Widths of the hidden layers of each network: after the convolutions, as in the papers."""
SMALLEST: Final = {"nature": 36, "impala": 8}
"""Height and width from which each network has something left to see."""
MOST_CHANNELS: Final = 16
ROWS_AT_ONCE: Final = 256
"""Images that are computed together where no gradient is wanted, which bounds the memory."""
IMPALA_CHANNELS: Final = (16, 32, 32)
CPU_INFO: Final = Path("/proc/cpuinfo")


def network_for(name: NetworkName, space: gym.Space[Any]) -> Literal["mlp", "nature", "impala"]:
    """The network that `name` means for observations of `space`; "auto": by the kind of the observations.

    Images are uint8 boxes of two or three dimensions, of at least 36 by 36. Those of three colours get the
    ResNet, as Procgen's do in the literature, others the Nature CNN, as Atari's; the rest gets an MLP.

    Raises:
        SpaceError: if the network cannot read the observations.
    """
    if name == "mlp":
        return "mlp"
    shape = image_shape(space)
    if name == "auto":
        if shape is None or min(shape[1:]) < SMALLEST["nature"]:
            return "mlp"
        return "impala" if shape[0] == 3 else "nature"
    if shape is None or min(shape[1:]) < SMALLEST[name]:
        least = SMALLEST[name]
        raise SpaceError(
            f"the network {name} reads images, uint8 boxes [height, width], [height, width, channels] or "
            f"[channels, height, width] from {least} by {least}, not {space}; use --network mlp"
        )
    return name


def image_shape(space: gym.Space[Any]) -> tuple[int, int, int] | None:
    """Channels, height and width of the images of `space`; None if it has none."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    if len(space.shape) == 2:
        return (1, *space.shape)
    first, middle, last = space.shape
    if last <= MOST_CHANNELS:
        return (last, first, middle)
    return (first, middle, last) if first <= MOST_CHANNELS else None


@cache
def computes_bfloat16(path: Path) -> bool:
    """Whether the processor that /proc/cpuinfo at `path` describes has instructions for bfloat16.

    Without, torch computes with float32 and converts, which is slower than float32 alone.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return False
    return bool(re.search(r"^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b", text, re.MULTILINE))


class ImageTorso(nn.Module):
    """Images [..., *shape of the space] uint8 become features [..., width]; leading axes are kept."""

    def __init__(
        self,
        space: gym.Space[Any],
        network: Literal["nature", "impala"],
        hidden: Sequence[int],
        precision: Precision = "auto",
    ) -> None:
        """Draw the weights from torch's global generator; `hidden` are the layers after the convolutions.

        Raises:
            ConfigError: if `hidden` has no layer.
        """
        super().__init__()
        shape = image_shape(space)
        assert shape is not None, "network_for has looked at the space"
        if not hidden:
            raise ConfigError("hidden", tuple(hidden), f"at least one layer for the network {network}")
        self._space_shape = space.shape or ()
        self._channels_last = len(self._space_shape) == 3 and shape[1:] == self._space_shape[:2]
        self.width = hidden[-1]
        self._bfloat16 = precision == "bfloat16" or (precision == "auto" and computes_bfloat16(CPU_INFO))
        convolutions = _nature(shape[0]) if network == "nature" else _impala(shape[0])
        with torch.no_grad():
            size = convolutions(torch.zeros(1, *shape)).numel()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [orthogonal(nn.Linear(size, width)), nn.ReLU()]
            size = width
        self.layers = nn.Sequential(convolutions, nn.Flatten(), *layers)

    def forward(self, images: Tensor) -> Tensor:
        """The features; where no gradient is wanted, some rows at a time."""
        lead = images.shape[: images.ndim - len(self._space_shape)]
        rows = images.reshape(-1, *self._space_shape)
        if torch.is_grad_enabled() or len(rows) <= ROWS_AT_ONCE:
            features = self._features(rows)
        else:
            features = torch.cat([self._features(some) for some in torch.split(rows, ROWS_AT_ONCE)])
        return features.view(*lead, self.width)

    def _features(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return torch.zeros(0, self.width, device=rows.device)
        with torch.autocast(rows.device.type, torch.bfloat16) if self._bfloat16 else nullcontext():
            features: Tensor = self.layers(self._scaled(rows))
        return features.float()

    def _scaled(self, rows: Tensor) -> Tensor:
        """[n, channels, height, width] from 0 to 1, with the channels last in memory."""
        if rows.ndim == 3:
            rows = rows[:, None]
        elif self._channels_last:
            rows = rows.permute(0, 3, 1, 2)
        scaled: Tensor = rows.to(torch.float32, memory_format=torch.channels_last).div_(255)
        return scaled


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, gain: float) -> None:
        """Begin with `gain` times the orthogonal weights of the second convolution."""
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), gain)

    def forward(self, x: Tensor) -> Tensor:
        """The sum, of the shape of `x`."""
        inner = self.second(functional.relu(self.first(functional.relu(x)), inplace=True))
        total: Tensor = x + inner
        return total


def _nature(channels: int) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Conv2d(channels, 32, 8, stride=4)),
        nn.ReLU(inplace=True),
        orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
        nn.ReLU(inplace=True),
        orthogonal(nn.Conv2d(64, 64, 3)),
        nn.ReLU(inplace=True),
    )


def _impala(channels: int) -> nn.Sequential:
    blocks = 2 * len(IMPALA_CHANNELS)
    gain = math.sqrt(2 / blocks)  # so that the sum of all blocks stays of the size of its first term
    layers: list[nn.Module] = []
    for width in IMPALA_CHANNELS:
        layers += [
            orthogonal(nn.Conv2d(channels, width, 3, padding=1), 1.0),
            nn.MaxPool2d(3, stride=2, padding=1),
            Residual(width, gain),
            Residual(width, gain),
        ]
        channels = width
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> nn.Linear | nn.Conv2d:
    """The layer, with orthogonal weights and biases of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
