"""What runs in a runner process: a shard of environments and a copy of the policy that acts in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import cloudpickle
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv import adapters, shard_calls
from clusterenv.adapters import Acted
from clusterenv.batches import ActBatch, Fragment, ResetBatch, StepBatch
from clusterenv.collector import Collector, looks_once, needs_rows_apart
from clusterenv.commands import (
    Abandoned,
    Act,
    BatchMapped,
    Call,
    CallBatch,
    Collect,
    Command,
    Done,
    Evaluate,
    EvaluateBatch,
    Failed,
    GiveUp,
    LoadState,
    MapBatch,
    News,
    Observe,
    Reply,
    Reset,
    RunnerReady,
    RunnerSetup,
    SetAgent,
    SetAttr,
    Step,
)
from clusterenv.errors import AgentError, EnvError, StateError
from clusterenv.in_place import MappedBatches
from clusterenv.rebuilding import RebuildingShard, telling_of_rebuilt
from clusterenv.recording import Recording, copy_leaves
from clusterenv.runner_policy import RunnerPolicy
from clusterenv.shard import Shard
from clusterenv.shard_setup import AnyShard, build_shard
from clusterenv.vector_shard import VectorShard

Array = NDArray[Any]
Nested = Any


class Runner:
    """Carries out commands, one at a time."""

    def __init__(self, setup: RunnerSetup, *, own_process: bool = False) -> None:
        """Build nothing yet. With `own_process` the state of the whole process may be set up for acting."""
        self._setup = setup
        self._own_process = own_process
        self._shard: AnyShard | None = None
        self._bounds: tuple[Array, Array] | None = None  # of Box actions
        self._stop = np.zeros(1, np.bool_)
        self.look_for_news: Callable[[], None] | None = None
        """Called between the steps of a Collect that may get news meanwhile; gives them to `take`."""
        self.agent_works = False
        """Whether the agent is at work, whose time is no environment's; any thread may read it."""
        self._given_up = False
        self._acts = 0
        self._was_reset = False
        self._noise_seed = setup.noise_seed
        self._env_ids = np.arange(setup.first_env, setup.first_env + setup.num_envs, dtype=np.int64)
        self._steps = np.zeros(setup.num_envs, np.int64)
        self._policy = RunnerPolicy(setup.num_envs)
        self._memory = self._policy.memory
        self._returns = np.zeros(setup.num_envs, np.float64)
        self._lengths = np.zeros(setup.num_envs, np.int64)
        self._batches = MappedBatches()

    @property
    def progress(self) -> int:
        """A count that goes up with every call into an environment or the agent; any thread may read it."""
        return self._acts + (0 if self._shard is None else self._shard.progress)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the answer any more; any thread may say so by `abandon`."""
        return bool(self._stop[0])

    def abandon(self) -> None:
        """A rollout ends after the step under way."""
        self._stop[0] = True

    def build(self) -> RunnerReady:
        """The environments exist.

        Raises:
            EnvError: if one cannot be built.
            SpaceError: if a space cannot be batched, or environments differ.
        """
        shard = self._shard = build_shard(self._setup)
        space = shard.single_action_space
        if isinstance(space, Box) and (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
            self._bounds = space.low, space.high
        return RunnerReady(
            obs_digest=shard.obs_layout.digest,
            action_digest=shard.action_layout.digest,
            action_layout=shard.action_layout,
            obs_layout=shard.obs_layout,
            env_id=shard.env_id,
        )

    def handle(self, command: Command) -> Reply:
        """The answer to a command; never raises an Exception."""
        self.agent_works = False
        if isinstance(self._shard, RebuildingShard):
            self._shard.take_lost()  # of a command that failed
        try:
            return telling_of_rebuilt(self._shard, _HANDLERS[type(command)](self, command))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - travels to the worker
            return Failed.of(error)
        except BaseException as error:  # such as a panic of an extension in Rust
            if not self._own_process:  # a Ctrl-C of the caller, in serial mode
                raise
            return Failed.of(error)

    def take(self, news: News) -> None:
        """Heed news that have come, between two steps or two commands."""
        if isinstance(news, GiveUp):
            self._given_up = True
        else:
            self._policy.take(news)

    def close(self) -> None:
        """All environments are closed."""
        if self._shard is not None:
            self._shard.close()

    # --- commands of the environments ----------------------------------------------------------------------

    def _reset(self, command: Reset) -> ResetBatch:
        if command.noise_seed is not None:
            self._noise_seed = command.noise_seed
            self._steps[:] = 0
        options = None if command.options is None else cloudpickle.loads(command.options)
        rows = slice(None) if command.mask is None else command.mask
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        self._begin_episodes(rows)
        with self._envs() as shard:
            batch = shard.reset(command.seeds, options, command.mask)
            batch.ended = (np.flatnonzero(shard.ended) + shard.first_env).tolist()
        self._was_reset = True
        return batch

    def _step(self, command: Step) -> StepBatch:
        with self._envs() as shard:
            return self._counted_step(shard, command.actions, command.mask)

    def _counted_step(
        self, shard: AnyShard, actions: list[Array], mask: NDArray[np.bool_] | None = None
    ) -> StepBatch:
        """One step in the shard's mode; a row that it merely reset has made no step of an episode."""
        rows = slice(None) if mask is None else mask
        moved = ~shard.ended[rows]
        batch = shard.step(actions, mask)
        if isinstance(shard, RebuildingShard):
            batch.lost = [shard.first_env + row for row in shard.take_lost()]
        goes_on = ~(batch.terminations | batch.truncations)
        at_end = ~goes_on if shard.autoreset_mode is AutoresetMode.SAME_STEP else ~moved
        self._begin_episodes(np.arange(self._setup.num_envs)[rows][at_end])
        self._returns[rows] = np.where(goes_on, self._returns[rows] + batch.rewards, 0.0)
        self._lengths[rows] = np.where(goes_on, self._lengths[rows] + moved, 0)
        return batch

    def _call(self, command: Call) -> CallBatch:
        with self._envs() as shard:
            return shard_calls.call(shard, command)

    def _set_attr(self, command: SetAttr) -> Done:
        with self._envs() as shard:
            shard_calls.set_attr(shard, command)
        return Done()

    # --- commands of the agent -----------------------------------------------------------------------------

    def _set_agent(self, command: SetAgent) -> Done:
        if self._own_process:
            adapters.prepare_runner()
        with self._envs() as shard:
            spaces = shard.single_observation_space, shard.single_action_space
            self._policy.set_agent(partial(adapters.loads, command.blob, *spaces))
        return Done()

    def _load_state(self, command: LoadState) -> Done:
        self._policy.load(command.version, command.state)
        return Done()

    def _evaluate(self, _: Evaluate) -> EvaluateBatch:
        self._policy.begin(None)
        adapter = self._policy.adapter
        with self._envs() as shard:
            obs = shard.obs_layout.nest(shard.obs)
            params = adapter.parameters(obs, env_ids=self._env_ids, state=self._memory.before_act())
        return EvaluateBatch(params=params, family=None if params is None else adapter.family)

    def _act(self, _: Act) -> ActBatch:
        self._policy.begin(None)
        with self._envs() as shard:
            state = self._memory.before_act()
            acted = self._decide(shard.obs_layout.nest(shard.obs), state, with_values=True)
            self._memory.moves_on(acted.state)
            return ActBatch(
                step=self._counted_step(shard, [self._clip(acted.actions)]),
                actions=[acted.actions],
                log_probs=acted.log_probs,
                values=acted.values,
                policy_version=self._policy.version,
                params=acted.params,
                family=self._policy.adapter.family,
                state=state,
            )

    def _observe(self, _: Observe) -> ResetBatch:
        with self._envs() as shard:
            return ResetBatch(obs=[leaf.copy() for leaf in shard.obs])

    def _map_batch(self, command: MapBatch) -> BatchMapped:
        with self._envs() as shard:
            apart = needs_rows_apart(self._policy, shard.obs_layout)
            return BatchMapped(not apart and self._batches.maps(command.place, shard.obs_layout))

    def _collect(self, command: Collect) -> Fragment | Abandoned:
        with self._envs() as shard:
            if shard.autoreset_mode is AutoresetMode.DISABLED:
                raise StateError(
                    "a rollout resets environments by itself: autoreset_mode must not be DISABLED"
                )
            if not self._was_reset:
                shard.reset()
                self._was_reset = True
            self._memory.begins |= shard.ended
            shard.reset_ended()
            self._memory.begins &= ~shard.ended
            layouts = shard.obs_layout, shard.action_layout
            self._given_up = False
            self._policy.begin(command.sync_at)
            self._memory.begins &= self._policy.acts_newest
            columns = self._batches.columns(layouts[0], self._env_ids) if command.in_place else None
            record = Recording(*layouts, command.num_steps, self._env_ids, self._memory, columns)
            if command.sync_at in ("step", "episode"):
                record.versions = np.empty((command.num_steps, shard.num_envs), np.int64)
            record.with_values = record.versions is not None or looks_once(layouts[0], shard.num_envs)
            try:
                with shard.counting_steps():
                    self._fill(record, shard, command)
            finally:
                self._memory.moves_on([leaf.copy() for leaf in record.state_at(record.steps_done)])
                self._memory.begins |= record.begun
                episodes = record.count_episodes(self._returns, self._lengths)
            if record.steps_done < command.num_steps:
                return Abandoned()
            adapter = self._policy.adapter
            self.agent_works = True
            return record.fragment(
                adapter.values,
                all_values=adapter.values_apart and not record.with_values,
                policy_version=self._policy.version,
                episodes=episodes,
                family=self._policy.family,
            )

    def _fill(self, record: Recording, shard: AnyShard, command: Collect) -> None:
        """The hot loop: one forward pass of the policy and one call of each environment per step.

        It ends early when it is told to give up.
        """
        look_for_news = None if command.sync_at is None else self.look_for_news
        collector = self._collector(shard, record) if type(shard) is Shard else None
        copy_leaves(shard.obs, record.obs_at(0))
        while (t := record.steps_done) < command.num_steps:
            obs = record.obs_at(t)
            try:
                self._refuse_if_abandoned()
                if look_for_news is not None:
                    look_for_news()
                    if self._given_up:
                        break
                steps = 1 if look_for_news is not None else command.num_steps - t
                if collector is not None and collector.advance(steps):
                    continue
                if record.versions is not None:
                    if self._policy.adopt_news():
                        record.begin_episodes(self._policy.acts_newest)
                    record.versions[t] = self._policy.versions
                nested = shard.obs_layout.nest(obs)
                acted = self._decide(nested, record.state_at(t), with_values=record.with_values)
            except (AgentError, StateError):
                copy_leaves(obs, shard.obs)
                raise
            record.keep(acted)
            self._step_recorded(record, shard, acted)
        copy_leaves(record.obs_at(record.steps_done), shard.obs)

    def _refuse_if_abandoned(self) -> None:
        if self.abandoned:
            raise StateError("the rollout was abandoned")

    def _collector(self, shard: Shard, record: Recording) -> Collector:
        return Collector(
            shard,
            record,
            self._policy,
            seed=self._noise_seed,
            env_ids=self._env_ids,
            steps=self._steps,
            singles=lambda actions: shard.action_layout.unpack([self._clip(actions.copy())]),
            stop=self._stop,
        )

    def _step_recorded(self, record: Recording, shard: AnyShard, acted: Acted) -> None:
        """One step of all environments with the actions that are recorded."""
        t = record.steps_done
        if isinstance(shard, VectorShard):  # it may reset in steps that are no transitions
            np.logical_not(shard.ended, out=record.valid[t])
        shard.step_into(
            [self._clip(acted.actions)],
            record.obs_at(t + 1),
            record.rewards[t],
            record.terminations[t],
            record.truncations[t],
            record.final_rows,
            record.final_obs,
        )
        if isinstance(shard, RebuildingShard):
            record.valid[t, shard.take_lost()] = False
        record.close_step(shard.ended)
        if record.versions is not None:
            self._policy.end_episodes(record.terminations[t] | record.truncations[t])

    # --- helpers -------------------------------------------------------------------------------------------

    def _decide(self, obs: Nested, state: list[Array], *, with_values: bool) -> Acted:
        """The policy's actions on a nested batch of observations of all rows, and what it remembers."""
        self._acts += 1
        self.agent_works = True
        acted = self._policy.act(
            obs,
            seed=self._noise_seed,
            env_ids=self._env_ids,
            steps=self._steps,
            with_values=with_values,
            state=state,
        )
        self.agent_works = False
        self._steps += 1
        return acted

    def _begin_episodes(self, rows: slice | Array) -> None:
        """The next observation of `rows` is the first of an episode."""
        begins = np.zeros_like(self._memory.begins)
        begins[rows] = True
        self._memory.begins |= begins
        self._policy.end_episodes(begins)

    def _clip(self, actions: Array) -> Array:
        """What the environments see of the policy's actions."""
        if self._bounds is None:
            return actions
        low, high = self._bounds
        clipped: Array = np.minimum(np.maximum(actions, low), high)
        return clipped

    @contextlib.contextmanager
    def _envs(self) -> Iterator[AnyShard]:
        """The shard; after an error that it does not know itself, all its rows need a reset."""
        shard = self._shard
        if shard is None:
            raise StateError("the environments have not been built")
        try:
            yield shard
        except (EnvError, AgentError, StateError):
            raise
        except BaseException:
            shard.unready[:] = True
            raise


_HANDLERS: Final[dict[type, Callable[[Runner, Any], Reply]]] = {
    Reset: Runner._reset,
    Step: Runner._step,
    Call: Runner._call,
    SetAttr: Runner._set_attr,
    SetAgent: Runner._set_agent,
    LoadState: Runner._load_state,
    Act: Runner._act,
    Evaluate: Runner._evaluate,
    Collect: Runner._collect,
    MapBatch: Runner._map_batch,
    Observe: Runner._observe,
}
