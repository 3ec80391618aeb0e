"""The arguments of `reset`, checked before any environment moves, with Gymnasium's errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from clusterenv.errors import ConfigError
from clusterenv.pickling import sendable


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetArgs:
    """What a reset of some environments is told."""

    seeds: list[int | None]
    """One for each environment."""
    options: bytes | None
    """A cloudpickled dict."""
    mask: NDArray[np.bool_] | None
    """[N] environments to reset; none: all."""
    noise_seed: int | None
    """Keys the policy's noise anew."""


def checked(
    seed: int | Sequence[int | None] | None, options: Mapping[str, Any] | None, num_envs: int
) -> ResetArgs:
    """The arguments of `reset`; neither they nor any environment have changed.

    Raises:
        TypeError, ValueError: as Gymnasium does; ConfigError for what it lets pass.
    """
    entries = seeds(seed, num_envs)
    mask, remaining = mask_and_options(options, num_envs)
    return ResetArgs(
        seeds=entries,
        options=None if remaining is None else sendable(remaining, "options"),
        mask=mask,
        noise_seed=int(seed) % (1 << 62) if mask is None and is_int(seed) else None,
    )


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is a whole number, NumPy's included, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each environment: s + i for an int s.

    Raises:
        ValueError: if a list has another length; ConfigError if an entry is no whole number from 0.
    """
    if seed is None:
        return [None] * num_envs
    if is_int(seed):
        entries: list[Any] = [int(seed) + i for i in range(num_envs)]
    elif isinstance(seed, list | tuple) or (isinstance(seed, np.ndarray) and seed.ndim):
        entries = [int(entry) if is_int(entry) else entry for entry in seed]
    else:
        raise ConfigError("seed", seed, "a whole number, a list with one entry for each environment, or None")
    if len(entries) != num_envs:
        raise ConfigError(
            "seed", seed, f"{num_envs} entries, one for each environment; it has {len(entries)}"
        )
    for entry in entries:
        if entry is not None and not (is_int(entry) and 0 <= entry < 1 << 63):
            raise ConfigError("seed", entry, "a whole number from 0 to below 2**63, or None")
    return entries


def mask_and_options(
    options: Mapping[str, Any] | None, num_envs: int
) -> tuple[NDArray[np.bool_] | None, dict[str, Any] | None]:
    """The reset mask, if there is one, and the options without it; `options` itself is not changed.

    Raises:
        TypeError: if the mask is not an array of bool; ValueError: if its shape is wrong or it is all False.
    """
    if options is None:
        return None, None
    if not isinstance(options, Mapping):
        raise ConfigError("options", options, "a dict or None")
    remaining = dict(options)
    if "reset_mask" not in remaining:
        return None, remaining
    mask = remaining.pop("reset_mask")
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] is a {type(mask).__name__}; expected a NumPy array of bool")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}; expected bool")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] has shape {mask.shape}; expected ({num_envs},)")
    if not mask.any():
        raise ValueError("options['reset_mask'] is all False; expected at least one True")
    return mask, remaining
