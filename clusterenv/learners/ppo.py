"""Proximal policy optimisation over `ClusterEnv.rollout`, to read downwards: options, samples, loss, loop.

Workers pull weights only when their policy has drifted (AAPS), so a rollout may come from a policy mu that is
several updates old. Clipping around mu, as stock PPO does, would hold the new policy near mu: the divergence
stays under the threshold, no worker ever pulls, and learning stalls. So three policies are told apart (the
decoupled objective of Hilton, Cobbe and Schulman, 2021):

    mu       behaviour: acted, and stored the log-prob of each action
    pi_prox  the learner's policy when the batch arrives: the centre of the clip
    pi       the policy being optimised

    maximise  mean of  min(pi_prox / mu, 2) * min(r A, clip(r, 1 - eps, 1 + eps) A),   r = pi / pi_prox

With fresh data mu is pi_prox, every weight is 1, and this is PPO. `clip_around="behaviour"` is stock PPO, to
see what it does with stale data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from clusterenv import LocalConfig, Rollout, SlurmConfig
from clusterenv.errors import ConfigError
from clusterenv.learners import command_line, parallel
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from clusterenv.learners.options import NetworkOptions, check
from clusterenv.learners.returns import generalized_advantage
from clusterenv.learners.runs import Summary
from clusterenv.learners.training import explained_variance, launched, mean_of, shuffled, training


@dataclass(frozen=True, kw_only=True)
class PPOConfig(NetworkOptions):
    """Train an agent with PPO. The defaults shown are those of the environment named by --env-id."""

    num_steps: int = 64
    """Steps of every environment between two updates."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    anneal_lr: bool = True
    """Let the step size fall to 0 in a straight line over the run."""
    epochs: int = 6
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches of each pass, unless batch_size is given."""
    batch_size: int | None = None
    """Rows of a minibatch, or somewhat fewer so that all are of nearly one size; none: num_minibatches."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Lambda of GAE: 0 trusts the critic, 1 the returns."""
    clip_coef: float = 0.2
    """Epsilon of the clip around the learner's policy."""
    clip_value: float | None = None
    """Clip the change of the values by this; none: they are not clipped."""
    normalize_advantages: bool = True
    """Give the advantages of each minibatch mean 0 and deviation 1."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Largest norm of the gradient."""
    target_kl: float | None = None
    """End the passes over a rollout once the policy has moved further than this (nats); none: never."""
    max_behaviour_weight: float = 2.0
    """Bound of pi_prox / mu, the weight of rows that a stale policy collected."""
    clip_around: Literal["target", "behaviour"] = "target"
    """"target": clip around pi_prox, as above; "behaviour", for comparison: around mu, as stock PPO does."""
    scale_rewards: bool = True
    """Divide rewards by the running deviation of the discounted return."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        super().__post_init__()
        check(
            self,
            whole=("num_steps", "epochs", "num_minibatches", "batch_size", "hidden"),
            fraction=("gamma", "gae_lambda"),
            positive=("learning_rate", "clip_coef", "clip_value", "max_grad_norm", "max_behaviour_weight"),
            finite=("learning_rate", "value_coef", "entropy_coef"),
        )
        if self.target_kl is not None and not self.target_kl >= 0:
            raise ConfigError("target_kl", self.target_kl, "a number from 0, or None")


@dataclass(frozen=True, slots=True)
class Samples:
    """The valid rows of a rollout with all that the loss needs; each tensor is [rows, ...]."""

    features: Tensor
    actions: Tensor
    prox_log_probs: Tensor
    behaviour_weights: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        """Rows."""
        return len(self.advantages)


@torch.no_grad()
def make_samples(
    agent: Agent, rollout: Rollout, config: PPOConfig, reward_scale: RewardScale | None
) -> Samples:
    """The rows to learn from: pi_prox and all values are those of `agent` as it is when called.

    The workers' own values are not used: while the policy drifts slowly their critic can be many updates old.
    """
    data = rollout.torch(agent.device)
    features = agent.features(data.obs)  # [T, N, D], or images
    outputs, values = agent.outputs_and_values(features)  # [T, N, P], [T, N]
    rewards = rollout.rewards if reward_scale is None else reward_scale.of(rollout)
    gae = generalized_advantage(
        rewards,
        values.cpu().numpy(),
        agent.next_values(data, values),
        rollout.terminations,
        rollout.truncations,
        rollout.valid,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    valid = data.valid
    features, values = features[valid], values[valid]
    advantages = torch.from_numpy(gae).float().to(agent.device)[valid]
    actions = agent.action_targets(data.actions[valid])
    behaviour_log_probs = data.log_probs[valid]
    prox_log_probs = behaviour_log_probs
    if config.clip_around == "target":
        prox_log_probs = agent.as_policy(outputs[valid]).log_prob(actions)
    weights = (prox_log_probs - behaviour_log_probs).exp().clamp(max=config.max_behaviour_weight)
    return Samples(features, actions, prox_log_probs, weights, values, advantages, values + advantages)


def ppo_loss(agent: Agent, samples: Samples, config: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss over one minibatch, and what to log of it."""
    outputs, values = agent.outputs_and_values(samples.features)
    distribution = agent.as_policy(outputs)
    log_ratios = distribution.log_prob(samples.actions) - samples.prox_log_probs
    ratios = log_ratios.exp()
    advantages = samples.advantages
    if config.normalize_advantages:
        advantages = parallel.normalized(advantages)
    clipped = ratios.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    surrogate = torch.min(ratios * advantages, clipped * advantages)
    policy_loss = -(samples.behaviour_weights * surrogate).mean()

    errors = (values - samples.returns) ** 2
    if config.clip_value is not None:
        change = (values - samples.values).clamp(-config.clip_value, config.clip_value)
        errors = torch.max(errors, (samples.values + change - samples.returns) ** 2)
    value_loss = 0.5 * errors.mean()

    entropy = distribution.entropy().mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "kl_k1": -log_ratios.detach().mean(),
        "kl_k3": (ratios.detach() - 1 - log_ratios.detach()).mean(),
        "clip_fraction": ((ratios.detach() - 1).abs() > config.clip_coef).float().mean(),
    }


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    config: PPOConfig,
    generator: torch.Generator,
) -> dict[str, float]:
    """Optimise `agent` over shuffled minibatches for some epochs; the means of what the last epoch logged."""
    means: dict[str, float] = {}
    for _ in range(config.epochs):
        logs = []
        for minibatch in shuffled(samples, config.num_minibatches, generator, config.batch_size):
            loss, log = ppo_loss(agent, minibatch, config)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            parallel.average_gradients(agent, len(minibatch))
            nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
            optimizer.step()
            logs.append(log)
        means = mean_of(logs)
        if config.target_kl is not None and parallel.mean(means["kl_k3"], len(samples)) > config.target_kl:
            break
    return means | {
        "explained_variance": float(explained_variance(samples.values, samples.returns)),
        "behaviour_weight": float(samples.behaviour_weights.mean()),
    }


