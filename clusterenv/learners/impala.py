"""IMPALA over `ClusterEnv.stream`, to read downwards: options, batches, samples, loss, loop.

Workers never wait for the learner, so a batch may come from policies mu that are some updates old. V-trace
(Espeholt and others, 2018) corrects for that, with the log-probs that were stored when acting:

    rho = min(rho_bar, pi_prox / mu)          weight of a step, in the targets and in the gradient
    c   = lambda min(c_bar, pi_prox / mu)     how far what came later counts

pi_prox is a copy of the learner's policy that follows every few batches, about as old as the data. A batch is
replayed in some passes, in which pi is held near pi_prox (IMPACT, Luo and others, 2020):

    maximise  mean of  min(r A, clip(r, 1 - eps, 1 + eps) A),   r = pi / pi_prox,   A of V-trace, with its rho

With one pass of one minibatch r is 1, and this is the policy gradient of the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor, nn

from clusterenv import ClusterEnv, LocalConfig, Rollout, SlurmConfig
from clusterenv.errors import ConfigError
from clusterenv.learners import command_line, parallel
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Actor, Agent
from clusterenv.learners.options import NetworkOptions, check
from clusterenv.learners.returns import vtrace
from clusterenv.learners.runs import Summary
from clusterenv.learners.training import explained_variance, launched, mean_of, shuffled, training


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(NetworkOptions):
    """Train an agent with IMPALA. The defaults shown are those of the environment named by --env-id."""

    max_lag: int = 256
    """Updates: no worker acts with a policy older than this."""
    lockstep: bool = False
    """Collect with `rollout`, workers and learner in turns, to see what streaming is worth."""
    fragments: int = 2
    """Fragments, each of one worker, in a batch; in lock-step a batch has one of every worker."""
    queue: int = 1
    """Fragments of one worker that may be made before the learner takes one; more: older policies."""
    num_steps: int = 32
    """Steps of every environment in a fragment."""
    passes: int = 4
    """Times that a batch is used."""
    num_minibatches: int = 4
    """Steps of the optimiser in each pass, unless batch_size is given."""
    batch_size: int | None = None
    """Rows of a minibatch, or somewhat fewer so that all are of nearly one size; none: num_minibatches."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    anneal_lr: bool = True
    """Let the step size fall to 0 in a straight line over the run."""
    gamma: float = 0.99
    """Discount."""
    trace_lambda: float = 0.95
    """Lambda of V-trace: 1 as in the paper; less trusts the critic more."""
    rho_bar: float = 1.0
    """Largest weight of a step; at least c_bar. It decides which policy's values are learnt."""
    c_bar: float = 1.0
    """Largest trace of a step."""
    clip_coef: float = 0.2
    """Epsilon of the clip around pi_prox; inf: no clip."""
    prox_interval: int = 2
    """Batches after which pi_prox becomes the learner's policy; below the age of the data, pi overshoots."""
    normalize_advantages: bool = True
    """Give the advantages of each minibatch mean 0 and deviation 1."""
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
            whole=("fragments", "queue", "num_steps", "passes", "num_minibatches", "batch_size", "hidden"),
            fraction=("gamma", "trace_lambda"),
            positive=("learning_rate", "rho_bar", "c_bar", "clip_coef", "max_grad_norm"),
            finite=("learning_rate", "value_coef", "entropy_coef"),
        )
        check(self, whole=("prox_interval",))
        if self.rho_bar < self.c_bar:
            raise ConfigError("rho_bar", self.rho_bar, f"at least c_bar = {self.c_bar}")


@contextmanager
def batches(env: ClusterEnv, actor: Actor, config: IMPALAConfig) -> Iterator[Iterator[Rollout]]:
    """Batches without end, collected while the learner computes, or in turns with it."""
    if config.lockstep:
        yield (env.rollout(actor, config.num_steps) for _ in repeat(None))
        return
    with env.stream(actor, config.num_steps, fragments=config.fragments, queue=config.queue) as stream:
        yield stream


@dataclass(frozen=True, slots=True)
class Samples:
    """The valid rows of a batch with all that the loss needs; each tensor is [rows, ...]."""

    features: Tensor
    actions: Tensor
    prox_log_probs: Tensor
    log_ratios: Tensor
    """log pi_prox - log mu."""
    advantages: Tensor
    values: Tensor
    targets: Tensor


