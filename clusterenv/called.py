"""Gymnasium's calls by name into the environments: methods, attributes, rendering, generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterenv.calling import OWN_METHODS, checked_name, checked_rows
from clusterenv.errors import ConfigError
from clusterenv.launched import Launched


class Called(Launched):
    """Calls into all environments, or into some of them."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method of each environment returns, in their order; an attribute that is none is read.

        Results are copies: arrays, text, numbers, None, and tuples, lists and dicts of them. None stands for
        an environment whose worker is lost.

        Raises:
            MissingAttribute: if an environment has nothing of that name.
            EnvError: if one raises, or gives what cannot travel; all of them can be used on.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_on(
        self, indices: Sequence[int] | None, name: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """As `call`, of the environments `indices` only, in that order."""
        self._begin_call(indices, name, args, kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """The environments are being called; `call_wait` gives what `call` returns."""
        self._begin_call(None, name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What `call` returns, within `timeout` seconds if given.

        Raises:
            CallTimeout: if not; it may be called again.
        """
        results: tuple[Any, ...] = self._finished("call", timeout)
        return results

    def _begin_call(
        self, indices: Sequence[int] | None, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._require_idle("call")
        checked_name(name, OWN_METHODS)
        rows = checked_rows(indices, self.num_envs)
        calling = self._running().calling
        pending = self._call(lambda: calling.begin_call(name, args, kwargs, rows))
        self._awaiting.begun("call", pending, lambda: calling.finish_call(pending, rows))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment, in their order; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: object, indices: Sequence[int] | None = None) -> None:
        """An attribute is set in each environment, or in those of `indices`.

        Args:
            name: of the attribute.
            values: a list or tuple with one value for each, or one value for all.
            indices: numbers of environments; none: all.

        Raises:
            ConfigError: if a list has another length, or a value cannot be pickled; nothing was set.
        """
        self._require_idle("set_attr")
        checked_name(name)
        rows = checked_rows(indices, self.num_envs)
        each = values if isinstance(values, list | tuple) else None
        if each is not None and len(each) != len(rows):
            raise ConfigError("values", values, f"{len(rows)} values, one for each environment")
        calling = self._running().calling
        self._call(lambda: calling.set_attr(name, each, values, rows))

    def render(self, indices: Sequence[int] | None = None) -> tuple[Any, ...]:
        """What each environment (or each of `indices`) renders, in their order."""
        return self.call_on(indices, "render")

    @property  # type: ignore[misc]  # Gymnasium's built-in vectors have no setter either
    def np_random(self) -> tuple[Any, ...]:  # type: ignore[override]
        """A copy of each environment's generator."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.get_attr("np_random_seed")
