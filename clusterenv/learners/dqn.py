"""Deep Q-learning over `ClusterEnv.rollout`, to read downwards: options, agent, loss, loop.

Workers act greedily but for a share epsilon of random actions, which is one number that falls, or a number of
each environment (as in Ape-X, Horgan and others, 2018). What they did is replayed:

    minimise  huber(Q(s, a) - R_n - gamma^n Q_target(s_n, argmax_a' Q(s_n, a')))

the double form (van Hasselt and others, 2016) over n steps. The policy is a Categorical, so workers compare
it with the learner's like any other, and pull weights when the greedy actions have changed in enough states.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
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


@dataclass(frozen=True, kw_only=True)
class DQNConfig(Options):
    """Train an agent with DQN. The defaults shown are those of the environment named by --env-id."""

    envs_per_worker: int = 8
    """Environments of each worker."""
    num_steps: int = 4
    """Steps of every environment between two rounds of updates."""
    epsilon: Literal["falling", "by_env"] = "falling"
    """Share of random actions: one that falls, or one for each environment, from high to low (Ape-X)."""
    epsilon_start: float = 1.0
    """Share at the start if it falls; of the first environment if each has its own."""
    epsilon_end: float = 0.05
    """Share at the end of the fall; of the last environment."""
    epsilon_fraction: float = 0.1
    """Part of all steps in which it falls."""
    replay_capacity: int = 100_000
    """Transitions that are kept."""
    replay_file: Path | None = None
    """Keep them in this file, with which a later run of the same environment begins; none: one in run_dir."""
    learning_starts: int = 2_000
    """Transitions that must be there before learning starts."""
    replay_ratio: float = 8.0
    """Transitions learnt from for each one that is collected."""
    batch_size: int = 128
    """Transitions of each step of the optimiser."""
    n_steps: int = 3
    """Rewards summed before the value of what follows."""
    double: bool = True
    """Let the newest network choose the action that the target network values."""
    target_rate: float = 0.01
    """Share by which the target network follows at each step of the optimiser."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    gamma: float = 0.99
    """Discount."""
    max_grad_norm: float = 10.0
    """Largest norm of the gradient."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        super().__post_init__()
        check(
            self,
            whole=("num_steps", "replay_capacity", "learning_starts", "batch_size", "n_steps", "hidden"),
            fraction=("gamma", "epsilon_start", "epsilon_end", "epsilon_fraction", "target_rate"),
            positive=("epsilon_start", "replay_ratio", "learning_rate", "max_grad_norm"),
            finite=("replay_ratio", "learning_rate"),
        )
        if self.learning_starts > self.replay_capacity:
            raise ConfigError("learning_starts", self.learning_starts, "at most replay_capacity")

    @property
    def agent_options(self) -> dict[str, Any]:
        """Keyword arguments of the agent, other than its spaces."""
        return {"hidden": self.hidden, "num_envs": self.workers * self.envs_per_worker}

    def epsilons(self, steps: int) -> Tensor:
        """The share of random actions [num_envs] after `steps` of the run."""
        num_envs = self.workers * self.envs_per_worker
        if self.epsilon == "by_env":
            return torch.logspace(0, 1, num_envs, self.epsilon_end / self.epsilon_start) * self.epsilon_start
        done = min(1.0, steps / max(1.0, self.epsilon_fraction * self.total_steps))
        return torch.full((num_envs,), self.epsilon_start + done * (self.epsilon_end - self.epsilon_start))


class Agent(nn.Module):
    """The values of all actions, and the policy that is greedy but for random actions."""

    epsilons: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden: Sequence[int] = (128, 128),
        num_envs: int = 1,
    ) -> None:
        """Draw the weights from torch's global generator.

        Raises:
            SpaceError: if actions are not Discrete, or observations have no fixed size.
        """
        super().__init__()
        if not isinstance(action_space, gym.spaces.Discrete):
            raise SpaceError(f"DQN acts in Discrete spaces, not {action_space}")
        self.observation_space = observation_space
        self.first_action = int(action_space.start)
        sizes = [feature_size(observation_space), *hidden, int(action_space.n)]
        self.q = mlp(sizes, last_gain=0.1, activation=nn.ReLU)
        self.register_buffer("epsilons", torch.ones(num_envs))

    def distribution(self, obs: Obs, env_ids: Tensor) -> Categorical:
        """What workers act with: epsilon of each environment over all actions, the rest on the best."""
        values = self.q(flatten(self.observation_space, obs))
        epsilons = self.epsilons[env_ids][:, None]
        best = functional.one_hot(values.argmax(-1), values.shape[-1])
        return Categorical(probs=(1 - epsilons) * best + epsilons / values.shape[-1], validate_args=False)

    def choose(self, obs: Obs, *, deterministic: bool) -> Tensor:
        """The best actions [n] for the environment, also when those of other agents would be samples."""
        best: Tensor = self.q(flatten(self.observation_space, obs)).argmax(-1)
        return best + self.first_action


def q_loss(
    agent: Agent, target: nn.Module, rows: Rows, config: DQNConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss over replayed transitions [n], and what to log of it."""
    batch = tensors(rows, agent.epsilons.device)
    actions = batch["action"] - agent.first_action
    with torch.no_grad():
        following = target(batch["next_obs"])
        chosen = (agent.q(batch["next_obs"]) if config.double else following).argmax(-1, keepdim=True)
        best = following.gather(1, chosen).squeeze(1)
        targets = batch["reward"] + batch["discount"] * best
    values = agent.q(batch["obs"]).gather(1, actions[:, None]).squeeze(1)
    loss = functional.smooth_l1_loss(values, targets)
    return loss, {"q_loss": loss.detach(), "q": values.detach().mean()}


