"""The one process of a node: takes commands, keeps the policy fresh, and never runs user code itself.

`Worker` is a state machine without a loop or a socket of its own, so that serial mode can drive it directly.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterenv import values
from clusterenv.batches import ActBatch, Fragment, FrameReader, ResetBatch, StepBatch
from clusterenv.behaviour_policy import BehaviourPolicy
from clusterenv.commands import (
    Act,
    Call,
    CallBatch,
    Collect,
    Command,
    Done,
    Failed,
    FetchStep,
    MapBatch,
    Reset,
    RunnerSetup,
    SetAgent,
    SetAttr,
    Step,
)
from clusterenv.errors import ClusterEnvError, DeadlineError, EnvError, RunnerLost
from clusterenv.in_place import Place
from clusterenv.layout import SpaceLayout
from clusterenv.priority import give_way
from clusterenv.transport import messages as m
from clusterenv.worker_stream import WorkerStream

if TYPE_CHECKING:
    from clusterenv.pool import Pool

LONGEST_TEXT = 1 << 16
"""Characters of an error that travel."""

Frames = Sequence[Any]
Mask = NDArray[np.bool_]
Send = Callable[[m.Message, Frames, int], None]
MakePool = Callable[[RunnerSetup, int], "Pool"]
Starting = Callable[[], AbstractContextManager[None]]


class Worker:
    """Carries out one command after the other over a pool, each answered under its sequence number."""

    def __init__(self, send: Send, make_pool: MakePool, starting: Starting = nullcontext) -> None:
        """Wait for a Welcome; `send(message, frames, sequence)` reaches the head.

        Environments are built inside `starting()`, which may keep the connection alive meanwhile.
        """
        self._send = send
        self._make_pool = make_pool
        self._starting = starting
        self._policy = BehaviourPolicy(self._run, lambda request: send(request, (), 0))
        self._commands: deque[tuple[int, m.Message, list[Any]]] = deque()
        self._then: Callable[[Any], None] | None = None
        self._sequence = 0
        self._stream: WorkerStream | None = None
        self._action_layout: SpaceLayout | None = None
        self.steps = 0
        self.pool: Pool | None = None
        self.welcome: m.Welcome | None = None
        self.closing: str | None = None
        self.exit_code = 0

    # --- what drives it ---------------------------------------------------------------------------------

    def on_message(self, sequence: int, message: m.Message, frames: list[Any]) -> None:
        """Take a message from the head."""
        if isinstance(message, m.Welcome):
            self._start(message, frames)
        elif isinstance(message, m.Refused):
            self._end(f"the head refused this worker: {message.reason}", exit_code=2)
        elif isinstance(message, m.CloseCommand):
            self._send(m.Goodbye(reason=message.reason), (), sequence)
            self._end(message.reason)
        elif isinstance(message, m.WeightsReply):
            self._policy.on_weights(message, frames)
        elif isinstance(message, m.Published | m.Room | m.StopStream):
            if self._stream is not None and sequence == self._sequence:
                self._stream.on_message(message, frames)
        elif not isinstance(message, m.HeartbeatAck):
            self._commands.append((sequence, message, frames))
            self._next_command()

    def on_pool(self) -> None:
        """Take what the pool has finished, if it has."""
        while self.pool is not None and self._then is not None:
            reply = self.pool.poll()
            if reply is None:
                return
            proceed, self._then = self._then, None
            if isinstance(reply, Failed):
                self._fail(reply)
            else:
                proceed(reply)

    def check(self, now: float) -> None:
        """End in good order when a runner is lost or an environment hangs."""
        if self.pool is None or self.closing is not None:
            return
        try:
            self.pool.check(now)
        except (RunnerLost, DeadlineError) as error:
            kind = "timeout" if isinstance(error, DeadlineError) else "runner_lost"
            code = error.exit_code if isinstance(error, RunnerLost) else None
            self._send(m.Failure(kind=kind, message=str(error), exit_code=code), (), self._sequence)
            self._end(str(error), exit_code=1)

    @property
    def busy(self) -> bool:
        """Whether a command is in work; of a stream, whether a fragment is."""
        return bool(self._working_on) if self._stream is None else self._stream.busy

    @property
    def _working_on(self) -> int:
        """Sequence number of the command in work, whichever way it came."""
        return self._sequence or (0 if self.pool is None else self.pool.lane_work()[1])

    def leave(self) -> None:
        """Begin nothing more by itself, since this process is about to end."""
        if self._stream is not None:
            self._stream.leave()

    def heartbeat(self) -> m.Heartbeat:
        """The sign of life that is due now and then."""
        by_lane = 0 if self.pool is None else self.pool.lane_work()[0]
        return m.Heartbeat(steps=self.steps + by_lane, working_on=self._working_on)

    def close(self, timeout_s: float) -> None:
        """End all runners; nothing is left running."""
        if self.pool is not None:
            self.pool.close(timeout_s)

    # --- commands ---------------------------------------------------------------------------------------

    def _start(self, welcome: m.Welcome, frames: list[Any]) -> None:
        self.welcome = welcome
        self._policy.start(welcome)
        cores = welcome.runners or min(granted_cores(os.environ), welcome.num_envs)
        setup = RunnerSetup(
            first_env=welcome.first_env,
            num_envs=welcome.num_envs,
            env_blobs=[bytes(frame) for frame in frames],
            env_blob_of=list(welcome.env_blob_of),
            noise_seed=welcome.noise_seed,
            autoreset_mode=welcome.autoreset_mode,
            sys_path=list(welcome.sys_path),
            step_timeout_s=welcome.step_timeout_s,
            cpus=None,
            same_bounds=welcome.same_bounds,
            backend=welcome.backend,
            num_threads=cores,
            env_rebuilds=welcome.env_rebuilds,
        )
        self.pool = self._make_pool(setup, cores if welcome.backend is None else 1)
        try:
            with self._starting():
                ready = self.pool.start(welcome.setup_timeout_s)
                shared = self._share(welcome)
        except EnvError as error:
            self._refuse_setup("env", error, error.env_index, error.remote_traceback)
        except ClusterEnvError as error:
            self._refuse_setup("setup", error, None, "")
        else:
            self._action_layout = ready.action_layout
            threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
            self._send(
                m.Ready(
                    obs_digest=ready.obs_digest,
                    action_digest=ready.action_digest,
                    pids=self.pool.pids(),
                    threads=int(threads) if threads.isdecimal() else 0,
                    shared=shared,
                ),
                (),
                0,
            )

    def _share(self, welcome: m.Welcome) -> m.SharedMemory | None:
        """The memory that a head on this host may use."""
        if self.pool is None or welcome.head_host != socket.gethostname():
            return None
        segment = self.pool.share()
        return None if segment is None else m.SharedMemory(**dataclasses.asdict(segment))

    def _refuse_setup(self, kind: str, error: ClusterEnvError, env: int | None, remote: str) -> None:
        text = str(error).removesuffix(remote.rstrip()).rstrip() if remote else str(error)
        failure = m.Failure(kind=kind, message=_end_of(text), traceback=_end_of(remote), env_index=env)
        self._send(failure, (), 0)
        self._end(text, exit_code=1)

    def _next_command(self) -> None:
        """Begin the oldest waiting command, when none is in work."""
        if self._sequence or not self._commands or self.pool is None:
            return
        self._sequence, message, frames = self._commands.popleft()
        if isinstance(message, m.ResetCommand):
            self._reset(message, frames)
        elif isinstance(message, m.StepCommand):
            mask = _mask(message.mask)
            self._run(Step(actions=self._action_leaves(frames, mask), mask=mask), self._stepped)
        elif isinstance(message, m.FetchStepCommand):
            self._run(FetchStep(), self._answer_step)
        elif isinstance(message, m.CallCommand):
            command = Call(name=message.name, arguments=bytes(frames[0]), mask=_mask(message.mask))
            self._run(command, self._called)
        elif isinstance(message, m.SetAttrCommand):
            blobs = values.split(frames[0], message.num_values)
            self._run(SetAttr(name=message.name, values=blobs, mask=_mask(message.mask)), self._done)
        elif isinstance(message, m.AgentMessage):
            self._policy.forget()
            self._run(SetAgent(blob=bytes(frames[0])), self._done)
        elif isinstance(message, m.ActCommand):
            self._policy.freshen(message, frames, partial(self._run, Act(), self._acted))
        elif isinstance(message, m.RolloutCommand):
            self._policy.freshen(message, frames, partial(self._collect, message))
        elif isinstance(message, m.StreamCommand):
            self._begin_stream(message)

    def _collect(self, message: m.RolloutCommand) -> None:
        """Into the head's memory, if it has given some and all runners can write there."""
        steps = message.num_steps
        if message.memory is None:
            self._run(Collect(num_steps=steps), self._collected)
            return
        place = Place(num_steps=steps, **msgspec.structs.asdict(message.memory))
        collect = partial(Collect, num_steps=steps)
        self._run(MapBatch(place), lambda mapped: self._run(collect(in_place=mapped.yes), self._collected))

    def _begin_stream(self, message: m.StreamCommand) -> None:
        assert self.pool is not None
        if message.yields:
            give_way()
        in_fragments = message.sync_at != "fragment"
        self._policy.begin_stream(message.max_lag, self.pool.tell if in_fragments else None)
        self._stream = WorkerStream(
            message, self._policy, self._run, self.pool.tell, self._send_fragment, self._stream_ended
        )
        self._stream.go_on()

    def _reset(self, message: m.ResetCommand, frames: list[Any]) -> None:
        if message.noise_seed is not None:
            self._policy.start_over()
        command = Reset(
            seeds=list(message.seeds),
            options=bytes(frames[0]) if message.has_options else None,
            mask=_mask(message.mask),
            noise_seed=message.noise_seed,
        )
        self._run(command, self._was_reset)

    def _action_leaves(self, frames: list[Any], mask: Mask | None) -> list[Any]:
        assert self._action_layout is not None
        assert self.pool is not None
        rows = self.pool.num_envs if mask is None else int(mask.sum())
        reader = FrameReader(frames)
        return reader.done(reader.leaves(self._action_layout, rows))

    def _run(self, command: Command | FetchStep, then: Callable[[Any], None]) -> None:
        assert self.pool is not None
        self._then = then
        self.pool.submit(command)
        self.on_pool()

    # --- answers ----------------------------------------------------------------------------------------

    def _answer(self, message: m.Message, frames: Frames = ()) -> None:
        sequence, self._sequence = self._sequence, 0
        if self._stream is not None:
            self._stream = None
            self._policy.end_stream()
        self._send(message, frames, sequence)
        self._next_command()

    def _fail(self, failed: Failed) -> None:
        self._answer(
            m.Failure(
                kind=failed.kind,
                message=_end_of(failed.message),
                traceback=_end_of(failed.traceback),
                env_index=failed.env_index,
                action=None if failed.action is None else _end_of(failed.action),
            )
        )

    def _done(self, _: Done) -> None:
        self._answer(m.Ack())

    def _was_reset(self, batch: ResetBatch) -> None:
        reply = m.ResetReply(infos=batch.infos, rebuilt=_rebuilt(batch), ended=batch.ended)
        self._answer(reply, batch.frames())

    def _stepped(self, batch: StepBatch) -> None:
        self.steps += len(batch.rewards)
        self._answer_step(batch)

    def _answer_step(self, batch: StepBatch) -> None:
        reply = m.StepReply(
            num_final=len(batch.final_index),
            infos=batch.infos,
            final_infos=batch.final_infos,
            rebuilt=_rebuilt(batch),
            lost=batch.lost,
        )
        self._answer(reply, batch.frames())

    def _called(self, batch: CallBatch) -> None:
        self._answer(m.CallReply(), [values.join(batch.results)])

    def _acted(self, batch: ActBatch) -> None:
        self.steps += len(batch.log_probs)
        reply = m.ActReply(
            policy=self._policy.info(batch.policy_version),
            sample=self._policy.keep_step(batch),
            num_final=len(batch.step.final_index),
            infos=batch.step.infos,
            final_infos=batch.step.final_infos,
            rebuilt=_rebuilt(batch.step),
            lost=batch.step.lost,
        )
        self._answer(reply, batch.frames())

    def _collected(self, fragment: Fragment) -> None:
        self._answer(self._reply(fragment), fragment.frames())

    def _send_fragment(self, fragment: Fragment) -> None:
        """One of many answers."""
        self._send(self._reply(fragment), fragment.frames(), self._sequence)

    def _stream_ended(self, ended: m.StreamEnded, batch: ResetBatch) -> None:
        self._answer(ended, batch.frames())

    def _reply(self, fragment: Fragment) -> m.FragmentReply:
        self.steps += fragment.rewards.size
        family = fragment.family
        number = self._policy.keep_sample(fragment)
        return m.FragmentReply(
            policy=self._policy.info(fragment.policy_version),
            num_sampled=len(fragment.sampled_states[0]) if fragment.sampled_states else 0,
            fragment=number,
            num_steps=fragment.num_steps,
            num_final=len(fragment.final_index),
            episodes=[
                m.Episode(env_id=e.env_id, episode_return=e.episode_return, length=e.length)
                for e in fragment.episodes
            ],
            family=None if family is None else family.kind.value,
            family_sizes=[] if family is None else list(family.sizes),
            has_versions=fragment.versions is not None,
            rebuilt=_rebuilt(fragment),
            in_place=fragment.in_place,
        )

    def _end(self, reason: str, exit_code: int = 0) -> None:
        self.closing = reason
        self.exit_code = exit_code


def _end_of(text: str) -> str:
    """`text`, or its end, where an error says what happened, if it is too long for a message."""
    return text if len(text) <= LONGEST_TEXT else "... " + text[-LONGEST_TEXT:]


def _rebuilt(batch: ResetBatch | StepBatch | Fragment) -> list[m.Rebuilt]:
    return [m.Rebuilt(env_id=each.env_id, error=each.error) for each in batch.rebuilt]


def _mask(mask: list[bool] | None) -> Mask | None:
    return None if mask is None else np.array(mask, dtype=np.bool_)


def granted_cores(environ: Mapping[str, str]) -> int:
    """Cores that this process may use: those of its affinity, or fewer where Slurm has granted fewer.

    Not every site binds tasks to their cores; the others trust jobs to use no more than they asked for.
    """
    told = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or ""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(told))) if told.isdigit() else cores
