"""From the name of an environment to a vector: what can be refused is refused here, in a sentence."""

from __future__ import annotations

import difflib
from typing import Any

from clusterenv_envpool.vector import EnvPoolVector

try:
    import envpool
except ImportError as error:
    raise ImportError(f'EnvPool cannot be imported ({error}): pip install "envpool>=1.2.5,<2"') from error

OURS = ("num_envs", "num_threads", "seed", "env_seed", "gym_reset_return_info")
"""Arguments of `envpool.make` that are not the user's to give."""

QT = (
    "Procgen in EnvPool needs the Qt 5 libraries: apt-get install libqt5core5a libqt5gui5 (Debian 12), "
    "libqt5core5t64 libqt5gui5t64 (Debian 13, Ubuntu 24.04), or dnf install qt5-qtbase"
)


class Factory:
    """Makes vectors of EnvPool's environments."""

    def __call__(
        self,
        env_name: str,
        num_envs: int,
        *,
        num_threads: int,
        batch_size: int | None = None,
        **env_kwargs: Any,
    ) -> EnvPoolVector:
        """`num_envs` environments in a pool of `num_threads` threads.

        Args:
            env_name: An id of EnvPool's, such as "Pong-v5".
            num_envs: Environments of the pool.
            num_threads: Threads that step them.
            batch_size: Environments that EnvPool waits for at a time; None: all.
            env_kwargs: Options of the environment for `envpool.make`, such as `frame_skip`.

        Raises:
            ValueError: if there is no such environment, or an argument does not fit.
            ImportError: if the environment needs a library that is not installed.
        """
        known = self.env_names()
        if env_name not in known:
            near = difflib.get_close_matches(env_name, known, 3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ValueError(f"EnvPool {envpool.__version__} has no environment {env_name!r}{hint}")
        for name in OURS:
            if name in env_kwargs:
                raise ValueError(f"{name} in env_kwargs is {env_kwargs[name]!r}; ClusterEnv sets it itself")
        try:
            return EnvPoolVector(env_name, num_envs, num_threads, batch_size, env_kwargs)
        except ImportError as error:
            raise ImportError(QT if "Qt" in str(error) else str(error)) from error

    def env_names(self) -> list[str]:
        """The ids of all environments."""
        return list(envpool.list_all_envs())


make = Factory()
