"""Turn rewards and values into targets: GAE and V-trace on the [T, N] arrays of a rollout.

Flags belong to the transition of their own row t, never to t + 1. Only a true end (`terminations`) zeroes the
value of what follows; a time limit (`truncations`) bootstraps from the value of the final observation; both
cut the recursion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class VTrace:
    """Targets of the critic and advantages of the policy gradient, each [T, N]."""

    targets: Floats
    advantages: Floats


def next_values(values: Array, last_values: Array, final_index: Array, final_values: Array) -> Floats:
    """The value [T, N] of the observation that each step really led to.

    That is `values` one row later, and `last_values` [N] after the last row; but `final_values` [K] at the
    rows `final_index` [K, 2] (t, n) that ended an episode, since the row after those starts another one.

    Raises:
        ValueError: if the shapes do not fit each other.
    """
    if values.ndim != 2 or last_values.shape != values.shape[1:]:
        raise ValueError(f"values {values.shape}, last_values {last_values.shape}; expected [T, N] and [N]")
    if final_index.shape != (len(final_values), 2):
        raise ValueError(
            f"final_index {final_index.shape} and final_values {final_values.shape}; expected [K, 2] and [K]"
        )
    following = np.concatenate([values[1:], last_values[None]]).astype(np.float64)
    following[final_index[:, 0], final_index[:, 1]] = final_values
    return following


def generalized_advantage(
    rewards: Array,
    values: Array,
    following: Array,
    terminations: Array,
    truncations: Array,
    valid: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Advantages [T, N]: cut at an episode's end, bootstrapped at a time limit, and 0 where not `valid`.

    `following` [T, N] comes from `next_values`. The targets of the critic are the advantages plus `values`.

    Raises:
        ValueError: if an argument is not [T, N].
    """
    _check_shapes(rewards, values, following, terminations, truncations, valid)
    continues = ~(terminations | truncations)
    deltas = rewards + gamma * ~terminations * following - values.astype(np.float64)
    decay = gamma * gae_lambda * continues
    advantages = np.zeros(rewards.shape)
    carry = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        carry = np.where(valid[t], deltas[t] + decay[t] * carry, 0.0)
        advantages[t] = carry
    return advantages


def vtrace(
    rewards: Array,
    values: Array,
    following: Array,
    terminations: Array,
    truncations: Array,
    valid: Array,
    log_ratios: Array,
    *,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """V-trace (IMPALA, section 4): off-policy targets, and advantages for the gradient of log pi.

    `log_ratios` [T, N] is log pi - log mu, with log mu stored when acting. Rows that are not `valid` have
    their value as target and 0 as advantage, and the trace is cut there.

    Raises:
        ValueError: if an array is not [T, N], or `rho_bar` is below `c_bar`.
    """
    _check_shapes(rewards, values, following, terminations, truncations, valid, log_ratios)
    if not rho_bar >= c_bar:
        raise ValueError(f"rho_bar is {rho_bar} and c_bar {c_bar}; expected rho_bar >= c_bar")
    values = values.astype(np.float64)
    ratios = np.exp(np.asarray(log_ratios, dtype=np.float64))
    rhos = np.minimum(rho_bar, ratios)
    discounts = gamma * ~terminations
    deltas = rhos * (rewards + discounts * following - values)
    decay = discounts * ~truncations * trace_lambda * np.minimum(c_bar, ratios)
    corrections = np.zeros_like(deltas)  # v_t - V(x_t)
    following_corrections = np.zeros_like(deltas)  # v_{t+1} - V(x_{t+1}), 0 over an episode's end
    carry = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following_corrections[t] = carry * ~(terminations[t] | truncations[t])
        carry = np.where(valid[t], deltas[t] + decay[t] * carry, 0.0)
        corrections[t] = carry
    advantages = rhos * (rewards + discounts * (following + following_corrections) - values)
    return VTrace(values + corrections, np.where(valid, advantages, 0.0))


def _check_shapes(rewards: Array, *others: Array) -> None:
    if rewards.ndim != 2 or any(other.shape != rewards.shape for other in others):
        shapes = ", ".join(str(array.shape) for array in (rewards, *others))
        raise ValueError(f"arrays have shapes {shapes}; expected all [T, N]")