@torch.no_grad()
def make_samples(
    agent: Agent, prox: Actor | None, rollout: Rollout, config: IMPALAConfig, reward_scale: RewardScale | None
) -> Samples:
    """The rows to learn from, with the values of `agent` as it is when called; it may be pi_prox itself."""
    batch = rollout.torch(agent.device)
    valid = batch.valid
    features, actions = agent.features(batch.obs), agent.action_targets(batch.actions)  # [T, N, ...]
    if prox is None:
        outputs, values = agent.outputs_and_values(features)
        policy = agent.as_policy(outputs[valid])
    else:
        values = agent.state_value(features)
        policy = prox.policy(prox.features(batch.obs)[valid])
    log_probs = torch.zeros_like(values)
    log_probs[valid] = policy.log_prob(actions[valid])
    log_ratios = torch.where(valid, log_probs - batch.log_probs, 0.0)
    trace = vtrace(
        rollout.rewards if reward_scale is None else reward_scale.of(rollout),
        values.cpu().numpy(),
        agent.next_values(batch, values),
        rollout.terminations,
        rollout.truncations,
        rollout.valid,
        log_ratios.cpu().numpy(),
        gamma=config.gamma,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        trace_lambda=config.trace_lambda,
    )
    advantages, targets = (
        torch.from_numpy(part).float().to(agent.device) for part in (trace.advantages, trace.targets)
    )
    return Samples(
        features[valid],
        actions[valid],
        log_probs[valid],
        log_ratios[valid],
        advantages[valid],
        values[valid],
        targets[valid],
    )


def impala_loss(agent: Agent, samples: Samples, config: IMPALAConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss over one minibatch, and what to log of it."""
    outputs, values = agent.outputs_and_values(samples.features)
    distribution = agent.as_policy(outputs)
    ratios = (distribution.log_prob(samples.actions) - samples.prox_log_probs).exp()
    advantages = samples.advantages
    if config.normalize_advantages:
        advantages = parallel.normalized(advantages)
    clipped = ratios.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    policy_loss = -torch.min(ratios * advantages, clipped * advantages).mean()
    value_loss = 0.5 * ((values - samples.targets) ** 2).mean()
    entropy = distribution.entropy().mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "clip_fraction": ((ratios.detach() - 1).abs() > config.clip_coef).float().mean(),
    }


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    config: IMPALAConfig,
    generator: torch.Generator,
) -> dict[str, float]:
    """Optimise `agent` over a batch in some passes; what to log of them. Without rows nothing is done."""
    if not parallel.most(len(samples.targets)):
        return {}
    logs: list[dict[str, Tensor]] = []
    for _ in range(config.passes):
        for minibatch in shuffled(samples, config.num_minibatches, generator, config.batch_size):
            loss, log = impala_loss(agent, minibatch, config)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            parallel.average_gradients(agent, len(minibatch.targets))
            nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
            optimizer.step()
            logs.append(log)
    ratios = samples.log_ratios.exp()
    return mean_of(logs) | {
        "explained_variance": float(explained_variance(samples.values, samples.targets)),
        "rho": float(ratios.clamp(max=config.rho_bar).mean()),
        "kl_behaviour": float((ratios - 1 - samples.log_ratios).mean()),
    }


def train(config: IMPALAConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("impala", config, launcher) as (env, place):
        agent = Agent(env.single_observation_space, env.single_action_space, **config.agent_options)
        agent.to(place.device)
        actor = agent.without_critic()
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        reward_scale = RewardScale(env.num_envs, config.gamma) if config.scale_rewards else None
        shuffling = torch.Generator().manual_seed(config.seed)
        prox = copy.deepcopy(actor)
        parts = {"agent": agent, "prox": prox, "optimizer": optimizer, "shuffling": shuffling}
        parts["scale"] = reward_scale
        with training("impala", config, place, parts, acting=actor) as run:
            env.reset(seed=run.reset_seed)
            with batches(env, actor, config) as collected:
                while run.goes_on:
                    if config.anneal_lr:
                        optimizer.param_groups[0]["lr"] = config.learning_rate * run.remaining
                    rollout = next(collected)
                    renewed = run.updates % config.prox_interval == 0
                    if renewed:
                        prox.load_state_dict(actor.state_dict())
                    samples = make_samples(agent, None if renewed else prox, rollout, config, reward_scale)
                    losses = update(agent, optimizer, samples, config, shuffling)
                    agent.observe(rollout.obs, rollout.valid)
                    run.log(rollout, env.stats(), losses)
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[IMPALAConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("impala", IMPALAConfig, argv)
