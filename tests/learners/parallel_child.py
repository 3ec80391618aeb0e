"""One of the learners of test_parallel.py: `python -m tests.learners.parallel_child RANK FOLDER [HANGS]`.

Two have rows of their own in `rollouts`; what their update comes to is in FOLDER/agent-RANK.pt. With HANGS,
the rank of one of three, that one does not come to what the others do.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

from clusterenv import Rollout
from clusterenv.learners import a2c, impala, parallel, ppo
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from tests.learners.rollouts import made_up_rollout

ENVS, STEPS = 4, 6


def agent_of(seed: int = 0) -> Agent:
    """The agent that both begin with."""
    torch.manual_seed(seed)
    env = gym.make("Pendulum-v1")
    return Agent(env.observation_space, env.action_space, hidden=(8,), normalize_obs=True)


def rollouts() -> list[Rollout]:
    """What each of the two has collected; the second has lost rows, and more than the first."""
    agent = agent_of()
    valid = np.ones((STEPS, ENVS), bool)
    valid[1:, 0] = False
    return [made_up_rollout(agent, seed=1), made_up_rollout(agent, seed=2, valid=valid)]


def ppo_config() -> ppo.PPOConfig:
    """Two passes of three minibatches."""
    return ppo.PPOConfig(env_id="Pendulum-v1", epochs=2, num_minibatches=3, learning_rate=1e-2)


def a2c_config() -> a2c.A2CConfig:
    """One step."""
    return a2c.A2CConfig(env_id="Pendulum-v1", learning_rate=1e-2)


def impala_config() -> impala.IMPALAConfig:
    """Two passes of two minibatches."""
    return impala.IMPALAConfig(env_id="Pendulum-v1", passes=2, num_minibatches=2, learning_rate=1e-2)


def prox_agent() -> Agent:
    """Another policy than the one that acted, so that V-trace has something to correct."""
    agent = agent_of()
    with torch.no_grad():
        agent.log_std.add_(0.1)
    return agent


def update(rollout: Rollout) -> dict[str, torch.Tensor]:
    """The agent after an update of PPO, one of A2C and one of IMPALA."""
    agent, config = agent_of(), ppo_config()
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    scale = RewardScale(ENVS, config.gamma)
    samples = ppo.make_samples(agent, rollout, config, scale)
    ppo.update(agent, optimizer, samples, config, torch.Generator().manual_seed(3))
    agent.observe(rollout.obs, rollout.valid)
    a2c.update(agent, optimizer, rollout, a2c_config(), scale)
    batch = impala.make_samples(agent, prox_agent().without_critic(), rollout, impala_config(), scale)
    impala.update(agent, optimizer, batch, impala_config(), torch.Generator().manual_seed(4))
    return agent.state_dict() | {name: torch.tensor(value) for name, value in scale.state_dict().items()}


def main(rank: int, folder: Path, hangs: int | None) -> None:
    """Update with the other one, then wait for it to be killed; or wait for one that hangs."""
    size = 2 if hangs is None else 3
    try:
        with parallel.Seat(rank, size, folder / "shared").joined(timeout_s=60 if hangs is None else 4):
            if rank == hangs:
                (folder / "waits").touch()
                time.sleep(60)
            if hangs is not None:
                parallel.gathered(rank)
            torch.save(update(rollouts()[rank]), folder / f"agent-{rank}.pt")
            if rank == 1:
                (folder / "waits").touch()
                time.sleep(60)
            parallel.gathered({"from": rank, "infinite": float("inf")})
    except parallel.LearnerLost as lost:
        (folder / f"lost-{rank}").write_text(str(lost))
        os._exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
