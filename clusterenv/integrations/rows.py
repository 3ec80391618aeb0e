"""The infos of a vector environment as one dict for each environment, as other libraries have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Info = dict[str, Any]

_PYTHON_NUMBERS = frozenset({np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)})
"""Dtypes that batching makes of Python's own float, int and bool."""


def info_rows(infos: Mapping[str, Any], num_envs: int) -> list[Info]:
    """The info of each environment: the keys whose mask `_key` has its row, in Gymnasium's layout.

    Numbers are Python's where the batch cannot tell that they were not; arrays are copies of their own.
    """
    rows: list[Info] = [{} for _ in range(num_envs)]
    for key, column in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:  # a mask itself
            continue
        values = info_rows(column, num_envs) if isinstance(column, Mapping) else _values(column)
        for index in np.flatnonzero(mask):
            rows[index][key] = values[index]
    return rows


def single_obs(obs: Any, row: int) -> Any:  # noqa: ANN401
    """A copy of one observation of a batch."""
    if isinstance(obs, dict):
        return {key: single_obs(part, row) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(single_obs(part, row) for part in obs)
    return obs[row].copy()


def _values(column: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401
    """One value for each row: of Python where `column` holds numbers or objects, else an array."""
    if column.ndim > 1:
        return [row.copy() for row in column]
    return column.tolist() if column.dtype in _PYTHON_NUMBERS or column.dtype == object else column
