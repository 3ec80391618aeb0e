"""The shard that a runner is told to have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
from gymnasium.vector import AutoresetMode

from clusterenv.commands import RunnerSetup
from clusterenv.rebuilding import RebuildingShard
from clusterenv.shard import Shard
from clusterenv.vector_shard import VectorShard

AnyShard = Shard | VectorShard


def build_shard(setup: RunnerSetup) -> AnyShard:
    """The environments, each made apart or all of them by a backend.

    Raises:
        EnvError: if one cannot be built.
        SpaceError: if a space cannot be batched, or environments differ.
    """
    mode = AutoresetMode(setup.autoreset_mode)
    if setup.backend is None:
        env_fns = [_unpickled(setup.env_blobs[blob]) for blob in setup.env_blob_of]
        most = setup.env_rebuilds
        make = partial(RebuildingShard, most_rebuilds=most) if most else Shard
        return make(env_fns, first_env=setup.first_env, autoreset_mode=mode, same_bounds=setup.same_bounds)
    (blob,) = setup.env_blobs
    return VectorShard(
        lambda: cloudpickle.loads(blob).vector(setup.num_envs, setup.num_threads),
        backend=setup.backend,
        first_env=setup.first_env,
        num_envs=setup.num_envs,
        autoreset_mode=mode,
        same_bounds=setup.same_bounds,
    )


def _unpickled(blob: bytes) -> Callable[[], Any]:
    """Loads the callable only when called, so that what that raises is an error of the environment."""
    return lambda: cloudpickle.loads(blob)()
