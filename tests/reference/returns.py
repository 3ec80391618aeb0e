"""GAE and V-trace from their definitions: sums over the rest of each episode, one environment at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Step:
    """One transition of one environment; `following` is the value of the observation that it led to."""

    reward: float
    value: float
    following: float
    terminated: bool
    truncated: bool
    valid: bool = True
    log_ratio: float = 0.0


def gae(steps: Sequence[Step], gamma: float, lam: float) -> list[float]:
    """The sum of (gamma lambda)^l delta_{t+l} up to the end of the episode, for each t."""
    return [
        sum((gamma * lam) ** n * _delta(step, gamma) for n, step in enumerate(_episode(steps, t)))
        for t in range(len(steps))
    ]


def vtrace(
    steps: Sequence[Step], gamma: float, rho_bar: float, c_bar: float, lam: float
) -> tuple[list[float], list[float]]:
    """Targets v_s and advantages, by the sum and the product of IMPALA's equation (1)."""
    targets = []
    for t, step in enumerate(steps):
        target, product = step.value, 1.0
        for n, later in enumerate(_episode(steps, t)):
            ratio = math.exp(later.log_ratio)
            target += gamma**n * product * min(rho_bar, ratio) * _delta(later, gamma)
            product *= lam * min(c_bar, ratio)
        targets.append(target)
    advantages = []
    for t, step in enumerate(steps):
        goes_on = len(list(_episode(steps, t))) > 1
        following = targets[t + 1] if goes_on else step.following
        discount = 0.0 if step.terminated else gamma
        rho = min(rho_bar, math.exp(step.log_ratio))
        advantages.append(rho * (step.reward + discount * following - step.value) if step.valid else 0.0)
    return targets, advantages


def _delta(step: Step, gamma: float) -> float:
    return step.reward + (0.0 if step.terminated else gamma * step.following) - step.value


def _episode(steps: Sequence[Step], start: int) -> Sequence[Step]:
    """The valid steps from `start` to the end of its episode."""
    rest = []
    for step in steps[start:]:
        if not step.valid:
            break
        rest.append(step)
        if step.terminated or step.truncated:
            break
    return rest
