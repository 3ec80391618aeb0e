"""One PPO update with the decoupled objective, row by row in double precision; autograd gives gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterenv.learners.networks import Agent
from clusterenv.rollout import Rollout
from tests.reference import returns

BETAS, EPS = (0.9, 0.999), 1e-5


@dataclass
class Row:
    obs: Tensor
    action: Tensor
    prox: float
    weight: float
    value: float
    advantage: float

    @property
    def target(self) -> float:
        return self.advantage + self.value


@dataclass
class Settings:
    """Of the update, named as in the options of PPO."""

    learning_rate: float
    gamma: float
    gae_lambda: float
    clip_coef: float
    clip_value: float | None
    value_coef: float
    entropy_coef: float
    max_grad_norm: float
    max_behaviour_weight: float


def updated(
    agent: Agent, rollout: Rollout, settings: Settings, epochs: Sequence[Sequence[list[int]]]
) -> Agent:
    """A double-precision copy of `agent` after the minibatches of `epochs`, which are lists of valid rows."""
    agent = copy.deepcopy(agent).double()
    rows = _rows(agent, rollout, settings)
    parameters = list(agent.parameters())
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    step = 0
    for epoch in epochs:
        for numbers in epoch:
            loss = _loss(agent, [rows[number] for number in numbers], settings)
            gradients = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
            shrink = min(1.0, settings.max_grad_norm / (norm + 1e-6))
            step += 1
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                m.mul_(BETAS[0]).add_(g * shrink * (1 - BETAS[0]))
                v.mul_(BETAS[1]).add_((g * shrink) ** 2 * (1 - BETAS[1]))
                change = (m / (1 - BETAS[0] ** step)) / ((v / (1 - BETAS[1] ** step)).sqrt() + EPS)
                p.data -= settings.learning_rate * change
    return agent


def _rows(agent: Agent, rollout: Rollout, settings: Settings) -> list[Row]:
    """The valid rows in the order of t, then n."""
    num_steps, num_envs = rollout.rewards.shape
    advantages = [
        returns.gae(_steps(agent, rollout, env), settings.gamma, settings.gae_lambda)
        for env in range(num_envs)
    ]
    rows = []
    for t in range(num_steps):
        for env in range(num_envs):
            if rollout.valid[t, env]:
                obs = torch.from_numpy(rollout.obs[t, env]).double()
                action = torch.as_tensor(rollout.actions[t, env]).double() - agent.first_action
                prox = float(_log_prob(agent, obs, action).detach())
                weight = min(math.exp(prox - rollout.log_probs[t, env]), settings.max_behaviour_weight)
                rows.append(Row(obs, action, prox, weight, _value(agent, obs), advantages[env][t]))
    return rows


def _steps(agent: Agent, rollout: Rollout, env: int) -> list[returns.Step]:
    ended = {(int(t), int(n)): k for k, (t, n) in enumerate(rollout.final_index)}
    steps = []
    for t in range(len(rollout.rewards)):
        following = rollout.obs[t + 1, env] if t + 1 < len(rollout.rewards) else rollout.last_obs[env]
        if (t, env) in ended:
            following = rollout.final_obs[ended[t, env]]
        steps.append(
            returns.Step(
                reward=float(rollout.rewards[t, env]),
                value=_value(agent, torch.from_numpy(rollout.obs[t, env]).double()),
                following=_value(agent, torch.from_numpy(following).double()),
                terminated=bool(rollout.terminations[t, env]),
                truncated=bool(rollout.truncations[t, env]),
                valid=bool(rollout.valid[t, env]),
            )
        )
    return steps


def _loss(agent: Agent, rows: Sequence[Row], settings: Settings) -> Tensor:
    mean = sum(row.advantage for row in rows) / len(rows)
    deviation = math.sqrt(sum((row.advantage - mean) ** 2 for row in rows) / len(rows))
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        advantage = (row.advantage - mean) / (deviation + 1e-8)
        ratio = torch.exp(_log_prob(agent, row.obs, row.action) - row.prox)
        clipped = torch.clamp(ratio, 1 - settings.clip_coef, 1 + settings.clip_coef)
        total = total - row.weight * torch.minimum(ratio * advantage, clipped * advantage)
        value = agent.critic(row.obs)[0]
        error = (value - row.target) ** 2
        if settings.clip_value is not None:
            near = row.value + torch.clamp(value - row.value, -settings.clip_value, settings.clip_value)
            error = torch.maximum(error, (near - row.target) ** 2)
        total = total + settings.value_coef * 0.5 * error - settings.entropy_coef * _entropy(agent, row.obs)
    return total / len(rows)


def _value(agent: Agent, obs: Tensor) -> float:
    return float(agent.critic(obs)[0].detach())


def _log_prob(agent: Agent, obs: Tensor, action: Tensor) -> Tensor:
    outputs = agent.actor(obs)
    if agent.continuous:
        deviations = (action - outputs) / agent.log_std.exp()
        return (-0.5 * deviations**2 - agent.log_std - 0.5 * math.log(2 * math.pi)).sum()
    return outputs[int(action)] - torch.log(torch.exp(outputs).sum())


def _entropy(agent: Agent, obs: Tensor) -> Tensor:
    if agent.continuous:
        return (agent.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    probabilities = torch.softmax(agent.actor(obs), 0)
    return -(probabilities * probabilities.log()).sum()
