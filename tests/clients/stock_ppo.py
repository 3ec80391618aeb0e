"""PPO as people write it, clipping around the log-prob that `step(agent)` tells; nothing here knows of AAPS.

Usage: python stock_ppo.py --kl-threshold 0.05 --seed 1. Prints one JSON line: at which step the mean return
of the last 100 episodes first reached the target, and how often the workers pulled weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv, LocalConfig

NUM_STEPS, EPOCHS, MINIBATCHES = 32, 10, 4
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, env: Any) -> None:
        super().__init__()
        inputs, actions = env.single_observation_space.shape[0], int(env.single_action_space.n)
        self.actor = nn.Sequential(
            layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )
        self.critic = nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x)

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[Any, ...]:
        dist = Categorical(logits=self.actor(x))
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.critic(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kl-threshold", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", type=float, default=475.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    torch.set_num_threads(1)

    config = {"env_name": "CartPole-v1", "envs_per_node": 64 // args.workers, "seed": args.seed}
    env = ClusterEnv(
        config | {"kl_threshold": args.kl_threshold, "autoreset_mode": "SameStep"},
        LocalConfig(nodes=args.workers),
    )
    agent = Agent(env)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    obs, _ = env.reset(seed=args.seed)
    running, last_100 = np.zeros(env.num_envs), deque(maxlen=100)
    updates = args.total_steps // (NUM_STEPS * env.num_envs)
    reached = None

    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 2.5e-3 * (1 - update / updates)
        rows: dict[str, list[Any]] = {key: [] for key in ("obs", "act", "logp", "val", "rew", "done")}
        for _ in range(NUM_STEPS):
            rows["obs"].append(obs)
            obs, reward, terminated, truncated, info = env.step(agent)
            done = terminated | truncated
            for key, value in zip(
                rows, (None, info["action"], info["log_prob"], info["value"], reward, done), strict=True
            ):
                if value is not None:
                    rows[key].append(value)
            running += reward
            last_100.extend(running[done])
            running[done] = 0.0
        if reached is None and len(last_100) == 100 and np.mean(last_100) >= args.target:
            reached = (update + 1) * NUM_STEPS * env.num_envs
            break
        learn(agent, optimizer, {key: np.stack(value) for key, value in rows.items()}, obs)

    workers = env.stats()["workers"]
    sys.stdout.write(
        json.dumps(
            {
                "kl_threshold": args.kl_threshold,
                "seed": args.seed,
                "reached_at": reached,
                "last_100": float(np.mean(last_100)),
                "updates": update + 1,
                "syncs_per_worker": max(worker["sync_count"] for worker in workers),
                "syncs_by_reason": workers[0]["syncs_by_reason"],
            }
        )
        + "\n"
    )
    env.close()


def learn(agent: Agent, optimizer: Any, rows: dict[str, np.ndarray], next_obs: np.ndarray) -> None:
    with torch.no_grad():
        next_value = agent.get_value(torch.as_tensor(next_obs)).numpy()[:, 0]
    advantages, last = np.zeros_like(rows["rew"]), 0.0
    for t in reversed(range(NUM_STEPS)):
        following = next_value if t == NUM_STEPS - 1 else rows["val"][t + 1]
        alive = 1.0 - rows["done"][t]
        delta = rows["rew"][t] + GAMMA * following * alive - rows["val"][t]
        advantages[t] = last = delta + GAMMA * LAMBDA * alive * last
    returns = advantages + rows["val"]

    def flat(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array.reshape(-1, *array.shape[2:]), dtype=None)

    obs, actions, old = flat(rows["obs"]), flat(rows["act"]), flat(rows["logp"])
    adv, ret = flat(advantages).float(), flat(returns).float()
    size = len(obs) // MINIBATCHES
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(obs)).split(size):
            _, log_prob, entropy, value = agent.get_action_and_value(obs[batch], actions[batch])
            ratio = (log_prob - old[batch]).exp()
            a = (adv[batch] - adv[batch].mean()) / (adv[batch].std() + 1e-8)
            policy_loss = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            value_loss = 0.5 * (value[:, 0] - ret[batch]).square().mean()
            optimizer.zero_grad()
            (policy_loss - ENTROPY * entropy.mean() + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    main()
