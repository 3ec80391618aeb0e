"""Rollouts made up for the tests of learners, with every kind of row that a real one can have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from clusterenv import Rollout
from clusterenv.learners.networks import Agent


def made_up_rollout(
    agent: Agent, *, num_steps: int = 6, num_envs: int = 4, seed: int = 0, valid: np.ndarray | None = None
) -> Rollout:
    """Random steps whose actions and log-probs are those of `agent`; workers' values are NaN.

    Environment 0 ends truly after step 2, environment 1 is cut off after step 3, and 2 after the last.
    """
    rng = np.random.default_rng(seed)

    def made_up(*lead: int) -> np.ndarray:
        shape = (*lead, *agent.observation_space.shape)
        if agent.observation_space.dtype == np.uint8:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.normal(size=shape).astype(np.float32)

    obs = made_up(num_steps, num_envs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = agent.distribution(torch.from_numpy(obs).flatten(0, 1))
        sampled = policy.sample()
        log_probs = policy.log_prob(sampled).numpy().reshape(num_steps, num_envs)
    actions = agent.env_actions(sampled).numpy().reshape(num_steps, num_envs, *sampled.shape[1:])
    terminations, truncations = np.zeros((2, num_steps, num_envs), bool)
    terminations[2, 0] = truncations[3, 1] = truncations[-1, 2] = True
    nan = np.full((num_steps, num_envs), np.nan, np.float32)
    values: dict[str, Any] = {
        "obs": obs,
        "actions": actions,
        "rewards": rng.normal(size=(num_steps, num_envs)).astype(np.float32),
        "terminations": terminations,
        "truncations": truncations,
        "log_probs": log_probs,
        "values": nan,
        "policy_version": np.ones((num_steps, num_envs), np.int64),
        "policy_lag": np.zeros((num_steps, num_envs), np.int64),
        "valid": np.ones((num_steps, num_envs), bool) if valid is None else valid,
        "env_ids": np.arange(num_envs),
        "workers": np.zeros(num_envs, np.int64),
        "last_obs": made_up(num_envs),
        "last_values": nan[0],
        "final_index": np.argwhere(terminations | truncations),
        "final_obs": made_up(3),
        "final_values": nan[0, :3],
        "kl": np.zeros(1),
        "row_kl": np.zeros(num_envs),
        "episodes": [],
    }
    return Rollout(**values)
