"""What training runs have in common: how they begin, go on and end, and minibatches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clusterenv import ClusterEnv, LocalConfig, Rollout, SlurmConfig
from clusterenv.learners import interrupts, parallel
from clusterenv.learners.checkpoints import Checkpoint
from clusterenv.learners.devices import learner_device
from clusterenv.learners.heads import heading, succeed
from clusterenv.learners.image_networks import network_for
from clusterenv.learners.launching import described
from clusterenv.learners.options import Options
from clusterenv.learners.parallel_launch import check_learners, learners_here
from clusterenv.learners.parallel_runs import Follower, of_all_learners
from clusterenv.learners.resuming import GlobalGenerators, milestone, reset_seed, restore, state_of
from clusterenv.learners.run_folder import Place, default_folder, ready_folder
from clusterenv.learners.runs import Run, Summary, plain
from clusterenv.learners.threads import available_cores, learner_threads

SamplesT = TypeVar("SamplesT", bound=Any)  # a dataclass of tensors


@contextmanager
def launched(
    algorithm: str, config: Options, launcher: LocalConfig | SlurmConfig | None
) -> Iterator[tuple[ClusterEnv, Place]]:
    """Environments whose workers are up, and the place of the run; torch is seeded.

    Args:
        algorithm: names the folder, if `config` does not.
        config: the options of the run.
        launcher: where the workers run; none: on this machine, as many as `config` says.
    """
    check_learners(algorithm, config.learners)
    learner_device(config.device, large=True)  # before anything is waited for
    launcher = launcher or LocalConfig(nodes=config.workers_of_learner, serial=config.serial)
    torch.manual_seed(config.seed)
    folder = config.resume or config.run_dir or default_folder(algorithm, config.env_id, config.seed)
    if config.resume is not None:
        milestone(config.resume, algorithm)
    with ClusterEnv(config.env_options, launcher) as env:
        if parallel.rank():
            env.launch()
            yield env, _ready(config, env, folder, launcher)
            return
        with ready_folder(folder, resume=config.resume is not None), ExitStack() as ends:
            succeed(folder)
            ends.enter_context(heading(folder))
            env.launch()
            until_the_end = ends.pop_all()
        with until_the_end:
            yield env, _ready(config, env, folder, launcher)


def _ready(config: Options, env: ClusterEnv, folder: Path, launcher: LocalConfig | SlurmConfig) -> Place:
    """The place of a run, once torch has the threads that the learner's network is worth."""
    network = config.agent_options.get("network", "mlp")
    large = network_for(network, env.single_observation_space) != "mlp"
    threads = learner_threads(large=large, cores=available_cores() // learners_here())
    torch.set_num_threads(config.num_threads or threads)
    parallel.all_ready(config.learner_timeout + _queueing_s(launcher))
    return Place(folder, launcher, learner_device(config.device, large=large, rank=parallel.rank()))


def _queueing_s(launcher: LocalConfig | SlurmConfig) -> float:
    """How much longer than another one's a learner's workers may be in coming."""
    if isinstance(launcher, LocalConfig):
        return 0.0
    return math.inf if launcher.queue_timeout_s is None else launcher.queue_timeout_s


class Training:
    """A run that goes on until its options say it is done; saves what is due after each update."""

    def __init__(
        self, algorithm: str, config: Options, run: Run | Follower, parts: Mapping[str, Any]
    ) -> None:
        """Go on from the last milestone, if `config` says so; `parts` are those of `resuming`."""
        self._algorithm = algorithm
        self._config = config
        self._run = run
        self._parts = {"run": run, "generators": GlobalGenerators(), **parts}
        if config.resume is not None:
            restore(self._parts, milestone(config.resume, algorithm).training)
        parallel.share(self._parts["agent"].state_dict())

    @property
    def goes_on(self) -> bool:
        """Whether neither the steps, nor the duration, nor the return asked for have been reached."""
        return bool(parallel.of_first(self._is_to_go_on()))

    def _is_to_go_on(self) -> bool:
        run, config = self._run, self._config
        if run.reached(config.stop_at_return):
            run.ended = "return"
        elif config.duration is not None and run.seconds >= config.duration:
            run.ended = "duration"
        elif run.steps < config.total_steps:
            return True
        return False

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._run.steps

    @property
    def updates(self) -> int:
        """Batches learnt from so far."""
        return self._run.updates

    @property
    def remaining(self) -> float:
        """What is left of the run, of its steps or of its duration if that is less, from 1 to 0."""
        done = self._run.steps / self._config.total_steps
        if self._config.duration is not None:
            done = max(done, self._run.seconds / self._config.duration)
        return parallel.of_first(max(0.0, 1 - done))

    @property
    def reset_seed(self) -> int:
        """For the reset of all environments at the start, and at each milestone."""
        earlier = parallel.rank() * self._config.workers_of_learner * self._config.envs_per_worker
        return reset_seed(self._config.seed, self._run.steps) + earlier  # environment i gets i more

    def log(self, rollout: Rollout, stats: Mapping[str, Any], losses: Mapping[str, float]) -> bool:
        """Count one update made with `rollout`, show it, and save what is due; whether that was a milestone.

        A run that goes on from a milestone is the one that never stopped if all environments are reset there.
        """
        logged = of_all_learners(rollout, stats, losses, self._run.usage.told())
        self._run.log(logged.rollout, logged.stats, logged.losses)
        if self._run.milestone_is_due():
            self._run.save_milestone(self._checkpoint(state_of(self._parts)))
            self._share_generators()
            return True
        if self._run.checkpoint_is_due():
            self.save()
        return False

    def save(self) -> None:
        """Replace the checkpoint by the agent as it is."""
        self._run.save(self._checkpoint({}))

    def summary(self) -> Summary:
        """What the run has done so far."""
        return self._run.summary()

    def _share_generators(self) -> None:
        """All learners go on with the first one's generators, as they will if the run is resumed here."""
        for part in self._parts.values():
            if isinstance(part, torch.Generator):
                state = part.get_state()
                parallel.share({"state": state})
                part.set_state(state)

    def _checkpoint(self, training: Mapping[str, Any]) -> Checkpoint:
        agent: nn.Module = self._parts["agent"]
        return Checkpoint(
            algorithm=self._algorithm,
            env_id=self._config.env_id,
            steps=self._run.steps,
            agent=agent.state_dict(),
            agent_options=self._config.agent_options,
            optimizer=self._parts["optimizer"].state_dict(),
            config=plain(self._config),
            training=dict(training),
        )


@contextmanager
def training(
    algorithm: str, config: Options, place: Place, parts: Mapping[str, Any], *, acting: nn.Module
) -> Iterator[Training]:
    """A run at `place`, begun or gone on with; however it ends, its agent is saved.

    Args:
        algorithm: its name on the command line.
        config: every option.
        place: that `launched` gave.
        parts: all that the run changes, as `resuming.Parts`; "agent" and "optimizer" among them. None: none.
        acting: what workers act with.
    """
    with _run(algorithm, config, place, acting) as run:
        present = {name: part for name, part in parts.items() if part is not None}
        course = Training(algorithm, config, run, present)
        try:
            yield course
        finally:
            interrupts.hold()
            course.save()


def _run(algorithm: str, config: Options, place: Place, acting: nn.Module) -> Run | Follower:
    """The run's files and counters, and of another learner than the first the counters alone."""
    if parallel.rank():
        return Follower(config.checkpoint_every)
    return Run(
        algorithm,
        config,
        place.folder,
        total_steps=config.total_steps,
        weight_bytes=sum(tensor.nbytes for tensor in acting.state_dict().values()),
        checkpoint_every=config.checkpoint_every,
        log_interval=config.log_interval,
        launcher=described(place.launcher),
        resume=config.resume is not None,
    )


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """The parameters of `target` move towards those of `source` by a share of the way."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """The share of the variance of returns [n] that the values [n] of the critic explain: 1 is all of it."""
    return 1 - (returns - values).var(correction=0) / (returns.var(correction=0) + 1e-8)


def mean_of(logs: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The means of what was logged at each of some steps of the optimiser."""
    return {name: float(torch.stack([log[name] for log in logs]).mean()) for name in logs[0]} if logs else {}


def shuffled(
    samples: SamplesT, num_minibatches: int, generator: torch.Generator, batch_size: int | None = None
) -> list[SamplesT]:
    """All rows of a dataclass of tensors [rows, ...] in a new order, in minibatches of nearly one size.

    There are as many as rows of at most `batch_size` need, if that is given. Each of several learners has as
    many, if need be without rows; `batch_size` counts the rows of all of them together.
    """
    columns = [getattr(samples, item.name) for item in dataclasses.fields(samples)]
    order = torch.randperm(len(columns[0]), generator=generator)
    most = parallel.most(len(order))
    if batch_size is not None:
        num_minibatches = math.ceil(most * parallel.size() / batch_size)
    return [
        type(samples)(*(column[rows] for column in columns))
        for rows in order.to(columns[0].device).tensor_split(min(num_minibatches, most))
    ]
