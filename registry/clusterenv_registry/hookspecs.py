"""Every hook that a plugin can implement; the docstrings are the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv

PROJECT = "clusterenv"
"""The name that ties hook specifications, implementations and the entry-point group together."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def clusterenv_register_envs() -> Mapping[str, str | Callable[..., gym.Env[Any, Any]] | EnvSpec]:
    """Offer environments by name.

    Called at most once in a process, when a name is looked up that nobody registered by hand. It should be
    quick and import nothing heavy: that is what the string form is for.

    Returns:
        For each name what makes the environment: "package.module:Class", imported on the workers when the
        environment is built; a class or function, called with the user's `env_kwargs`; or a Gymnasium
        EnvSpec. Two plugins that offer one name are an error for whoever asks for that name.
    """
    raise NotImplementedError  # a specification is never called; plugins implement it


@hookspec
def clusterenv_register_backends() -> Mapping[str, str | Callable[..., VectorEnv[Any, Any, Any]]]:
    """Offer backends by name: each makes whole vectors of environments, with threads of its own.

    Called when `clusterenv_register_envs` is. `{"type": BACKEND, "env_name": NAME}` and
    `env_name="BACKEND:NAME"` then mean a backend's environment, and each worker builds one vector, in a
    process of its own.

    Returns:
        For each name a factory, or "package.module:factory", imported on the workers. It is called as
        `factory(env_name, num_envs, *, num_threads, **env_kwargs)` and returns a Gymnasium 1.x `VectorEnv`:

        - row i is one environment for the whole life of the vector; arrays that it returned may be used
          again by its next call;
        - `reset(seed=..., options=...)` takes None or a list [num_envs] of ints and Nones as seeds;
        - `metadata["autoreset_mode"]` is an `AutoresetMode`. With NEXT_STEP the step after an episode's end
          resets its row, with reward 0 and no flag. With SAME_STEP infos hold `final_obs` and `final_info`;
        - `metadata["reset_mask"]` is true if `options["reset_mask"]`, bool [num_envs], resets some rows
          alone. SAME_STEP and DISABLED are then made of NEXT_STEP, for who asks for them;
        - optional: `call`, `set_attr` and `render` as `SyncVectorEnv` has them, and
          `step_rows(actions, rows)`, which steps the k ascending `rows` alone and returns what `step` does,
          with k rows.

        `num_threads` are the cores that the worker may use. What is wrong with `env_name` or `env_kwargs` is
        raised; the user sees its text. A factory may have an attribute `env_names`, called without arguments,
        that returns the names it takes, for `clusterenv envs`. Two plugins that offer one name are an
        error for whoever asks for that name.
    """
    raise NotImplementedError
