"""The options that every algorithm has, and checks of options; each algorithm adds its own to `Options`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clusterenv.checks import is_number
from clusterenv.errors import ConfigError
from clusterenv.learners.devices import DeviceName
from clusterenv.learners.duration_option import Duration
from clusterenv.learners.image_networks import NetworkName, Precision
from clusterenv.learners.json_option import JsonObject, is_json


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is trained on, where, for how long, and when workers pull weights."""

    env_id: str
    """Environment: a Gymnasium id, "module:Id-v0", a registered name, or "BACKEND:NAME" of a plugin."""
    env_kwargs: JsonObject = field(default_factory=dict)
    """Arguments of the environment, such as '{"size": 9}'."""
    workers: int = 2
    """Worker processes, of all learners together."""
    learners: int = 1
    """Learner processes, of PPO, A2C and IMPALA: each trains on its share of the workers, with gradients
    averaged."""
    learner_timeout: Duration = 300.0
    """Of several learners: how long the others wait for one that lives, such as 90s or 5m; longer than its
    workers may take to be replaced."""
    envs_per_worker: int = 32
    """Environments of each worker, unless num_envs is given."""
    num_envs: int | None = None
    """Environments of all workers together, dealt out evenly; none: envs_per_worker on each."""
    serial: bool = False
    """Run worker and environments inside this process, for a debugger; needs --workers 1."""
    kl_threshold: float | Literal["auto"] = 0.05
    """Nats: a worker pulls weights when its policy has drifted further than this from the learner's; "auto":
    each worker finds a threshold by itself."""
    max_lag: int = 8
    """Updates: no worker acts with a policy older than this."""
    sync: str = "adaptive"
    """"adaptive", or for comparison "every", "interval:k", "broadcast" or "never"."""
    seed: int = 1
    """Seed of weights, environments, action noise and minibatches."""
    total_steps: int = 1_000_000
    """Environment steps to train for."""
    duration: Duration | None = None
    """End after this time, such as 90s, 30m or 1h30m, if total_steps does not end the run before; none: steps
    alone count."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 episodes reaches this; none: train for all steps."""
    run_dir: Path | None = None
    """Folder for this run's files; none: a new one in runs/."""
    checkpoint_every: int = 100_000
    """Environment steps between two milestones, from which a run can go on; environments are reset there."""
    log_interval: int = 1
    """Updates between two lines of the metrics."""
    resume: Path | None = None
    """Folder of a run to go on with from its last milestone, with its options where none are given."""
    device: DeviceName = "cpu"
    """Where the learner computes: "cpu", "cuda", or "auto": a GPU for image networks if there is one, else
    the CPU. Workers act on their CPUs."""
    num_threads: int | None = None
    """Threads of the learner's arithmetic; none: 1 for an MLP, and for image networks one for each physical
    core granted."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        whole = ("learners", "total_steps", "num_threads", "num_envs", "checkpoint_every", "log_interval")
        check(self, whole=whole)
        for name, or_none in (("duration", ", or None"), ("learner_timeout", "")):
            value = getattr(self, name)
            if (value is not None or not or_none) and not (is_number(value) and 0 < value < math.inf):
                raise ConfigError(name, value, f"a time above 0 in seconds{or_none}")
        if self.workers % self.learners:
            raise ConfigError("workers", self.workers, f"a multiple of learners = {self.learners}")
        cores = os.cpu_count() or 1
        if self.num_threads is not None and self.num_threads > cores:  # torch would crash
            raise ConfigError("num_threads", self.num_threads, f"at most {cores}, the cores of this machine")
        if self.num_envs is not None:
            if self.num_envs % self.workers:
                raise ConfigError("num_envs", self.num_envs, f"a multiple of workers, {self.workers}")
            object.__setattr__(self, "envs_per_worker", self.num_envs // self.workers)
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError("seed", self.seed, "a whole number from 0 to 2**63-1")
        if not is_json(self.env_kwargs):
            raise ConfigError("env_kwargs", self.env_kwargs, "a dict of plain data, as JSON can hold it")
        if self.stop_at_return is not None and math.isnan(self.stop_at_return):
            raise ConfigError("stop_at_return", self.stop_at_return, "a number, or None")

    @property
    def workers_of_learner(self) -> int:
        """The share of one learner."""
        return self.workers // self.learners

    @property
    def env_options(self) -> dict[str, Any]:
        """The options of ClusterEnv."""
        return {
            "type": "gymnasium",
            "env_name": self.env_id,
            "env_kwargs": self.env_kwargs,
            "envs_per_node": self.envs_per_worker,
            "kl_threshold": self.kl_threshold,
            "max_lag": self.max_lag,
            "sync": self.sync,
            "seed": self.seed,
        }

    @property
    def agent_options(self) -> dict[str, Any]:
        """Keyword arguments of the algorithm's agent, other than its spaces."""
        return {}


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Options):
    """Beside the options of `Options`, those of the network of an actor and a critic."""

    network: NetworkName = "auto"
    """"mlp", which flattens observations; "nature" or "impala" (a ResNet), for images; "auto": the ResNet for
    images of three colours, the Nature CNN for others, else the MLP."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers; of image networks, of those after the convolutions. None: 64 64 of the
    MLP, 512 of nature, 256 of impala."""
    precision: Precision = "auto"
    """Of the arithmetic of image networks, of workers too: "float32", "bfloat16", or "auto": bfloat16 where
    the learner's processor has instructions for it. Weights are float32."""
    normalize_obs: bool = True
    """Normalise observations by running statistics; images are divided by 255 instead."""

    @property
    def agent_options(self) -> dict[str, Any]:
        """Keyword arguments of the agent, other than its spaces."""
        names = ("network", "hidden", "precision", "normalize_obs")
        return {name: getattr(self, name) for name in names}


def check(
    config: Options,
    *,
    whole: Sequence[str] = (),
    fraction: Sequence[str] = (),
    positive: Sequence[str] = (),
    finite: Sequence[str] = (),
) -> None:
    """The options named hold numbers from 1, from 0 to 1, above 0, and finite ones, or None.

    Of tuples all numbers do.

    Raises:
        ConfigError: if one does not.
    """
    for names, holds, expected in (
        (whole, lambda value: value >= 1, "a whole number from 1"),
        (fraction, lambda value: 0 <= value <= 1, "a number from 0 to 1"),
        (positive, lambda value: value > 0, "a number above 0"),
        (finite, math.isfinite, "a finite number"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is None:
                continue
            if isinstance(value, tuple):
                expected = expected.removeprefix("a ").replace("number", "numbers")
            if not all(map(holds, value if isinstance(value, tuple) else (value,))):
                raise ConfigError(name, value, expected)
