"""A round of C++ over environments: what it steps, where it stops, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterenv.env_calls import number
from clusterenv.native import Environments

N = 4


class Round:
    """N environments whose step gives its row, and infos as told."""

    def __init__(self, infos: list[Any], ends: int | None = None) -> None:
        self.stepped: list[int] = []
        self.kept: list[tuple[int, Any]] = []
        self.flags = np.zeros(N), np.zeros(N, np.bool_), np.zeros(N, np.bool_)
        self.obs = np.full((N, 1), -1, np.float32)

        def step_of(row: int) -> Any:
            def step(_: object) -> tuple[Any, ...]:
                self.stepped.append(row)
                return np.array([row], np.float32), float(row), row == ends, False, infos[row]

            return step

        rows: list[Any] = [None] * N
        limits, progress = np.zeros((N, 2), np.int64), np.zeros(4, np.int64)
        self._environments = Environments([step_of(row) for row in range(N)], rows, limits, progress, number)

    def go(self, first: int = 0, plan: list[int] | None = None) -> int:
        planned = None if plan is None else np.array(plan, np.uint8)
        keep = lambda row, info: self.kept.append((row, dict(info)))  # noqa: E731
        return self._environments.step(first, [0] * N, self.obs, *self.flags, planned, keep)


def test_only_infos_that_say_something_are_kept_those_of_an_end_too() -> None:
    told = Round([{}, {"a": 1}, {"b": 2}, {}], ends=2)
    assert told.go() == 2
    assert told.kept == [(1, {"a": 1}), (2, {"b": 2})]


def test_round_stops_before_a_row_and_passes_others_over() -> None:
    told = Round([{}] * N)
    plan = [2, 0, 1, 0]
    assert told.go(plan=plan) == 2
    assert told.stepped == [1]
    assert told.go(3, plan) == N
    assert told.stepped == [1, 3]
    assert told.obs[[0, 1, 3], 0].tolist() == [-1, 1, 3]


def test_plan_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="plan"):
        Round([{}] * N).go(plan=[0] * (N + 1))
