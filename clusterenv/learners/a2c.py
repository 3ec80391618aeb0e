"""Advantage actor-critic over `ClusterEnv.rollout`, to read downwards: options, loss, loop.

The synchronous form of the algorithm of Mnih and others (2016): all workers act with the newest policy, then
one step of the optimiser is made on all that they saw.

    maximise  mean of  A log pi(a|s) - value_coef (V(s) - R)^2 / 2 + entropy_coef H(pi(.|s))

There is no correction for the age of the policy that acted, so workers pull weights at every update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clusterenv import LocalConfig, Rollout, SlurmConfig
from clusterenv.learners import command_line, parallel
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from clusterenv.learners.options import NetworkOptions, check
from clusterenv.learners.returns import generalized_advantage
from clusterenv.learners.runs import Summary
from clusterenv.learners.training import explained_variance, launched, training


@dataclass(frozen=True, kw_only=True)
class A2CConfig(NetworkOptions):
    """Train an agent with A2C. The defaults shown are those of the environment named by --env-id."""

    sync: str = "every"
    """"every" (on-policy), or "adaptive", "interval:k", "broadcast" or "never"."""
    num_steps: int = 8
    """Steps of every environment between two updates."""
    learning_rate: float = 2e-3
    """Adam's step size at the start."""
    anneal_lr: bool = True
    """Let the step size fall to 0 in a straight line over the run."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Lambda of GAE: 0 trusts the critic, 1 the returns of num_steps steps."""
    normalize_advantages: bool = True
    """Give the advantages of each update mean 0 and deviation 1."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.003
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Largest norm of the gradient."""
    scale_rewards: bool = True
    """Divide rewards by the running deviation of the discounted return."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        super().__post_init__()
        check(
            self,
            whole=("num_steps", "hidden"),
            fraction=("gamma", "gae_lambda"),
            positive=("learning_rate", "max_grad_norm"),
            finite=("learning_rate", "value_coef", "entropy_coef"),
        )


def a2c_loss(
    agent: Agent, rollout: Rollout, config: A2CConfig, reward_scale: RewardScale | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss over the valid rows of a rollout, and what to log of it."""
    batch = rollout.torch(agent.device)
    outputs, values = agent.outputs_and_values(agent.features(batch.obs))  # [T, N, P], [T, N]
    rewards = rollout.rewards if reward_scale is None else reward_scale.of(rollout)
    gae = generalized_advantage(
        rewards,
        values.detach().cpu().numpy(),
        agent.next_values(batch, values.detach()),
        rollout.terminations,
        rollout.truncations,
        rollout.valid,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    valid = batch.valid
    advantages = torch.from_numpy(gae).float().to(agent.device)[valid]
    returns = values.detach()[valid] + advantages
    if config.normalize_advantages:
        advantages = parallel.normalized(advantages)
    distribution = agent.as_policy(outputs[valid])
    log_probs = distribution.log_prob(agent.action_targets(batch.actions[valid]))
    policy_loss = -(advantages * log_probs).mean()
    value_loss = 0.5 * ((values[valid] - returns) ** 2).mean()
    entropy = distribution.entropy().mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    log_ratios = log_probs.detach() - batch.log_probs[valid]
    return loss, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "explained_variance": explained_variance(values.detach()[valid], returns),
        "kl_behaviour": (log_ratios.exp() - 1 - log_ratios).mean(),
        "behaviour_ratio": log_ratios.exp().mean(),
    }


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: A2CConfig,
    reward_scale: RewardScale | None,
) -> dict[str, float]:
    """One step of the optimiser, if there are valid rows, and new observation statistics; what to log."""
    rows = int(rollout.valid.sum())
    if not parallel.most(rows):
        return {}
    loss, log = a2c_loss(agent, rollout, config, reward_scale)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    parallel.average_gradients(agent, rows)
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
    optimizer.step()
    agent.observe(rollout.obs, rollout.valid)
    return {name: float(value) for name, value in log.items()}


def train(config: A2CConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("a2c", config, launcher) as (env, place):
        agent = Agent(env.single_observation_space, env.single_action_space, **config.agent_options)
        agent.to(place.device)
        actor = agent.without_critic()
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        reward_scale = RewardScale(env.num_envs, config.gamma) if config.scale_rewards else None
        parts = {"agent": agent, "optimizer": optimizer, "scale": reward_scale}
        with training("a2c", config, place, parts, acting=actor) as run:
            env.reset(seed=run.reset_seed)
            while run.goes_on:
                if config.anneal_lr:
                    optimizer.param_groups[0]["lr"] = config.learning_rate * run.remaining
                rollout = env.rollout(actor, num_steps=config.num_steps)
                losses = update(agent, optimizer, rollout, config, reward_scale)
                if run.log(rollout, env.stats(), losses):  # a milestone
                    env.reset(seed=run.reset_seed)
                    if reward_scale is not None:
                        reward_scale.start_over()
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[A2CConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("a2c", A2CConfig, argv)
