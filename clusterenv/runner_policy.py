"""The policy as a runner acts with it: the newest weights, and older ones with which episodes end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterenv import policy
from clusterenv.adapters import Acted, AgentAdapter, Drawing
from clusterenv.commands import NewWeights, SyncAt
from clusterenv.distributions import Family
from clusterenv.errors import StateError
from clusterenv.memory import Memory

Array = NDArray[Any]
Nested = Any
Flags = NDArray[np.bool_]


class RunnerPolicy:
    """Acts in n environments, with weights that commands bring and with those that come as news meanwhile."""

    def __init__(self, num_envs: int) -> None:
        """No agent yet."""
        self.memory = Memory(num_envs)
        self.version = 0
        """Of the newest weights that it acts with."""
        self.family: Family | None = None
        """Of its distributions, once it has acted."""
        self._num_envs = num_envs
        self._adapter: AgentAdapter | None = None
        self._make: Callable[[], AgentAdapter] | None = None
        self._news: NewWeights | None = None
        self._episodes: EpisodePolicies | None = None

    @property
    def adapter(self) -> AgentAdapter:
        """The agent with the newest weights.

        Raises:
            StateError: if none has been set.
        """
        if self._adapter is None:
            raise StateError("no agent has been set")
        return self._adapter

    @property
    def versions(self) -> int | NDArray[np.int64]:
        """Of the weights that act next: one for all environments, or [n]."""
        return self.version if self._episodes is None else self._episodes.versions

    @property
    def acts_newest(self) -> bool | Flags:
        """Whether the newest weights act next: in all environments, or [n]."""
        return self.versions == self.version

    def set_agent(self, make: Callable[[], AgentAdapter]) -> None:
        """Act as the agent that `make` makes; its weights follow."""
        self._make = make
        self._adapter = make()
        self.family, self.version = None, 0
        self._news = self._episodes = None
        self.memory.agent_changed()

    def load(self, version: int, state: bytes) -> None:
        """Act with these weights everywhere."""
        self._load(version, state)
        self._news = self._episodes = None

    def take(self, news: NewWeights) -> None:
        """Act with these weights after the next `adopt_news`."""
        self._news = news

    def adopt_news(self) -> bool:
        """Act with the last weights that came as news; in episodes under way, when they have ended.

        Returns whether there were any.
        """
        news, self._news = self._news, None
        if news is not None:
            if self._episodes is not None and self._episodes.keep(self.version, self.adapter):
                assert self._make is not None
                self._adapter = self._make()
            self._load(news.version, news.state)
        if self._episodes is not None:
            self._episodes.begin(self.version)
        return news is not None

    def _load(self, version: int, state: bytes) -> None:
        self.adapter.load_state(policy.decode_state(state))
        self.memory.weights_changed(self.adapter)
        self.version = version

    def begin(self, sync_at: SyncAt | None) -> None:
        """Act from now on so that news are adopted at `sync_at`."""
        self.adopt_news()
        if sync_at != "episode":
            self._episodes = None
        elif self._episodes is None:
            self._episodes = EpisodePolicies(self._num_envs, self.version)

    def end_episodes(self, rows: Flags) -> None:
        """Environments of `rows` [n] begin an episode next."""
        if self._episodes is not None:
            self._episodes.end(rows)

    def drawing(self) -> tuple[Drawing, int] | None:
        """What acts in all environments without values, and for how many acts at most; None: `act` does."""
        drawing = None if self._episodes is not None else self.adapter.drawing()
        if drawing is not None:
            self.family = self.adapter.family or self.family
        return drawing

    def act(self, obs: Nested, *, with_values: bool, seed: int, **by_row: Any) -> Acted:
        """What is done in each environment; see `AgentAdapter.act`."""
        newest = self.adapter
        if self._episodes is None:
            acted = newest.act(obs, with_values=with_values, seed=seed, **by_row)
        else:
            acted = self._episodes.act(newest, obs, with_values=with_values, seed=seed, **by_row)
        self.family = newest.family or self.family
        return acted


class EpisodePolicies:
    """Keeps the policies with which some of n environments act that the newest has left behind."""

    def __init__(self, num_envs: int, version: int) -> None:
        """All environments act with `version`, the newest."""
        self.versions = np.full(num_envs, version, np.int64)
        """[n]: with which each environment acts."""
        self._ended = np.zeros(num_envs, np.bool_)
        self._older: dict[int, AgentAdapter] = {}

    def keep(self, version: int, adapter: AgentAdapter) -> bool:
        """Whether `version`, no longer the newest, is still acted with, and `adapter` therefore kept."""
        is_used = bool((self.versions[~self._ended] == version).any())
        if is_used:
            self._older[version] = adapter
        return is_used

    def end(self, rows: Flags) -> None:
        """Environments of `rows` [n] have ended their episode."""
        self._ended |= rows

    def begin(self, version: int) -> None:
        """Those that have ended their episode begin the next with `version`, the newest."""
        if not self._ended.any():
            return
        self.versions[self._ended] = version
        self._ended[:] = False
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
