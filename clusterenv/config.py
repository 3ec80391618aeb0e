"""Every option of ClusterEnv, declared once: its default, its meaning and its check."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.errors import ConfigError

WORKER_LOSS_POLICIES = ("restart", "drop", "raise")


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """When a worker pulls weights (AAPS)."""

    kl_threshold: float = 0.05
    max_lag: int = 8
    max_age_s: float = math.inf
    min_interval: int = 1
    sync: str = "adaptive"
    n_ref: int = 64


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
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    """Of `step`; `rollout` uses SAME_STEP."""
    kl_threshold: float = 0.05
    """Nats: a worker pulls weights when its mean KL from the learner's policy exceeds this."""
    n_ref: int = 64
    """States that each worker samples for the KL."""
    max_lag: int = 8
    """Versions: a worker never acts with a policy older than this."""
    max_age_s: float = math.inf
    """Seconds after which a worker pulls newer weights whatever the KL says."""
    min_interval: int = 1
    """Versions between two pulls, unless max_lag or max_age_s asks for one."""
    sync: str = "adaptive"
    """"adaptive" (AAPS), "every", "interval:k", "broadcast" or "never"."""
    on_worker_loss: str = "restart"
    """What happens when a worker is lost: "restart" it, "drop" it for good, or "raise"."""
    max_restarts: int = 10
    """Restarts of one worker within an hour; one more loss is an error."""
    lease_s: float = 10.0
    """Seconds of silence after which a worker counts as lost."""
    head_grace_s: float | None = None
    """Seconds that workers outlive a silent head; none: lease_s."""
    connect_timeout_s: float = 60.0
    """Seconds that a running worker may need to reach the head."""
    setup_timeout_s: float = 300.0
    """Seconds that a worker may need to build its environments."""
    step_timeout_s: float = 600.0
    """Seconds that one environment may need for one step or reset."""
    max_message_bytes: int = 1 << 30
    """Bytes of the largest message that is accepted from a peer."""

    def __post_init__(self) -> None:
        """Check every value, and normalise the autoreset mode."""
        self._check_names()
        _at_least("envs_per_node", self.envs_per_node, 1)
        _at_least("n_ref", self.n_ref, 1)
        _at_least("max_lag", self.max_lag, 1)
        _at_least("max_restarts", self.max_restarts, 0)
        _at_least("min_interval", self.min_interval, 1)
        _at_least("max_message_bytes", self.max_message_bytes, 1 << 16)
        if self.seed is not None and not (_is_int(self.seed) and self.seed >= 0):
            raise ConfigError("seed", self.seed, "a whole number from 0, or None")
        if not (_is_number(self.kl_threshold) and self.kl_threshold >= 0):  # refuses NaN too
            raise ConfigError("kl_threshold", self.kl_threshold, "a number of nats from 0 (inf never pulls)")
        for name in ("max_age_s", "lease_s", "connect_timeout_s", "setup_timeout_s", "step_timeout_s"):
            _positive(name, getattr(self, name))
        if self.head_grace_s is not None:
            _positive("head_grace_s", self.head_grace_s)

    def _check_names(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise ConfigError("type", self.type, 'the name of a backend or environment, such as "gymnasium"')
        if self.env_name is not None and not isinstance(self.env_name, str):
            raise ConfigError("env_name", self.env_name, 'an id such as "LunarLander-v3"')
        _one_of("api", self.api, ("gymnasium", "gym"))
        _one_of("on_worker_loss", self.on_worker_loss, WORKER_LOSS_POLICIES)
        if not isinstance(self.sync, str) or not re.fullmatch(
            r"adaptive|every|interval:[1-9]\d*|broadcast|never", self.sync
        ):
            raise ConfigError("sync", self.sync, '"adaptive", "every", "interval:k", "broadcast" or "never"')
        try:
            object.__setattr__(self, "autoreset_mode", AutoresetMode(self.autoreset_mode))
        except ValueError:
            modes = " or ".join(f'"{mode.value}"' for mode in AutoresetMode)
            raise ConfigError("autoreset_mode", self.autoreset_mode, modes) from None

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
            kl_threshold=float(self.kl_threshold),
            max_lag=self.max_lag,
            max_age_s=float(self.max_age_s),
            min_interval=self.min_interval,
            sync=self.sync,
            n_ref=self.n_ref,
        )

    @property
    def worker_grace_s(self) -> float:
        """Seconds after which a worker that hears nothing from the head ends."""
        return self.lease_s if self.head_grace_s is None else self.head_grace_s


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Workers as processes of this machine."""

    nodes: int = 1
    """Worker processes."""
    cpus_per_node: int | None = None
    """Cores of each worker; none: the granted cores divided by `nodes`."""
    serial: bool = False
    """Run worker and environments inside the calling process, for a debugger."""
    port_range: tuple[int, int] | None = None
    """First and last TCP port the head may listen on; none: the system chooses."""

    def __post_init__(self) -> None:
        """Check every value."""
        _at_least("nodes", self.nodes, 1)
        if self.cpus_per_node is not None:
            _at_least("cpus_per_node", self.cpus_per_node, 1)
        if self.serial and self.nodes != 1:
            raise ConfigError("nodes", self.nodes, "1 when serial is set, since all runs in one process")
        check_port_range(self.port_range)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """Workers as tasks of a Slurm job, one for each node. Values are checked; launching is not there yet."""

    job_name: str = "clusterenv"
    """Name of the job."""
    nodes: int = 1
    """Nodes, each with one worker."""
    cpus_per_node: int | None = None
    """Cores asked for on each node; none: the site's default."""
    gpus_per_node: int | str | None = None
    """GPUs asked for on each node, as a number or a gres string."""
    mem: str | None = None
    """Memory of a node, such as "16G"."""
    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that the nodes must have."""
    time_limit: str | None = None
    """Walltime in one of Slurm's forms: "minutes", "hours:minutes:seconds", "days-hours" and so on."""
    queue_timeout_s: float | None = None
    """Seconds to wait in the queue; none: without bound."""
    port_range: tuple[int, int] | None = None
    """First and last TCP port the head may listen on; none: the system chooses."""

    def __post_init__(self) -> None:
        """Check every value."""
        _at_least("nodes", self.nodes, 1)
        if self.cpus_per_node is not None:
            _at_least("cpus_per_node", self.cpus_per_node, 1)
        if _is_int(self.gpus_per_node):
            _at_least("gpus_per_node", self.gpus_per_node, 0)
        elif not (self.gpus_per_node is None or isinstance(self.gpus_per_node, str)):
            raise ConfigError(
                "gpus_per_node", self.gpus_per_node, 'a number from 0 or a gres such as "a100:2"'
            )
        for name in ("job_name", "mem", "partition", "account", "qos", "constraint", "time_limit"):
            _one_line(name, getattr(self, name))
        if self.time_limit is not None and not re.fullmatch(
            r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}|UNLIMITED", self.time_limit
        ):
            raise ConfigError(
                "time_limit", self.time_limit, 'a Slurm time such as "02:00:00", "90" or "1-12"'
            )
        if self.queue_timeout_s is not None:
            _positive("queue_timeout_s", self.queue_timeout_s)
        check_port_range(self.port_range)


def unknown_key(where: str, key: str, known: set[str]) -> ConfigError:
    """An error for a key that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{where} key", key, f"{hint}one of {', '.join(sorted(known))}")


def check_port_range(port_range: tuple[int, int] | None) -> None:
    """Refuse anything but None or two ports in order."""
    if port_range is None:
        return
    good = isinstance(port_range, tuple | list) and len(port_range) == 2 and all(map(_is_int, port_range))
    if not good or not 1 <= port_range[0] <= port_range[1] <= 65535:
        raise ConfigError("port_range", port_range, "(first, last) with 1 <= first <= last <= 65535, or None")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _at_least(name: str, value: object, least: int) -> None:
    if not _is_int(value) or value < least:
        raise ConfigError(name, value, f"a whole number from {least}")


def _positive(name: str, value: object) -> None:
    if not _is_number(value) or not value > 0:  # refuses NaN too
        raise ConfigError(name, value, "a number of seconds above 0")


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(name, value, " or ".join(f'"{item}"' for item in allowed))


def _one_line(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and value and value.isprintable()):
        raise ConfigError(name, value, "text of one line, or None")
