"""The device that a learner computes on: the option's words, and what torch has of them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import distributed

from clusterenv.errors import ConfigError

DeviceName = Literal["cpu", "cuda", "auto"]


def learner_device(name: DeviceName, *, large: bool, rank: int = 0) -> torch.device:
    """The device that `name` means here.

    Args:
        name: "auto": a GPU where there is one and the network is worth it, else the CPU.
        large: whether the network is worth a GPU, as those for images are.
        rank: of the learner, among those that share this machine's GPUs.

    Raises:
        ConfigError: if it is "cuda" and torch has none.
    """
    if name == "cpu" or (name == "auto" and not (large and torch.cuda.is_available())):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
        raise ConfigError(
            "device",
            name,
            f"cpu or auto, since torch finds no GPU here: torch {torch.__version__} {built}; "
            "see what `nvidia-smi` and CUDA_VISIBLE_DEVICES say",
        )
    return torch.device("cuda", rank % torch.cuda.device_count())


def learners_backend(device: torch.device) -> str:
    """How the tensors of several learners that compute on `device` travel, as `torch.distributed` says it.

    Raises:
        ConfigError: if torch has nothing for it.
    """
    if device.type == "cpu":
        return "gloo"
    if not distributed.is_nccl_available():
        raise ConfigError("device", device.type, "cpu with several learners: this torch has no NCCL")
    return "cpu:gloo,cuda:nccl"
