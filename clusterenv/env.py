"""`ClusterEnv`: a `gymnasium.vector.VectorEnv` whose environments, and if wanted policy, run on workers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from clusterenv import reset_args
from clusterenv.acting import Acting
from clusterenv.batches import ActBatch, FrameReader, ResetBatch, StepBatch, absent_step
from clusterenv.config import EnvConfig, LocalConfig, ManualConfig, SlurmConfig
from clusterenv.errors import AgentError, ConfigError, StateError, UseAfterClose, WorkerLost
from clusterenv.head import Absent, Fresh, Reply, Returned
from clusterenv.infos import batch_infos, decode_infos
from clusterenv.layout import SpaceLayout
from clusterenv.peers import Peer
from clusterenv.probe import ProbeResult, probe, probe_inline
from clusterenv.rollout import Rollout
from clusterenv.session import (
    LauncherConfig,
    LocalSession,
    SerialSession,
    launch_script,
    open_session,
    search_path,
    worker_stats,
)
from clusterenv.sources import EnvFn, EnvSource, configured, deal, pickled
from clusterenv.transport import messages as m
from clusterenv_registry import resolve

Space = gym.Space[Any]
Nested = Any
"""Arrays, nested as a space nests."""
StepReturn = tuple[Nested, Any, Any, Any, dict[str, Any]]
R = TypeVar("R")
MOST_STEPS = 1 << 24
"""Of one rollout, whose rows are all held in memory."""


class ClusterEnv(VectorEnv[Any, Any, Any]):
    """Environments on workers, seen as one Gymnasium vector environment.

    Row i is the same environment for the whole life of the object. Every call ends within its deadlines
    (see `EnvConfig`) with a result or a typed error; after a lost worker the object is closed.
    """

    def __init__(
        self,
        env_config: EnvConfig | Mapping[str, Any] | Sequence[EnvFn] | str | None = None,
        launcher: LauncherConfig | None = None,
        **options: Any,
    ) -> None:
        """Check everything that can be checked here; nothing is started.

        Args:
            env_config: options as a mapping or EnvConfig, the id of an environment, or one callable for each
                environment, dealt over the workers in order.
            launcher: where workers run; none: `LocalConfig()`, processes of this machine.
            options: any option of `EnvConfig`; wins over `env_config`.

        Raises:
            ConfigError: if an option does not exist or has a value that cannot work.
        """
        self.config, env_fns = configured(env_config, options)
        self.launcher = LocalConfig() if launcher is None else launcher
        if not isinstance(self.launcher, LocalConfig | ManualConfig | SlurmConfig):
            raise ConfigError("launcher", launcher, "LocalConfig(...), SlurmConfig(...) or ManualConfig(...)")
        nodes = self.launcher.nodes
        if env_fns is None:
            config = self.config
            factory = resolve(config.type, config.env_name, config.env_kwargs, config.wrappers)
            env_fns = [factory] * (nodes * config.envs_per_node)
        elif len(env_fns) < nodes:
            raise ConfigError("callables", len(env_fns), f"at least one for each of the {nodes} workers")
        self.num_envs = len(env_fns)
        self._env_fns = env_fns
        self._source: EnvSource | None = None
        self._facts: ProbeResult | None = None
        self._session: LocalSession | SerialSession | None = None
        self._acting: Acting | None = None
        self._launched_by: Literal["launch", "reset"] | None = None
        self._last_obs: list[list[Any]] | None = None
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._closed = False
        self._keep_logs = False

    # --- before launch ----------------------------------------------------------------------------------

    def _facts_of_one(self) -> ProbeResult:
        """Spaces and the like, from one environment built apart; built once."""
        if self._facts is None:
            self._require_open()
            if isinstance(self.launcher, LocalConfig) and self.launcher.serial:
                self._facts = probe_inline(self._env_fns[0])
            else:
                source = self._pickled()
                self._facts = probe(
                    source.blobs[source.blob_of[0]],
                    sys_path=search_path(),
                    timeout_s=self.config.setup_timeout_s,
                )
        return self._facts

    def _pickled(self) -> EnvSource:
        if self._source is None:
            self._source = pickled(self._env_fns)
        return self._source

    @property
    def single_observation_space(self) -> Space:  # type: ignore[override]
        """The observation space of one environment."""
        return self._facts_of_one().single_observation_space

    @property
    def single_action_space(self) -> Space:  # type: ignore[override]
        """The action space of one environment."""
        return self._facts_of_one().single_action_space

    @property
    def observation_space(self) -> Space:  # type: ignore[override]
        """The space of a batch of observations."""
        return self._batched("_batched_obs_space", self.single_observation_space)

    @property
    def action_space(self) -> Space:  # type: ignore[override]
        """The space of a batch of actions; seed it yourself to sample from it reproducibly."""
        return self._batched("_batched_action_space", self.single_action_space)

    def _batched(self, name: str, single: Space) -> Space:
        if name not in self.__dict__:
            self.__dict__[name] = batch_space(single, self.num_envs)
        space: Space = self.__dict__[name]
        return space

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """The environment's metadata, with the autoreset mode of `step`."""
        return {**self._facts_of_one().metadata, "autoreset_mode": self._autoreset_mode}

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of one environment; None where it has none."""
        return self._facts_of_one().spec

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """The render mode of one environment."""
        return self._facts_of_one().render_mode

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether `close` was called or a worker was lost."""
        return self._closed

    @property
    def _autoreset_mode(self) -> AutoresetMode:
        return AutoresetMode.SAME_STEP if self.config.api == "gym" else self.config.autoreset_mode

    # --- life -------------------------------------------------------------------------------------------

    def launch(self) -> tuple[Space, Space]:
        """Start the workers and return (single_observation_space, single_action_space) once all are ready.

        Implied by the first `reset` or `rollout`; after such a one it only returns the spaces.

        Raises:
            StateError: on a second explicit launch.
            EnvError, LaunchError, SetupTimeout, WorkerLost: if workers or environments do not come up;
                nothing is left running.
        """
        self._require_open()
        if self._launched_by == "launch":
            raise StateError("launch was called before; make a new ClusterEnv for another run")
        if self._session is None:
            self._open("launch")
        self._launched_by = "launch"
        return self.single_observation_space, self.single_action_space

    def script(self) -> str:
        """What would be started, such as the job script, as text without secrets; no cluster is asked."""
        return launch_script(self.launcher)

    def _open(self, by: Literal["launch", "reset"]) -> None:
        facts = self._facts_of_one()
        layouts = self._layouts()
        counts = deal(self.num_envs, self.launcher.nodes)
        config = replace(self.config, autoreset_mode=self._autoreset_mode)
        self._session = open_session(config, self.launcher, self._pickled(), counts, layouts)
        spaces = (facts.single_observation_space, facts.single_action_space)
        self._acting = Acting(self._session.head, config, spaces, layouts)
        self._launched_by = by
        weakref.finalize(self, _close_session, self._session, os.getpid())  # when dropped, and at exit

    def _layouts(self) -> tuple[SpaceLayout, SpaceLayout]:
        if "_both_layouts" not in self.__dict__:
            facts = self._facts_of_one()
            both = (SpaceLayout.of(facts.single_observation_space), SpaceLayout.of(facts.single_action_space))
            self.__dict__["_both_layouts"] = both
        layouts: tuple[SpaceLayout, SpaceLayout] = self.__dict__["_both_layouts"]
        return layouts

    def __enter__(self) -> ClusterEnv:
        """The environments themselves; they are closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self, **_: Any) -> None:
        """End the workers and remove what the run made; takes a few seconds at most, twice is fine."""
        session, self._session = self._session, None
        self._closed = True
        if session is not None:
            session.close(keep_logs=self._keep_logs)

    def _require_open(self) -> None:
        if self._closed:
            raise UseAfterClose("these environments are closed; make a new ClusterEnv")

    def _running(self) -> LocalSession | SerialSession:
        self._require_open()
        if self._session is None:
            self._open("reset")
        assert self._session is not None
        return self._session

    # --- reset and step ---------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Nested:
        """Observations [N, ...] and infos after a reset of all environments, or of those of a mask.

        Args:
            seed: an int s seeds environment i with s + i, the policy's noise with s; or one entry for each.
            options: given to each environment; its `reset_mask`, bool [N], selects the environments and is
                left out of what they see. The dict itself is not changed.
        """
        self._require_open()
        seeds = reset_args.seeds(seed, self.num_envs)
        mask, remaining = reset_args.mask_and_options(options, self.num_envs)
        base = int(seed) % (1 << 62) if mask is None and reset_args.is_int(seed) else None
        payload = [] if remaining is None else [cloudpickle.dumps(remaining)]
        head = self._running().head
        if base is not None:
            head.seeded(base)
        self._call(head.wait_present)

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            part = None if mask is None else mask[peer.rows].tolist()
            message = m.ResetCommand(
                seeds=seeds[peer.rows], mask=part, has_options=remaining is not None, noise_seed=base
            )
            return message, payload

        batches = [
            self._reset_batch(outcome) for outcome in self._call(lambda: head.call(command, m.ResetReply))
        ]
        self._ended[slice(None) if mask is None else mask] = False
        obs = self._observed([batch.obs for batch in batches])
        if self.config.api == "gym":
            return obs
        return obs, batch_infos(_decoded(batch.infos for batch in batches), self.num_envs)

    def _reset_batch(self, outcome: Reply[m.ResetReply] | Returned | Absent) -> ResetBatch:
        """What a worker's reset gave; for one that is away its last observations, zeros if there are none."""
        layout, peer = self._layouts()[0], outcome.peer
        if isinstance(outcome, Absent):
            known = None if self._last_obs is None else self._last_obs[peer.rank]
            zeros = [np.zeros((peer.num_envs, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
            return ResetBatch(obs=known or zeros)
        return ResetBatch.of_frames(
            outcome.frames, layout, num_envs=peer.num_envs, infos=outcome.message.infos
        )

    def step(self, actions: Nested) -> Nested:
        """One step of every environment, with actions [N, ...] or with an agent that the workers act with.

        Args:
            actions: a batch for the action space, or an agent (see the user guide for its methods). With an
                agent, `info` holds what it says of the step: action, log_prob, value, and the actor's own
                behaviour_log_prob, policy_version, policy_lag, kl and sync_count.

        Returns:
            obs, reward, terminated, truncated, info; with `api="gym"` obs, reward, done, info.

        Raises:
            ActionError: if a batch does not fit; AgentError: if an object is no agent; nothing has moved.
        """
        self._require_open()
        if self._last_obs is None:
            raise StateError("step before reset; call reset first")
        if self._autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            rows = np.flatnonzero(self._ended).tolist()
            raise StateError(
                f"environments {rows} have ended and autoreset is disabled; reset them with "
                "reset(options={'reset_mask': mask}) first"
            )
        stepped = self._step_actions(actions) if _is_batch(actions) else self._step_agent(actions)
        return _older(stepped) if self.config.api == "gym" else stepped

    def _step_actions(self, actions: Nested) -> StepReturn:
        obs_layout, action_layout = self._layouts()
        leaves = action_layout.batched_actions(actions, self.num_envs)
        head = self._running().head

        def command(peer: Peer) -> tuple[m.Message, Sequence[Any]]:
            return m.StepCommand(), [np.ascontiguousarray(leaf[peer.rows]) for leaf in leaves]

        def batch(reply: Reply[m.StepReply]) -> StepBatch:
            message = reply.message
            reader = FrameReader(reply.frames)
            read = reader.done(StepBatch.read(reader, obs_layout, reply.peer.num_envs, message.num_final))
            read.infos, read.final_infos = message.infos, message.final_infos
            return read

        outcomes = self._call(lambda: head.call(command, m.StepReply, fresh=Fresh.SHOW))
        return self._stepped([batch(o) if isinstance(o, Reply) else o for o in outcomes], {})

    def _step_agent(self, agent: object) -> StepReturn:
        self._running()
        assert self._acting is not None
        assert self._last_obs is not None
        acting, last_obs = self._acting, self._last_obs
        acted = self._call(lambda: acting.act(agent, last_obs))
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        info = {**acted.info, **{f"_{key}": everyone.copy() for key in acted.info}}
        return self._stepped([o.step if isinstance(o, ActBatch) else o for o in acted.outcomes], info)

    def _stepped(self, outcomes: Sequence[StepBatch | Returned | Absent], info: dict[str, Any]) -> StepReturn:
        batches = [o if isinstance(o, StepBatch) else self._without_step(o) for o in outcomes]
        if not all(isinstance(outcome, StepBatch) for outcome in outcomes):
            info = info | self._who_is_missing(outcomes)
        terminated = np.concatenate([batch.terminations for batch in batches])
        truncated = np.concatenate([batch.truncations for batch in batches])
        if self._autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended = terminated | truncated
        infos = batch_infos(_decoded(batch.infos for batch in batches), self.num_envs)
        infos |= self._finals(batches)
        return (
            self._observed([batch.obs for batch in batches]),
            np.concatenate([batch.rewards for batch in batches]),
            terminated,
            truncated,
            infos | info,
        )

    def _without_step(self, outcome: Returned | Absent) -> StepBatch:
        """The rows of a worker that did not step: lost in this step, away, or back with a reset."""
        peer = outcome.peer
        if isinstance(outcome, Returned):
            batch = self._reset_batch(outcome)
            step = absent_step(batch.obs, peer.num_envs)
            step.infos = batch.infos
            return step
        assert self._last_obs is not None
        return absent_step(self._last_obs[peer.rank], peer.num_envs, truncated=outcome.just_lost)

    def _who_is_missing(self, outcomes: Sequence[StepBatch | Returned | Absent]) -> dict[str, Any]:
        """`valid` and `worker_lost` of every row."""
        valid = np.ones(self.num_envs, np.bool_)
        worker_lost = np.zeros(self.num_envs, np.bool_)
        for outcome in outcomes:
            if not isinstance(outcome, StepBatch):
                valid[outcome.peer.rows] = False
                worker_lost[outcome.peer.rows] = isinstance(outcome, Absent) and outcome.just_lost
        everyone = np.ones(self.num_envs, np.bool_)
        return {
            "valid": valid,
            "_valid": everyone,
            "worker_lost": worker_lost,
            "_worker_lost": everyone.copy(),
        }

    def _finals(self, batches: list[StepBatch]) -> dict[str, Any]:
        """`final_obs` and `final_info` of the rows that ended and were reset in the same step."""
        if not any(len(batch.final_index) for batch in batches):
            return {}
        assert self._session is not None
        final_obs = np.full(self.num_envs, None, dtype=object)
        layout = self._layouts()[0]
        for peer, batch in zip(self._session.head.peers, batches, strict=True):
            for k, row in enumerate(batch.final_index):
                final_obs[peer.first_env + row] = layout.nest([leaf[k].copy() for leaf in batch.final_obs])
        ended = np.array([obs is not None for obs in final_obs], dtype=np.bool_)
        final_info = batch_infos(_decoded(batch.final_infos for batch in batches), self.num_envs)
        finals: dict[str, Any] = {"final_obs": final_obs, "_final_obs": ended}
        return finals | {"final_info": final_info, "_final_info": ended.copy()}

    def _observed(self, parts: list[list[Any]]) -> Nested:
        """The caller's own batch; the workers' leaves are kept for the next step with an agent."""
        self._last_obs = parts
        return self._layouts()[0].nest([np.concatenate(leaves) for leaves in zip(*parts, strict=True)])

    # --- with an agent ----------------------------------------------------------------------------------

    def rollout(self, agent: object, num_steps: int) -> Rollout:
        """[num_steps, N] transitions in one round trip, the policy acting on the workers.

        Environments are reset in the same step, whatever the mode of `step`; a rollout before any reset
        performs one with the configured seed. Afterwards `step` goes on from the rollout's last observations.

        Raises:
            AgentError: if `agent` has none of the methods that workers can act with.
            ConfigError: if num_steps is not a whole number from 1.
            StateError: if autoreset is disabled.
        """
        self._require_open()
        if not reset_args.is_int(num_steps) or not 1 <= num_steps <= MOST_STEPS:
            raise ConfigError("num_steps", num_steps, f"a whole number from 1 to {MOST_STEPS}")
        if self._autoreset_mode is AutoresetMode.DISABLED:
            raise StateError("rollout resets environments as they end; autoreset_mode is DISABLED")
        _require_agent(agent)
        if self._last_obs is None:
            self.reset(seed=self.config.seed)
        session = self._running()
        acting = self._acting
        assert acting is not None
        batch = self._call(lambda: acting.rollout(agent, int(num_steps)))
        assert self._last_obs is not None
        last = self._layouts()[0].flatten(batch.last_obs)
        for peer in session.head.peers:
            if batch.valid[:, peer.rows].any():
                self._last_obs[peer.rank] = [leaf[peer.rows].copy() for leaf in last]
        self._ended[:] = False
        return batch

    def publish(self, agent: object) -> int:
        """The agent's present state is what workers compare with from now on; returns its version."""
        self._running()
        acting = self._acting
        assert acting is not None
        return self._call(lambda: acting.publish(agent)).version

    def _call(self, run: Callable[[], R]) -> R:
        """Run a call to all workers; when one is lost, close before its error goes on."""
        try:
            return run()
        except (WorkerLost, KeyboardInterrupt) as error:
            self._keep_logs = isinstance(error, WorkerLost)
            self.close()
            raise

    # --- the rest ---------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What each worker does and how many bytes went where; see the user guide for the keys."""
        self._require_open()
        if self._session is None or self._acting is None:
            raise StateError("stats before launch; call launch or reset first")
        head, traffic = self._session.head, self._session.traffic
        workers = [worker_stats(peer, self._acting.version) for peer in head.peers]
        return {
            "workers": workers,
            "steps": sum(worker["steps"] for worker in workers),
            "policy_version": self._acting.version,
            "weight_bytes_sent": head.weight_bytes_sent,
            "check_bytes_sent": head.check_bytes_sent,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "late_replies": head.late_replies,
            "refused_messages": traffic.refused_messages,
            "threads": {"runners": [peer.welcome.runners for peer in head.peers]},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles to a closed stub with the spaces, since an agent often holds a global `env`."""
        return _closed_stub, (self._facts_of_one() if not self._closed else self._facts, self.num_envs)

    def __repr__(self) -> str:
        """The type or id, number of environments and launcher."""
        name = self.config.env_name or self.config.type
        return f"ClusterEnv({name!r}, num_envs={self.num_envs}, launcher={self.launcher!r})"


def _decoded(parts: Iterable[list[bytes]]) -> list[tuple[int, dict[str, Any]]]:
    """(global row, info) of all blocks, by row."""
    rows = [row for blocks in parts for block in blocks for row in decode_infos(block)]
    return sorted(rows, key=lambda row: row[0])


def _is_batch(value: object) -> bool:
    """Whether `step` was given actions and not an agent."""
    return hasattr(value, "__array__") or isinstance(value, list | tuple | dict | int | float | str | None)


def _require_agent(agent: object) -> None:
    if _is_batch(agent):
        raise AgentError(f"rollout needs an agent, but was given {type(agent).__name__}")


def _older(stepped: StepReturn) -> tuple[Any, Any, Any, dict[str, Any]]:
    """obs, reward, done, info as before Gymnasium, time limits told in `info`."""
    obs, reward, terminated, truncated, info = stepped
    info["TimeLimit.truncated"] = truncated & ~terminated
    if "final_obs" in info:
        info["final_observation"], info["_final_observation"] = info["final_obs"], info["_final_obs"]
    return obs, reward, terminated | truncated, info


def _close_session(session: LocalSession | SerialSession, pid: int) -> None:
    if os.getpid() == pid:  # not in a process forked from ours
        session.close(keep_logs=False)


def _closed_stub(facts: ProbeResult | None, num_envs: int) -> ClusterEnv:
    stub = ClusterEnv.__new__(ClusterEnv)
    stub.config, stub.launcher = EnvConfig(), LocalConfig()
    stub.num_envs = num_envs
    stub.__dict__.update(_facts=facts, _session=None, _acting=None, _closed=True)
    return stub
