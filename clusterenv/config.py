"""Every option of environments and policy, declared once: its default, its meaning and its check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from clusterenv.checks import at_least, is_int, one_of, positive, unknown_key
from clusterenv.errors import ConfigError
from clusterenv.sync_config import (
    AUTO_START,
    LOCKSTEP_MAX_LAG,
    STREAM_MAX_LAG,
    SyncConfig,
    check_sync,
    check_threshold,
)

WORKER_LOSS_POLICIES = ("restart", "drop", "raise")
ENV_ERROR_POLICIES = ("raise", "rebuild")
SHORTEST_LEASE_S = 0.5
"""A shorter lease would take every pause of a busy machine for a lost worker."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """What runs on the workers and how: the first argument of ClusterEnv, or its keyword arguments."""

    type: str = "gymnasium"
    """Backend, or the name of a registered environment."""
    env_name: str | None = None
    """Id of the environment, such as "LunarLander-v3" or "module:Id-v0"."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment's constructor."""
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = ()
    """Wrappers applied to each environment, innermost first, on the workers."""
    seed: int | None = None
    """Seed of a `rollout` before any `reset`, and of the policy's noise; none: drawn from the system."""
    api: str = "gymnasium"
    """"gymnasium" for its 1.x returns, "gym" for the older `obs` and `obs, reward, done, info`."""
    envs_per_node: int = 8
    """Environments of one worker."""
    autoreset_mode: AutoresetMode | None = None
    """Of `step`, while `rollout` uses SAME_STEP; none: NEXT_STEP, or what a backend has."""
    observation_mode: str | tuple[gym.Space[Any], gym.Space[Any]] = "same"
    """"same": observation spaces must be equal; "different": their bounds may differ; or a pair, the batched
    and the single space, that takes the place of what the environments say."""
    batch_size: int | None = None
    """Environments that one `recv` returns; none: all."""
    kl_threshold: float | Literal["auto"] = 0.05
    """Nats: a worker pulls weights when its mean KL from the learner's policy exceeds this; "auto": each
    worker finds the threshold at which a quarter of the importance ratios is outside PPO's clip."""
    n_ref: int = 64
    """States that each worker samples for the KL."""
    max_lag: int | None = None
    """Versions: a worker that lags by more pulls weights before it acts; none: 8, and 256 in `stream`."""
    max_age_s: float = math.inf
    """Seconds after which a worker pulls newer weights whatever the KL says."""
    min_interval: int = 1
    """Versions between two pulls, unless max_lag or max_age_s asks for one."""
    sync: str = "adaptive"
    """"adaptive" (AAPS), "every", "interval:k", "broadcast" or "never"."""
    on_worker_loss: str = "restart"
    """What happens when a worker is lost: "restart" it, "drop" it for good, or "raise"."""
    on_env_error: str = "raise"
    """What happens when an environment raises in step or reset: "raise", or "rebuild" that one alone."""
    max_restarts: int = 10
    """Restarts of one worker, and rebuilds of one environment, within an hour; one more loss is an error."""
    lease_s: float = 10.0
    """Seconds of silence after which a worker counts as lost."""
    head_grace_s: float | None = None
    """Seconds that workers outlive a silent head; none: lease_s."""
    connect_timeout_s: float = 60.0
    """Seconds that a running worker may need to reach the head."""
    setup_timeout_s: float = 300.0
    """Seconds that a worker may need to build its environments."""
    step_timeout_s: float = 600.0
    """Seconds that one environment may need for one step or reset; the agent has a minute at least."""
    shared_memory: bool = True
    """Whether local workers (`LocalConfig`) are stepped through memory shared with them, and large arrays of
    workers on the head's own host stay in such memory."""
    max_message_bytes: int = 1 << 30
    """Bytes of the largest message that is accepted from a peer."""

    def __post_init__(self) -> None:
        """Check every value, and normalise the autoreset mode."""
        self._check_names()
        if not isinstance(self.shared_memory, bool):
            raise ConfigError("shared_memory", self.shared_memory, "True or False")
        at_least("envs_per_node", self.envs_per_node, 1, 1 << 20)
        if self.batch_size is not None:
            at_least("batch_size", self.batch_size, 1)
        at_least("n_ref", self.n_ref, 1)
        if self.max_lag is not None:
            at_least("max_lag", self.max_lag, 1)
        at_least("max_restarts", self.max_restarts, 0)
        at_least("min_interval", self.min_interval, 1)
        at_least("max_message_bytes", self.max_message_bytes, 1 << 16, 1 << 46)
        if self.seed is not None and not (is_int(self.seed) and self.seed >= 0):
            raise ConfigError("seed", self.seed, "a whole number from 0, or None")
        check_threshold(self.kl_threshold)
        for name in ("max_age_s", "lease_s", "connect_timeout_s", "setup_timeout_s", "step_timeout_s"):
            positive(name, getattr(self, name))
        if self.lease_s < SHORTEST_LEASE_S:
            raise ConfigError("lease_s", self.lease_s, f"at least {SHORTEST_LEASE_S} s")
        if self.head_grace_s is not None:
            positive("head_grace_s", self.head_grace_s)

    def _check_names(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise ConfigError("type", self.type, 'the name of a backend or environment, such as "gymnasium"')
        if self.env_name is not None and not isinstance(self.env_name, str):
            raise ConfigError("env_name", self.env_name, 'an id such as "LunarLander-v3"')
        if not isinstance(self.env_kwargs, Mapping) or not all(isinstance(k, str) for k in self.env_kwargs):
            raise ConfigError("env_kwargs", self.env_kwargs, "a dict with names of arguments as keys")
        if not isinstance(self.wrappers, list | tuple) or not all(map(callable, self.wrappers)):
            raise ConfigError("wrappers", self.wrappers, "a list of callables that take an environment")
        one_of("api", self.api, ("gymnasium", "gym"))
        one_of("on_worker_loss", self.on_worker_loss, WORKER_LOSS_POLICIES)
        one_of("on_env_error", self.on_env_error, ENV_ERROR_POLICIES)
        check_sync(self.sync)
        try:
            if self.autoreset_mode is not None:
                object.__setattr__(self, "autoreset_mode", AutoresetMode(self.autoreset_mode))
        except ValueError:
            modes = " or ".join(f'"{mode.value}"' for mode in AutoresetMode)
            raise ConfigError("autoreset_mode", self.autoreset_mode, modes) from None
        mode = self.observation_mode
        given = isinstance(mode, tuple) and len(mode) == 2 and all(isinstance(s, gym.Space) for s in mode)
        if not given and mode not in ("same", "different"):
            expected = '"same", "different", or the batched and the single observation space'
            raise ConfigError("observation_mode", mode, expected)

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> EnvConfig:
        """The options of a dict, each key checked against those that exist."""
        known = {item.name for item in fields(cls)}
        for key in options:
            if key not in known:
                raise unknown_key("env_config", key, known)
        return cls(**options)

    @property
    def sync_config(self) -> SyncConfig:
        """The options that decide when weights are pulled."""
        return SyncConfig(
            kl_threshold=AUTO_START if self.kl_threshold == "auto" else float(self.kl_threshold),
            auto_threshold=self.kl_threshold == "auto",
            max_lag=self.lockstep_max_lag,
            max_age_s=float(self.max_age_s),
            min_interval=self.min_interval,
            sync=self.sync,
            n_ref=self.n_ref,
        )

    @property
    def lockstep_max_lag(self) -> int:
        """The bound on the lag in `step` and `rollout`."""
        return LOCKSTEP_MAX_LAG if self.max_lag is None else self.max_lag

    @property
    def stream_max_lag(self) -> int:
        """The bound on the lag in `stream`, where each batch is a version."""
        return STREAM_MAX_LAG if self.max_lag is None else self.max_lag

    @property
    def env_rebuilds(self) -> int:
        """Times within an hour that an environment which raises is built anew."""
        return self.max_restarts if self.on_env_error == "rebuild" else 0

    @property
    def worker_grace_s(self) -> float:
        """Seconds after which a worker that hears nothing from the head ends."""
        return self.lease_s if self.head_grace_s is None else self.head_grace_s
