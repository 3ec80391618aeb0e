"""A3C over `ClusterEnv.stream`, to read downwards: options, loop. The loss is that of A2C.

Of Mnih and others (2016): workers act on their own and each fragment makes one step of the optimiser when it
arrives, whoever made it. Nothing corrects for the age of the policy that acted: it is kept young instead, by
short fragments, and workers that pull whatever has been published when they begin one. Where the paper's
workers compute gradients, ours send what they saw, and the learner uses its newest weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.learners import command_line
from clusterenv.learners.a2c import A2CConfig, update
from clusterenv.learners.moments import RewardScale
from clusterenv.learners.networks import Agent
from clusterenv.learners.options import check
from clusterenv.learners.runs import Summary
from clusterenv.learners.training import launched, training


@dataclass(frozen=True, kw_only=True)
class A3CConfig(A2CConfig):
    """Train an agent with A3C. The defaults shown are those of the environment named by --env-id."""

    sync: str = "every"
    """"every" (at each fragment), or "adaptive", "interval:k", "broadcast" or "never"."""
    num_steps: int = 8
    """Steps of every environment of a worker in a fragment, which makes one update."""
    queue: int = 1
    """Fragments of one worker that may be made before the learner takes one; more: older policies."""

    def __post_init__(self) -> None:
        """Check what ClusterEnv does not check itself."""
        super().__post_init__()
        check(self, whole=("queue",))


def train(config: A3CConfig, launcher: LocalConfig | SlurmConfig | None = None) -> Summary:
    """Train, and return what it took; the run's folder holds its metrics, curves and newest checkpoint.

    However the run ends, by an interrupt too, its agent is in the checkpoint and no process is left.

    Args:
        config: the options of the algorithm.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    with launched("a3c", config, launcher) as (env, place):
        agent = Agent(env.single_observation_space, env.single_action_space, **config.agent_options)
        agent.to(place.device)
        actor = agent.without_critic()
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        reward_scale = RewardScale(env.num_envs, config.gamma) if config.scale_rewards else None
        parts = {"agent": agent, "optimizer": optimizer, "scale": reward_scale}
        with training("a3c", config, place, parts, acting=actor) as run:
            env.reset(seed=run.reset_seed)
            with env.stream(actor, config.num_steps, queue=config.queue) as fragments:
                while run.goes_on:
                    if config.anneal_lr:
                        optimizer.param_groups[0]["lr"] = config.learning_rate * run.remaining
                    fragment = next(fragments)
                    losses = update(agent, optimizer, fragment, config, reward_scale)
                    run.log(fragment, env.stats(), losses)
    return run.summary()


def parse(argv: Sequence[str]) -> tuple[A3CConfig, LocalConfig | SlurmConfig]:
    """The options of a command line, over those of its file and its environment; where the workers run."""
    return command_line.parse("a3c", A3CConfig, argv)