def train(config: PPOConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("ppo", config, launcher) as (env, place):
        agent = Agent(env.single_observation_space, env.single_action_space, **config.agent_options)
        agent.to(place.device)
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        reward_scale = RewardScale(env.num_envs, config.gamma) if config.scale_rewards else None
        shuffling = torch.Generator().manual_seed(config.seed)
        parts = {"agent": agent, "optimizer": optimizer, "shuffling": shuffling, "scale": reward_scale}
        # Workers' values are not used. Of images they cost as much as acting; of vectors next to nothing.
        actor = agent.without_critic() if agent.images else agent
        with training("ppo", config, place, parts, acting=actor) as run:
            env.reset(seed=run.reset_seed)
            while run.goes_on:
                if config.anneal_lr:
                    optimizer.param_groups[0]["lr"] = config.learning_rate * run.remaining
                rollout = env.rollout(actor, num_steps=config.num_steps)
                samples = make_samples(agent, rollout, config, reward_scale)
                losses = update(agent, optimizer, samples, config, shuffling)
                agent.observe(rollout.obs, rollout.valid)
                if run.log(rollout, env.stats(), losses):  # a milestone
                    env.reset(seed=run.reset_seed)
                    if reward_scale is not None:
                        reward_scale.start_over()
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[PPOConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("ppo", PPOConfig, argv)
