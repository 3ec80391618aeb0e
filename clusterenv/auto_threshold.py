"""`kl_threshold="auto"`: the threshold at which a set fraction of importance ratios lies outside PPO's clip.

What stale data costs a learner is importance ratios r = π_v(a|s) / π_u(a|s) far from 1, and the divergence
at which there are many of them differs between tasks. Each comparison shows both: the divergence D, and the
fraction f of ratios outside [1 - 0.2, 1 + 0.2]. As f(D) is about concave and f(0) = 0, the chord through
(D, f) bounds the D* at which f would be the target f*:

    D f*/f  <=  D*  if f <= f*,   D* <= D f*/f  if f > f*;    D f*/f is never taken beyond [D / 2, 2 D].

A bound that the threshold breaks moves it there, half of the way in logarithms and at most by a factor of
sqrt 2. Each worker has its own.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterenv import distributions
from clusterenv.distributions import Family
from clusterenv.sync_config import AUTO_START

CLIP: Final = 0.2
"""Ratios further than this from 1 count as outside: epsilon of PPO."""
TARGET: Final = 0.25
"""Fraction of ratios outside at which weights are pulled."""
LOWEST: Final = 1e-4
HIGHEST: Final = 2.0
DRAWS: Final = 8
"""Actions drawn at each sampled state."""
STEP: Final = 2.0
"""No comparison is extrapolated by more than this factor, nor is a bound taken that is further away."""
GAIN: Final = 0.5
"""Part of the way, in logarithms, that the threshold moves to a bound that it breaks."""
SEED: Final = 0


class AutoThreshold:
    """The threshold of one worker, moved a little by each comparison: a function of what they show."""

    def __init__(self) -> None:
        """Begin at the default threshold."""
        self.value = AUTO_START

    def observe(self, divergence: float, outside: float) -> None:
        """Take in a comparison: its mean KL in nats, and the fraction of ratios outside the clip."""
        if not (math.isfinite(divergence) and divergence > 0 and 0 <= outside <= 1):
            return
        chord = divergence * min(max(TARGET / max(outside, 1e-9), 1 / STEP), STEP)
        broken = chord > self.value if outside <= TARGET else chord < self.value
        if broken:
            moved = self.value * min(max(chord / self.value, 1 / STEP), STEP) ** GAIN
            self.value = min(max(moved, LOWEST), HIGHEST)


def fraction_outside(log_ratios: NDArray[Any]) -> float:
    """The fraction of log π_v(a|s) - log π_u(a|s) whose ratio is outside the clip; NaN of none."""
    if not log_ratios.size:
        return math.nan
    return float((np.abs(np.expm1(log_ratios.astype(np.float64))) > CLIP).mean())


def log_ratios(
    family: Family | None, said_u: NDArray[np.float32], said_v: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Of actions of π_u: those taken, from log-probabilities [m] of both policies, where there is no family.

    Else of `DRAWS` at each of m states, from parameters [m, P], always the same draws: less noise than one.
    """
    if family is None:
        return said_v - said_u
    states = len(said_u)
    theta_u, theta_v = np.repeat(said_u, DRAWS, axis=0), np.repeat(said_v, DRAWS, axis=0)
    actions = np.empty((states * DRAWS, *family.action_shape), family.action_dtype)
    behaviour = np.empty(states * DRAWS, np.float32)
    distributions.sample(
        family,
        theta_u,
        seed=SEED,
        env_ids=np.repeat(np.arange(states), DRAWS),
        steps=np.tile(np.arange(DRAWS), states),
        actions_out=actions,
        log_probs_out=behaviour,
    )
    return distributions.log_prob(family, theta_v, actions) - behaviour
