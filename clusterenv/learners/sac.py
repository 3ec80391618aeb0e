"""Soft actor-critic over `ClusterEnv.rollout` for continuous control: options, networks, losses, loop.

Of Haarnoja and others (2018), with twin critics and a temperature alpha that holds the policy's entropy at a
target. The policy is a Gaussian whose samples tanh maps into the bounds of the actions. Workers get no
critics; what they did is replayed:

    critics      minimise  (Q_i(s, a) - r - gamma (min_i Q_target_i(s', a') - alpha log pi(a'|s')))^2
    policy       maximise  min_i Q_i(s, a) - alpha log pi(a|s),   a drawn from the policy
    temperature  minimise  alpha (entropy of the policy - target)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution
from torch.nn import functional

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError, SpaceError
from clusterenv.learners import command_line
from clusterenv.learners.networks import Obs, feature_size, flatten, mlp
from clusterenv.learners.options import Options, check
from clusterenv.learners.replay import REPLAY_FILE, Replay, Rows, Sampler
from clusterenv.learners.runs import Summary
from clusterenv.learners.training import follow, launched, mean_of, training
from clusterenv.learners.transitions import NStepTransitions, tensors, transition_dtype

LOG_STD_RANGE = (-5.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class SACConfig(Options):
    """Train an agent with SAC. The defaults shown are those of the environment named by --env-id."""

    envs_per_worker: int = 4
    """Environments of each worker."""
    num_steps: int = 8
    """Steps of every environment between two rounds of updates."""
    replay_capacity: int = 1_000_000
    """Transitions that are kept."""
    replay_file: Path | None = None
    """Keep them in this file, with which a later run of the same environment begins; none: one in run_dir."""
    learning_starts: int = 5_000
    """Transitions that must be there before learning starts."""
    replay_ratio: float = 128.0
    """Transitions learnt from for each one that is collected."""
    batch_size: int = 256
    """Transitions of each step of the optimisers."""
    n_steps: int = 1
    """Rewards summed before the value of what follows; above 1 off-policy rewards bias the targets."""
    target_rate: float = 0.005
    """Share by which the target critics follow at each step of the optimisers."""
    learning_rate: float = 3e-4
    """Adam's step size of the policy and of the temperature."""
    critic_learning_rate: float = 1e-3
    """Adam's step size of the critics."""
    target_entropy: float | None = None
    """Nats, of actions scaled to [-1, 1]; none: minus the number of action dimensions."""
    start_alpha: float = 0.2
    """The temperature before it is tuned."""
    gamma: float = 0.99
    """Discount."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of the policy and of each critic."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        super().__post_init__()
        check(
            self,
            whole=("num_steps", "replay_capacity", "learning_starts", "batch_size", "n_steps", "hidden"),
            fraction=("gamma", "target_rate"),
            positive=("replay_ratio", "learning_rate", "critic_learning_rate", "start_alpha"),
            finite=("replay_ratio", "learning_rate", "critic_learning_rate", "start_alpha"),
        )
        if self.learning_starts > self.replay_capacity:
            raise ConfigError("learning_starts", self.learning_starts, "at most replay_capacity")
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError("target_entropy", self.target_entropy, "a finite number, or None")

    @property
    def agent_options(self) -> dict[str, Any]:
        """Keyword arguments of the agent, other than its spaces."""
        return {"hidden": self.hidden}


class Agent(nn.Module):
    """A Gaussian policy that tanh squashes into the bounds of the actions: all that workers need."""

    low: Tensor
    high: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden: Sequence[int] = (256, 256),
    ) -> None:
        """Draw the weights from torch's global generator.

        Raises:
            SpaceError: if actions are not bounded and one-dimensional, or observations have no fixed size.
        """
        super().__init__()
        box = gym.spaces.Box
        if not isinstance(action_space, box) or len(action_space.shape) != 1 or not action_space.is_bounded():
            raise SpaceError(f"SAC acts in one-dimensional Box spaces with bounds, not {action_space}")
        self.observation_space = observation_space
        self.size = action_space.shape[0]
        self.actor = mlp(
            [feature_size(observation_space), *hidden, 2 * self.size], last_gain=0.01, activation=nn.ReLU
        )
        self.register_buffer("low", torch.from_numpy(action_space.low).float())
        self.register_buffer("high", torch.from_numpy(action_space.high).float())

    def distribution(self, obs: Obs) -> TransformedDistribution:
        """What workers act with, over actions as the environment has them."""
        mean, log_std = self.gaussian(flatten(self.observation_space, obs))
        squash = [TanhTransform(), AffineTransform((self.high + self.low) / 2, (self.high - self.low) / 2)]
        gaussian = Independent(Normal(mean, log_std.exp(), validate_args=False), 1, validate_args=False)
        return TransformedDistribution(gaussian, squash, validate_args=False)

    def choose(self, obs: Obs, *, deterministic: bool) -> Tensor:
        """Actions [n, size] for the environment: of the Gaussian's mean, or a sample of the policy."""
        mean, log_std = self.gaussian(flatten(self.observation_space, obs))
        raw = mean if deterministic else mean + log_std.exp() * torch.randn_like(mean)
        return self.low + (raw.tanh() + 1) / 2 * (self.high - self.low)

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log deviations [n, size] before tanh, at flat observations [n, D]."""
        mean, log_std = self.actor(features).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def sample(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [n, size] scaled to [-1, 1], through which gradients flow, and their log-densities [n]."""
        mean, log_std = self.gaussian(features)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_density = -(0.5 * noise**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
        log_slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log (1 - tanh^2), stable
        return raw.tanh(), log_density - log_slope.sum(-1)

    def scaled(self, actions: Tensor) -> Tensor:
        """The environment's actions, scaled to [-1, 1]."""
        return 2 * (actions - self.low) / (self.high - self.low) - 1


class Critics(nn.Module):
    """Two networks side by side, computed at once: the values [2, n] of actions in states."""

    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        """Draw the weights of both from torch's global generator, as `nn.Linear` does."""
        super().__init__()
        layers = [[nn.Linear(*sizes) for _ in range(2)] for sizes in pairwise([inputs, *hidden, 1])]
        self.weights = nn.ParameterList([torch.stack([net.weight.T for net in both]) for both in layers])
        self.biases = nn.ParameterList([torch.stack([net.bias[None] for net in both]) for both in layers])

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Values [2, n] of actions [n, size] in [-1, 1] at flat observations [n, D]."""
        values = torch.cat([features, actions], dim=-1).expand(2, -1, -1)
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            values = torch.baddbmm(bias, values, weight).relu()
        return torch.baddbmm(last[1], values, last[0]).squeeze(-1)


class Learner:
    """The agent with all that learning needs beside it."""

    def __init__(self, agent: Agent, config: SACConfig) -> None:
        """Begin with target critics that are the critics, on the agent's device."""
        self.agent = agent
        device = agent.low.device
        self.critics = Critics(feature_size(agent.observation_space) + agent.size, config.hidden).to(device)
        self.target = copy.deepcopy(self.critics)
        self.log_alpha = nn.ParameterList([torch.tensor(math.log(config.start_alpha))]).to(device)
        self.config = config
        self.target_entropy = -agent.size if config.target_entropy is None else config.target_entropy
        tuned = [*agent.parameters(), *self.log_alpha]
        self.optimizer = torch.optim.Adam(tuned, lr=config.learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(
            self.critics.parameters(), lr=config.critic_learning_rate, fused=True
        )

    @property
    def parts(self) -> dict[str, Any]:
        """All that learning changes, by name."""
        names = ("agent", "critics", "target", "log_alpha", "optimizer", "critic_optimizer")
        return {name: getattr(self, name) for name in names}

    def critic_loss(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of both critics over replayed transitions [n], and what to log of it."""
        batch = tensors(rows, self.agent.low.device)
        next_obs = batch["next_obs"]
        with torch.no_grad():
            next_actions, log_probs = self.agent.sample(next_obs)
            best = self.target(next_obs, next_actions).min(0).values - self.log_alpha[0].exp() * log_probs
            targets = batch["reward"] + batch["discount"] * best
        taken = self.agent.scaled(batch["action"])
        values = self.critics(batch["obs"], taken)
        loss = 0.5 * ((values - targets) ** 2).mean(1).sum()
        return loss, {"critic_loss": loss.detach(), "q": values.detach().mean()}

    def policy_loss(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of policy and temperature, which do not see each other's gradient, and what to log."""
        obs = tensors(rows, self.agent.low.device)["obs"]
        actions, log_probs = self.agent.sample(obs)
        alpha = self.log_alpha[0].exp()
        policy_loss = (alpha.detach() * log_probs - self.critics(obs, actions).min(0).values).mean()
        excess = -log_probs.detach().mean() - self.target_entropy
        return policy_loss + alpha * excess, {
            "policy_loss": policy_loss.detach(),
            "entropy": -log_probs.detach().mean(),
            "alpha": alpha.detach(),
        }

    def update(self, rows: Rows) -> dict[str, Tensor]:
        """A step of the critics, one of policy and temperature, and the targets follow; what to log."""
        critic_loss, log = self.critic_loss(rows)
        self.critic_optimizer.zero_grad()
        torch.autograd.backward(critic_loss)
        self.critic_optimizer.step()

        self.critics.requires_grad_(False)
        policy_loss, policy_log = self.policy_loss(rows)
        self.optimizer.zero_grad()
        torch.autograd.backward(policy_loss)
        self.optimizer.step()
        self.critics.requires_grad_(True)

        follow(self.target, self.critics, self.config.target_rate)
        return log | policy_log


def train(config: SACConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("sac", config, launcher) as (env, place):
        spaces = env.single_observation_space, env.single_action_space
        agent = Agent(*spaces, **config.agent_options)
        agent.to(place.device)
        learner = Learner(agent, config)
        transitions = NStepTransitions(*spaces, n_steps=config.n_steps, gamma=config.gamma)
        sampler = Sampler(
            seed=config.seed,
            batch_size=config.batch_size,
            replay_ratio=config.replay_ratio,
            learning_starts=config.learning_starts,
        )
        parts = {**learner.parts, "sampler": sampler}
        file = config.replay_file or place.folder / REPLAY_FILE
        spare = config.checkpoint_every + config.num_steps * env.num_envs  # a milestone may be a rollout late
        with (
            Replay(config.replay_capacity, transition_dtype(*spaces), file, spare=spare) as replay,
            training("sac", config, place, {**parts, "replay": replay}, acting=agent) as run,
        ):
            env.reset(seed=run.reset_seed)
            while run.goes_on:
                rollout = env.rollout(agent, num_steps=config.num_steps)
                rows = transitions(rollout)
                replay.add(rows)
                logs = [learner.update(sampled) for sampled in sampler.batches(replay, len(rows))]
                if run.log(rollout, env.stats(), mean_of(logs) | {"replay": len(replay)}):  # a milestone
                    transitions.start_over()
                    env.reset(seed=run.reset_seed)
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[SACConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("sac", SACConfig, argv)
