"""`spec` of a vector of environments: what `gymnasium.make_vec` needs to build the same ones locally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.error import Error

from clusterenv.sources import EnvFn
from clusterenv_registry.entry import SpecSource
from clusterenv_registry.loading import EnvFactory

OF_VECTOR = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Keys that Gymnasium puts into the kwargs of such a spec, beside the environment's own."""


def vector_spec(
    env_fns: Sequence[EnvFn], first: EnvSpec | None, vector_kwargs: Mapping[str, Any]
) -> EnvSpec | None:
    """The spec of all environments together; of callables, that of the first environment.

    Args:
        env_fns: what makes each environment.
        first: the spec that the first environment has itself.
        vector_kwargs: of `SyncVectorEnv`.
    """
    factory = env_fns[0]
    wrappers: list[Any] = []
    if isinstance(factory, EnvFactory):
        base = _of_factory(factory)
        wrappers = list(factory.wrappers)
    else:
        base = deepcopy(first)
    if base is None:
        return None
    base.kwargs = {
        **base.kwargs,
        "num_envs": len(env_fns),
        "vectorization_mode": "sync",
        "vector_kwargs": dict(vector_kwargs),
        **({"wrappers": wrappers} if wrappers else {}),
    }
    return base


def factory_of(spec: EnvSpec, wrappers: Sequence[Any], env_kwargs: Mapping[str, Any]) -> EnvFactory:
    """What makes one environment of a spec, which may be that of a vector."""
    own = {key: value for key, value in spec.kwargs.items() if key not in OF_VECTOR}
    return EnvFactory(spec.id, SpecSource(_with_kwargs(spec, own)), dict(env_kwargs), tuple(wrappers))


def _of_factory(factory: EnvFactory) -> EnvSpec | None:
    """The spec of one environment of a factory, without its wrappers."""
    if isinstance(factory.source, SpecSource):
        return _with_kwargs(factory.source.spec, {**factory.source.spec.kwargs, **factory.env_kwargs})
    try:  # an environment that Gymnasium does not know: it is given its maker
        maker: Any = replace(factory, wrappers=())
        return EnvSpec(factory.name, maker, order_enforce=False, disable_env_checker=True)
    except Error:  # a name that is no id of Gymnasium's
        return None


def _with_kwargs(spec: EnvSpec, kwargs: Mapping[str, Any]) -> EnvSpec:
    """A copy of `spec` with other kwargs."""
    other = deepcopy(spec)
    other.kwargs = dict(kwargs)
    return other
