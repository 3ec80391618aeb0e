"""Versions of the policy that a runner still needs: each environment ends its episode as it began it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv.adapters import Acted, AgentAdapter

Array = NDArray[Any]
Nested = Any
Flags = NDArray[np.bool_]


class EpisodePolicies:
    """Keeps the policies with which some of n environments act that the newest has left behind."""

    def __init__(self, num_envs: int, version: int) -> None:
        """All environments act with `version`, the newest."""
        self.versions = np.full(num_envs, version, np.int64)
        """[n]: with which each environment acts."""
        self._older: dict[int, AgentAdapter] = {}

    def keep(self, version: int, adapter: AgentAdapter) -> bool:
        """Whether `version`, no longer the newest, is still acted with, and `adapter` therefore kept."""
        is_used = bool((self.versions == version).any())
        if is_used:
            self._older[version] = adapter
        return is_used

    def begin_episodes(self, rows: Flags, version: int) -> None:
        """Environments of `rows` [n] act with `version`, the newest, from now on."""
        self.versions[rows] = version
        used = set(self.versions.tolist())
        self._older = {older: adapter for older, adapter in self._older.items() if older in used}

    def act(self, newest: AgentAdapter, obs: Nested, *, with_values: bool, seed: int, **by_row: Any) -> Acted:
        """What the policy of each row does; arguments as for `AgentAdapter.act`, those `by_row` [n, ...]."""
        if not self._older:
            return newest.act(obs, with_values=with_values, seed=seed, **by_row)
        parts = []
        places = []
        for version in np.unique(self.versions).tolist():
            rows = np.flatnonzero(self.versions == version)
            adapter = self._older.get(version, newest)
            given = {name: _taken(value, rows) for name, value in by_row.items()}
            parts.append(adapter.act(_taken(obs, rows), with_values=with_values, seed=seed, **given))
            places.append(rows)
        order = np.argsort(np.concatenate(places))
        columns = {item.name: [getattr(part, item.name) for part in parts] for item in fields(Acted)}
        return Acted(**{name: _joined(values, order) for name, values in columns.items()})


def _taken(nested: Nested, rows: Array) -> Nested:
    """Some rows of an array, or of all arrays that a dict, list or tuple holds."""
    if isinstance(nested, dict):
        return {key: _taken(value, rows) for key, value in nested.items()}
    if isinstance(nested, list | tuple):
        return type(nested)(_taken(value, rows) for value in nested)
    return nested[rows]


def _joined(parts: Sequence[Nested], order: Array) -> Nested:
    """Rows of several arrays, or lists of arrays, in `order`; none if a part has none."""
    if any(part is None for part in parts):
        return None
    if isinstance(parts[0], list):
        return [_joined(leaf, order) for leaf in zip(*parts, strict=True)]
    return np.concatenate(parts)[order]