def update(
    agent: Agent,
    target: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    config: DQNConfig,
) -> dict[str, Tensor]:
    """One step of the optimiser, after which the target network follows; what to log."""
    loss, log = q_loss(agent, target, rows, config)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
    optimizer.step()
    follow(target, agent.q, config.target_rate)
    return log


def train(config: DQNConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("dqn", config, launcher) as (env, place):
        spaces = env.single_observation_space, env.single_action_space
        agent = Agent(*spaces, **config.agent_options)
        agent.to(place.device)
        target = copy.deepcopy(agent.q)
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, fused=True)
        transitions = NStepTransitions(*spaces, n_steps=config.n_steps, gamma=config.gamma)
        sampler = Sampler(
            seed=config.seed,
            batch_size=config.batch_size,
            replay_ratio=config.replay_ratio,
            learning_starts=config.learning_starts,
        )
        parts = {"agent": agent, "target": target, "optimizer": optimizer, "sampler": sampler}
        file = config.replay_file or place.folder / REPLAY_FILE
        spare = config.checkpoint_every + config.num_steps * env.num_envs  # a milestone may be a rollout late
        with (
            Replay(config.replay_capacity, transition_dtype(*spaces), file, spare=spare) as replay,
            training("dqn", config, place, {**parts, "replay": replay}, acting=agent) as run,
        ):
            env.reset(seed=run.reset_seed)
            while run.goes_on:
                agent.epsilons.copy_(config.epsilons(run.steps))
                rollout = env.rollout(agent, num_steps=config.num_steps)
                rows = transitions(rollout)
                replay.add(rows)
                batches = sampler.batches(replay, len(rows))
                logs = [update(agent, target, optimizer, sampled, config) for sampled in batches]
                losses = mean_of(logs) | {"epsilon": float(agent.epsilons.mean()), "replay": len(replay)}
                if run.log(rollout, env.stats(), losses):  # a milestone
                    transitions.start_over()
                    env.reset(seed=run.reset_seed)
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[DQNConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("dqn", DQNConfig, argv)
