"""The one table of settings that differ between environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "num_steps": 32,
            "learning_rate": 2.5e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 2_000_000,
            "learning_rate": 2e-3,
            "num_minibatches": 8,
            "gamma": 0.995,
            "entropy_coef": 0.003,
        },
        "Pendulum-v1": {
            "total_steps": 500_000,
            "num_steps": 32,
            "epochs": 8,
            "num_minibatches": 8,
            "gamma": 0.95,
        },
    },
    "a2c": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "envs_per_worker": 16,
            "learning_rate": 5e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 1_500_000,
            "envs_per_worker": 8,
            "num_steps": 5,
            "learning_rate": 8e-4,
            "gamma": 0.995,
            "gae_lambda": 1.0,
            "normalize_advantages": False,
            "entropy_coef": 1e-5,
        },
    },
    "a3c": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "envs_per_worker": 16,
            "learning_rate": 3e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 1_500_000,
            "envs_per_worker": 8,
            "learning_rate": 4e-4,
            "gamma": 0.995,
            "gae_lambda": 1.0,
            "normalize_advantages": False,
            "entropy_coef": 1e-5,
        },
    },
    "impala": {
        "CartPole-v1": {
            "total_steps": 200_000,
            "num_steps": 16,
            "learning_rate": 1e-3,
            "normalize_obs": False,
            "scale_rewards": False,
        },
        "LunarLander-v3": {
            "total_steps": 1_000_000,
            "kl_threshold": "auto",
            "num_steps": 64,
            "passes": 6,
            "num_minibatches": 8,
            "learning_rate": 1.5e-3,
            "gamma": 0.999,
            "trace_lambda": 0.98,
            "entropy_coef": 0.01,
        },
    },
    "dqn": {
        "CartPole-v1": {
            "total_steps": 60_000,
            "replay_capacity": 20_000,
            "replay_ratio": 16.0,
            "batch_size": 64,
            "hidden": (64, 64),
        },
        "LunarLander-v3": {
            "total_steps": 400_000,
            "replay_ratio": 16.0,
            "epsilon_end": 0.02,
            "epsilon_fraction": 0.2,
            "n_steps": 1,
            "target_rate": 0.002,
            "learning_rate": 5e-4,
            "hidden": (256, 256),
        },
    },
    "sac": {
        "Pendulum-v1": {
            "total_steps": 20_000,
            "learning_starts": 1_000,
            "batch_size": 128,
            "replay_ratio": 64.0,
            "learning_rate": 1e-3,
            "hidden": (64, 64),
            "replay_capacity": 50_000,
        },
    },
}
"""By algorithm and environment: what differs from the defaults of the algorithm's config class."""
