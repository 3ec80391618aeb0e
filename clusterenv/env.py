"""`ClusterEnv`: a `gymnasium.vector.VectorEnv` whose environments, and if wanted policy, run on workers.

The way of `step(actions)`: `stepping` sends each worker its rows by `head`; there `worker` gives them to its
`pool`, each `runner` of that steps its `shard`; the answers come back as `batches` and are joined in `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gymnasium.vector import AutoresetMode

from clusterenv import reset_args
from clusterenv.called import Called
from clusterenv.calling import checked_rows
from clusterenv.checks import is_int
from clusterenv.commands import SyncAt
from clusterenv.config import EnvConfig
from clusterenv.errors import ActionError, AgentError, ConfigError, StateError
from clusterenv.facts import EnvFacts
from clusterenv.launched import Launched
from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
from clusterenv.layout import Nested
from clusterenv.rollout import Rollout
from clusterenv.rows import StepReturn
from clusterenv.run import Run
from clusterenv.session import LauncherConfig, search_path
from clusterenv.sources import EnvFn, backend_of, configured
from clusterenv.streaming import Stream, StreamOptions
from clusterenv_registry import resolve

Seed = int | Sequence[int | None] | None
MOST_STEPS = 1 << 24
"""Of one rollout, whose rows are all held in memory."""
MOST_FRAGMENTS = 1 << 16
MOST_QUEUED = 16
"""Fragments of one batch of a stream, and of one worker that nobody has taken."""


class ClusterEnv(Called):
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
        super().__init__()
        config, env_fns = configured(env_config, options)
        self.launcher = LocalConfig() if launcher is None else launcher
        if not isinstance(self.launcher, LocalConfig | ManualConfig | SlurmConfig):
            raise ConfigError("launcher", launcher, "LocalConfig(...), SlurmConfig(...) or ManualConfig(...)")
        nodes = self.launcher.nodes
        if env_fns is None:
            factory = resolve(config.type, config.env_name, config.env_kwargs, config.wrappers)
            env_fns = [factory] * (nodes * config.envs_per_node)
        elif len(env_fns) < nodes:
            raise ConfigError("callables", len(env_fns), f"at least one for each of the {nodes} workers")
        if config.env_rebuilds and backend_of(env_fns) is not None:
            raise ConfigError(
                "on_env_error", config.on_env_error, '"raise" where a backend makes the environments'
            )
        self.num_envs = len(env_fns)
        if config.batch_size is not None and config.batch_size > self.num_envs:
            raise ConfigError("batch_size", config.batch_size, f"at most num_envs = {self.num_envs}")
        self.config = config
        self._name = getattr(env_fns[0], "name", None) or config.env_name or config.type
        serial = isinstance(self.launcher, LocalConfig) and self.launcher.serial
        self._facts = EnvFacts(env_fns, config, search_path(), inline=serial)

    # --- reset and step ---------------------------------------------------------------------------------

    def reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> Nested:
        """Observations [N, ...] and infos after a reset of all environments, or of those of a mask.

        Args:
            seed: an int s seeds environment i with s + i, the policy's noise with s; or one entry for each.
                After an int, workers act with the newest weights: what follows depends on s and the agent.
            options: given to each environment; its `reset_mask`, bool [N], selects the environments and is
                left out of what they see. The dict itself is not changed.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """Environments are being reset as `reset` does; `reset_wait` gives what it returns."""
        self._require_free("reset")
        args = reset_args.checked(seed, options, self.num_envs)
        run = self._running()
        self._call(run.send_recv.stop)
        stepping = run.stepping
        pending = self._call(lambda: stepping.begin_reset(args))
        if args.noise_seed is not None:
            run.acting.start_over()
        self._awaiting.begun("reset", pending, lambda: stepping.finish_reset(pending, args))

    def reset_wait(self, timeout: float | None = None) -> Nested:
        """What `reset` returns, within `timeout` seconds if given.

        Raises:
            CallTimeout: if not; it may be called again.
        """
        obs, info = self._finished("reset", timeout)
        return obs if self.config.api == "gym" else (obs, info)

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
        if _is_batch(actions):
            self.step_async(actions)
            return self.step_wait()
        self._require_idle("step")
        run = self._stepped_run()
        stepping = run.stepping
        acted = self._call(lambda: run.acting.act(actions, stepping.present_obs()))
        run.send_recv.others_moved()
        step = stepping.stepped(acted.outcomes)
        step[4].update(acted.info)
        return self._as_asked(step)

    def step_async(self, actions: Nested) -> None:
        """All environments step with a batch of actions; `step_wait` gives what `step` returns."""
        self._require_idle("step")
        if not _is_batch(actions):
            raise ActionError(f"step_async takes a batch of actions; for {type(actions).__name__} use step")
        run = self._stepped_run()
        stepping = run.stepping
        leaves = self._facts.layouts[1].batched_actions(actions, self.num_envs)
        pending = self._call(lambda: stepping.begin_step(leaves))
        run.send_recv.others_moved()
        self._awaiting.begun("step", pending, lambda: stepping.finish_step(pending))

    def step_wait(self, timeout: float | None = None) -> Nested:
        """What `step` returns, within `timeout` seconds if given.

        Raises:
            CallTimeout: if not; it may be called again.
        """
        return self._as_asked(self._finished("step", timeout))

    def _stepped_run(self) -> Run:
        """The run, if every environment can step."""
        run = self._reset_run("step")
        self._call(run.stepping.look_for_ends)
        run.stepping.refuse_ended()
        return run

    def _reset_run(self, doing: str) -> Run:
        """The run, if its environments have been reset once."""
        if self._run is None or self._run.stepping.last_obs is None:
            raise StateError(f"{doing} before reset; call reset (or async_reset) first")
        return self._run

    def _as_asked(self, step: StepReturn) -> Nested:
        return _older(step) if self.config.api == "gym" else step

    # --- send and recv ----------------------------------------------------------------------------------

    def async_reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """All environments are being reset; `recv` gives them as they are ready, `batch_size` at a time.

        What was on its way is forgotten. Arguments are those of `reset`, but for the mask.

        Raises:
            StateError: if autoreset is disabled.
        """
        self._require_free("async_reset")
        if self._facts.autoreset_mode is AutoresetMode.DISABLED:
            raise StateError("async_reset needs environments that reset themselves; autoreset is disabled")
        args = reset_args.checked(seed, options, self.num_envs)
        if args.mask is not None:
            raise ConfigError("options['reset_mask']", args.mask, "nothing: async_reset resets them all")
        run = self._running()
        self._call(lambda: run.send_recv.reset(args))

    def send(self, actions: Nested, env_id: Sequence[int] | None = None) -> None:
        """Environments step with actions [k, ...], while others may still be on their way.

        Args:
            actions: a batch for k environments.
            env_id: their numbers, as `info["env_id"]` has them; none: those that the last `recv` gave.

        Raises:
            ActionError, ConfigError, StateError: if something does not fit; nothing has moved.
            EnvError: if an environment raised in what was sent before; see `recv`.
        """
        self._require_free("send")
        asked = None if env_id is None else checked_rows(env_id, self.num_envs, "env_id")
        run = self._reset_run("send")
        ids = run.send_recv.checked_ids(asked)
        leaves = self._facts.layouts[1].batched_actions(actions, len(ids))
        self._call(lambda: run.send_recv.send(leaves, ids))

    def recv(self) -> Nested:
        """What `step` returns, of the next `batch_size` environments that have stepped or been reset.

        `info["env_id"]` holds their numbers.

        Raises:
            StateError: if fewer are on their way.
            EnvError: if an environment raised; `reset` or `async_reset` goes on.
        """
        self._require_free("recv")
        run = self._reset_run("recv")
        return self._as_asked(self._call(run.send_recv.recv))

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
        self._check_acting("rollout", agent, num_steps)
        run = self._ready_for(agent)
        batch = self._call(lambda: run.acting.rollout(agent, int(num_steps)))
        run.send_recv.others_moved()
        run.stepping.goes_on_from(batch.last_obs, batch.policy_version)
        return batch

    def stream(
        self,
        agent: object,
        num_steps: int = 128,
        *,
        fragments: int = 1,
        sync_at: str = "fragment",
        queue: int = 2,
    ) -> Stream:
        """Batches [num_steps, n] of what workers make on their own, never waiting for the learner.

        Each batch holds the next `fragments` fragments of single workers, as they arrive (`batch.workers`,
        `batch.env_ids`). With each batch asked for, the agent's present state is published; a worker compares
        and pulls between two fragments by itself. Environments are reset as in `rollout`.

        Args:
            agent: as for `rollout`; the same one for the whole stream.
            num_steps: of each fragment.
            fragments: in one batch.
            sync_at: where new weights begin to act: "fragment" (the next one), "step" (the next one, inside a
                fragment) or "episode" (each environment's next one).
            queue: fragments of one worker that may be made or on their way before the learner takes one.

        Raises:
            AgentError, ConfigError, StateError: as `rollout`; StateError also if a stream is open.
        """
        self._check_acting("stream", agent, num_steps)
        if not is_int(fragments) or not 1 <= fragments <= MOST_FRAGMENTS:
            raise ConfigError("fragments", fragments, f"a whole number from 1 to {MOST_FRAGMENTS}")
        if not is_int(queue) or not 1 <= queue <= MOST_QUEUED:
            raise ConfigError("queue", queue, f"a whole number from 1 to {MOST_QUEUED}")
        if sync_at not in get_args(SyncAt):
            raise ConfigError("sync_at", sync_at, ", ".join(f'"{place}"' for place in get_args(SyncAt)))
        run = self._ready_for(agent)
        options = StreamOptions(
            num_steps=int(num_steps), fragments=int(fragments), sync_at=sync_at, queue=int(queue)
        )
        self._call(lambda: run.streaming.open(agent, options))
        run.send_recv.others_moved()
        return Stream(run.streaming, self._streamed)

    def _check_acting(self, doing: str, agent: object, num_steps: object) -> None:
        """Return if environments can be collected from with these arguments."""
        self._require_idle(doing)
        if not is_int(num_steps) or not 1 <= num_steps <= MOST_STEPS:
            raise ConfigError("num_steps", num_steps, f"a whole number from 1 to {MOST_STEPS}")
        if self._facts.autoreset_mode is AutoresetMode.DISABLED:
            raise StateError(f"{doing} resets environments as they end; autoreset_mode is DISABLED")
        if _is_batch(agent):
            raise AgentError(f"{doing} needs an agent, but was given {type(agent).__name__}")

    def _ready_for(self, agent: object) -> Run:
        """The run, its environments reset once; an agent that cannot act is refused before anything moves."""
        if self._run is None or self._run.stepping.last_obs is None:
            self.publish(agent)
            self.reset(seed=self.config.seed)
        return self._running()

    def publish(self, agent: object) -> int:
        """The agent's present state is what workers compare with from now on; returns its version.

        While a stream is open it takes only the agent of that.
        """
        run = self._run
        if run is not None and run.streaming.is_open and not run.streaming.is_dropped:
            self._require_open()
            return self._call(lambda: run.streaming.publish(agent))
        self._require_idle("publish")
        acting = self._running().acting
        return self._call(lambda: acting.publish(agent)).version

    # --- the rest ---------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What each worker does and how many bytes went where; see the user guide for the keys."""
        self._require_open()
        if self._run is None:
            raise StateError("stats before launch; call launch or reset first")
        return self._run.stats()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles to a closed stub with the spaces, since an agent often holds a global `env`."""
        return _closed_stub, (self._facts, self.num_envs, self._name)

    def __repr__(self) -> str:
        """The type or id, number of environments and launcher."""
        return f"ClusterEnv({self._name!r}, num_envs={self.num_envs}, launcher={self.launcher!r})"


def _is_batch(value: object) -> bool:
    """Whether `step` was given actions and not an agent."""
    return hasattr(value, "__array__") or isinstance(value, list | tuple | dict | int | float | str | None)


def _older(step: StepReturn) -> tuple[Any, Any, Any, dict[str, Any]]:
    """obs, reward, done, info as before Gymnasium, time limits told in `info`."""
    obs, reward, terminated, truncated, info = step
    info["TimeLimit.truncated"] = truncated & ~terminated
    if "final_obs" in info:
        info["final_observation"], info["_final_observation"] = info["final_obs"], info["_final_obs"]
    return obs, reward, terminated | truncated, info


def _closed_stub(facts: EnvFacts, num_envs: int, name: str) -> ClusterEnv:
    stub = ClusterEnv.__new__(ClusterEnv)
    stub.config, stub.launcher, stub.num_envs = EnvConfig(), LocalConfig(), num_envs
    Launched.__init__(stub)
    stub._facts, stub._name, stub._closed = facts, name, True
    return stub
