"""A vector of environments in this process: the one home of autoreset and of final observations."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv import native, passed_checks
from clusterenv.batches import ResetBatch, StepBatch, unmoved_step
from clusterenv.env_calls import ENV_ERRORS, build, common_spaces, id_of, number, snapshot
from clusterenv.errors import EnvError, SpaceError, StateError, say, shortened
from clusterenv.infos import blocks_of, plain_info
from clusterenv.layout import Nested, SpaceLayout
from clusterenv.values import Plain

Array = NDArray[Any]
Env = gym.Env[Any, Any]
Flags = NDArray[np.bool_]
Info = Mapping[str, Any]

logger = logging.getLogger(__name__)

_OBSERVATION = "observation of environment"
STEP, RESET, PASS_OVER = np.arange(3, dtype=np.uint8)
"""What a step does with a row, as `native.Environments` has it: it leaves resets to its caller."""


class Shard:
    """Steps and resets n environments, which hold the global indices from `first_env` on.

    Not thread-safe, but for `progress`, which any thread may read.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        *,
        first_env: int,
        autoreset_mode: AutoresetMode,
        same_bounds: bool = True,
    ) -> None:
        """Build all environments; without `same_bounds` their observation spaces may differ in bounds.

        Raises:
            EnvError: if a callable raises; those built before are closed.
            SpaceError: if a space cannot be batched, or the environments differ in theirs.
        """
        self.first_env = first_env
        self.autoreset_mode = autoreset_mode
        self._progress = np.zeros(4, np.int64)
        """Calls into environments; then the step and the row in work, and how many rows were not copied."""
        self.envs: list[Env] = []
        try:
            for index, env_fn in enumerate(env_fns, first_env):
                self.count_call()
                self.envs.append(build(env_fn, index))
            spaces = common_spaces(self.envs, first_env, same_bounds)
            self.single_observation_space, self.single_action_space = spaces
            self.obs_layout = SpaceLayout.of(self.single_observation_space, bounds=same_bounds)
            self.action_layout = SpaceLayout.of(self.single_action_space)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(self.envs)
        self.obs: list[Array] = self.obs_layout.zeros(self.num_envs)
        """Leaves [n, ...] of what the policy acts on next; overwritten by the next step."""
        self.ended: Flags = np.zeros(self.num_envs, np.bool_)
        """[n] rows whose episode ended in `step` and that were not reset since."""
        self.unready: Flags = np.ones(self.num_envs, np.bool_)
        """[n] rows that need a `reset` first: never reset, or their environment raised."""
        self._steps: list[Callable[..., Any]] = [env.step for env in self.envs]
        self.checks = passed_checks.Checks(self.envs, self._steps)
        self._rows: list[Any] = [None] * self.num_envs  # single observations, as the environments gave them
        self.calls = native.Environments(self._steps, self._rows, self.checks.limits, self._progress, number)
        """What steps the environments."""
        self.copies_at_once = self.obs_layout.structure == 0 and not self.obs_layout.objects
        """Whether an observation is one array, which goes to its place as soon as it is there."""

    @property
    def progress(self) -> int:
        """Goes up before every call into an environment, so that a hang can be seen from outside."""
        return int(self._progress[0])

    def count_call(self) -> None:
        """An environment is called now."""
        self._progress[0] += 1

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
        mask: Flags | None = None,
    ) -> ResetBatch:
        """Rows of `mask` [n] (all without one) are at the start of an episode; others keep their observation.

        Raises:
            EnvError: if an environment raises; it needs another reset.
        """
        infos: list[tuple[int, dict[str, Plain]]] = []
        for row in self.rows_of(mask):
            seed = None if seeds is None else seeds[row]
            infos.append(self._kept(row, self._reset_row(row, seed=seed, options=options)))
            self._pack_row(row)
        return ResetBatch(obs=self._copy_of_obs(), infos=blocks_of(infos))

    def reset_ended(self) -> None:
        """Rows that `step` left at the end of an episode are at the start of the next.

        Raises:
            StateError: if any row needs a `reset` first.
        """
        self._refuse(self.unready, "need a reset before they can act")
        for row in np.flatnonzero(self.ended).tolist():
            self._reset_row(row)
            self._pack_row(row)

    def step(self, actions: Sequence[Array], mask: Flags | None = None) -> StepBatch:
        """One step of the k rows of `mask` [n] (all without one) with action leaves [k, ...], in the mode.

        Raises:
            StateError: if a row must be reset first; no environment has moved.
            EnvError: if an environment raises; it alone needs a reset, rows before it have moved.
        """
        rows = self.rows_of(mask)
        asked: Flags | bool = True if mask is None else mask
        self._refuse(self.unready & asked, "need a reset before they can step")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            ended = self.ended & asked
            self._refuse(ended, 'have ended an episode: reset them with options={"reset_mask": mask}')
        batch = unmoved_step(self.num_envs)
        final_rows: list[int] = []
        final_obs: list[Any] = []
        infos: list[tuple[int, dict[str, Plain]]] = []
        own_actions = [leaf.copy() for leaf in actions]  # environments may keep them, and write into them
        singles = self.action_layout.unpack(own_actions, len(rows))
        if mask is not None:
            asked_singles = dict(zip(rows, singles, strict=True))
            singles = [asked_singles.get(row) for row in range(self.num_envs)]
        packed = False
        try:
            self._move(singles, self._plan(mask), batch, infos, final_rows, final_obs)
            packed = self.copies_at_once and not self._progress[3]
        except ENV_ERRORS as error:
            raise self._failure_of(error, singles) from error
        finally:
            if not packed:
                self._pack_rows(mask)
        batch.obs = [leaf.copy() if mask is None else leaf[mask] for leaf in self.obs]
        batch.infos = blocks_of(infos)
        batch.final_index = np.array(final_rows, np.int64)
        batch.final_obs = self.obs_layout.empty(len(final_obs))
        self._pack(final_obs, batch.final_obs)
        return batch if mask is None else batch.of_rows(mask)

    def _plan(self, mask: Flags | None) -> NDArray[np.uint8] | None:
        """[n] for `calls`: in NEXT_STEP rows at the end of an episode are reset in place of their step."""
        if mask is None and not self.ended.any():
            return None
        plan = np.where(self.ended, RESET, STEP)
        return plan if mask is None else np.where(mask, plan, PASS_OVER)

    def _move(
        self,
        singles: list[Any],
        plan: NDArray[np.uint8] | None,
        batch: StepBatch,
        infos: list[tuple[int, dict[str, Plain]]],
        final_rows: list[int],
        final_obs: list[Any],
    ) -> None:
        """One step, or reset, of the rows of `plan`, each with its part of `singles` [n].

        Rewards and flags [n] are put into `batch`, infos and what ended in SAME_STEP into the lists.
        """

        def keep(row: int, info: Info) -> None:
            self.ended[row] = batch.terminations[row] or batch.truncations[row]
            infos.append(self._kept(row, info))

        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        out = self.obs[0] if self.copies_at_once else None
        flags = batch.rewards, batch.terminations, batch.truncations
        row = 0
        while (row := self.calls.step(row, singles, out, *flags, plan, keep)) < self.num_envs:
            if plan is not None and plan[row] == RESET:
                infos.append(self._kept(row, self._reset_row(row)))
            else:
                self.ended[row] = True
            if self.ended[row] and same_step:
                # The environment may use its arrays and dicts again: keep what they say now.
                final_rows.append(row)
                final_obs.append(snapshot(self._rows[row]))
                if infos and infos[-1][0] == self.first_env + row:
                    batch.final_infos += blocks_of([infos.pop()])
                infos.append(self._kept(row, self._reset_row(row)))
            row += 1

    def step_into(
        self,
        actions: Sequence[Array],
        obs: Sequence[Array],
        rewards: Array,
        terminations: Flags,
        truncations: Flags,
        final_rows: list[int],
        final_obs: list[Any],
    ) -> None:
        """One SAME_STEP step of all rows, whatever the mode, written in place and without infos.

        The caller sees to it that no row is `ended` or `unready` (`reset_ended` does), and gives `self.obs`
        as `obs` in the last step before it calls anything else.

        Args:
            actions: leaves [n, ...].
            obs: leaves [n, ...] for the observations that the next actions are for.
            rewards: [n] float64.
            terminations: [n].
            truncations: [n].
            final_rows: rows whose episode ended are appended, in order.
            final_obs: their last single observations are appended, as copies.

        Raises:
            EnvError: if an environment raises; it alone needs a reset.
        """
        singles = self.action_layout.unpack(actions, self.num_envs)
        out = obs[0] if self.copies_at_once else None
        row = 0
        try:
            while True:
                row = self.calls.step(row, singles, out, rewards, terminations, truncations)
                if row == self.num_envs:
                    break
                final_rows.append(row)
                final_obs.append(self.end_episode(row))
                row += 1
        except ENV_ERRORS as error:
            raise self.failure_in_step(error, singles) from error
        if self._progress[3]:
            self.pack(obs)

    def counting_steps(self) -> AbstractContextManager[None]:
        """Inside nothing is called but steps and resets; wrappers that only count steps are passed by."""
        return self.checks.counting_steps()

    @property
    def step_in_work(self) -> int:
        """Number of the step that `calls` is in, where that is told several at once."""
        return int(self._progress[1])

    def end_episode(self, row: int) -> Nested:
        """A copy of the last observation of the row, which is at the start of the next episode.

        Raises:
            EnvError: if the environment raises.
        """
        final = snapshot(self._rows[row])
        self._reset_row(row)
        return final

    def pack(self, out: Sequence[Array]) -> None:
        """Leaves [n, ...] of `out` hold the observations as the environments gave them last.

        Raises:
            SpaceError: if one does not fit.
        """
        self._pack(self._rows, out)

    def failure_in_step(self, error: Exception | SystemExit, singles: Sequence[Any]) -> EnvError:
        """What `error`, of the row in work, is to the caller; `obs` holds the observations of all rows."""
        self.pack(self.obs)
        return self._failure_of(error, singles)

    def _failure_of(self, error: Exception | SystemExit, singles: Sequence[Any]) -> EnvError:
        if isinstance(error, EnvError):  # of the reset, or of one that could not be built anew
            return error
        row = int(self._progress[2])
        return self._failure(row, "step", error, singles[row])

    @property
    def env_id(self) -> str | None:
        """Id of the first environment's spec."""
        spec = self.envs[0].spec
        return None if spec is None else spec.id

    def rows_of(self, mask: Flags | None) -> Sequence[int]:
        """The rows that a mask [n] selects; all without one."""
        rows: Sequence[int] = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        return rows

    def close(self) -> None:
        """All environments are closed; those that raise are logged. May be called again."""
        envs, self.envs, self._steps = self.envs, [], []
        for index, env in enumerate(envs, self.first_env):
            try:
                env.close()
            except ENV_ERRORS:
                logger.exception("environment %d raised in close", index)

    def _refuse(self, rows: Flags, what: str) -> None:
        if rows.any():
            indices = (np.flatnonzero(rows) + self.first_env).tolist()
            some = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
            raise StateError(f"environments {some} {what}")

    def _reset_row(
        self, row: int, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Info:
        """The info of the reset; the observation is in `_rows`, not yet in `obs`."""
        self.count_call()
        self.unready[row] = True
        try:
            self._rows[row], info = self.envs[row].reset(
                seed=seed, options=None if options is None else dict(options)
            )
        except ENV_ERRORS as error:
            raise self._failure(row, "reset", error) from error
        self.unready[row] = False
        self.ended[row] = False
        self.checks.leave_out(row)
        return info

    def _kept(self, row: int, info: Info) -> tuple[int, dict[str, Plain]]:
        """What travels of an info, as it is before the next environment moves."""
        index = self.first_env + row
        try:
            return index, self._plain(index, info)
        except ENV_ERRORS as error:
            if isinstance(error, EnvError):
                raise
            raise EnvError(
                f"info of {self.name_of(row)} cannot be read: {say(error)}",
                env_index=index,
                remote_traceback="".join(traceback.format_exception(error)),
            ) from error

    @staticmethod
    def _plain(index: int, info: Info) -> dict[str, Plain]:
        if not isinstance(info, dict | Mapping):  # dict first: it is the one that is quick to check
            raise EnvError(
                f"info of environment {index} is {shortened(info)}; expected a dict", env_index=index
            )
        return plain_info(info) if info else {}

    def name_of(self, row: int) -> str:
        """The environment of a row, for messages."""
        return f"environment {self.first_env + row}{id_of(self.envs[row])}"

    def _failure(self, row: int, call: str, error: Exception | SystemExit, action: object = None) -> EnvError:
        """What the environment of `row` raised, once the row is marked as in need of a reset."""
        self.unready[row] = True
        text = shortened(action) if call == "step" else None
        doing = f"step with action {text}" if text else call
        return EnvError(
            f"{self.name_of(row)} failed in {doing}: {say(error)}",
            env_index=self.first_env + row,
            action=text,
            remote_traceback="".join(traceback.format_exception(error)),
        )

    def _pack(self, rows: Sequence[Any], out: Sequence[Array]) -> None:
        try:
            self.obs_layout.pack(rows, out, name=_OBSERVATION, first=self.first_env)
        except SpaceError:
            raise
        except Exception:  # an observation that raises when it is looked at: whose is it?
            for row in range(len(rows)):
                self._pack_one(rows[row], [leaf[row : row + 1] for leaf in out], self.first_env + row)
            raise

    def _pack_one(self, obs: Nested, out: Sequence[Array], index: int) -> None:
        try:
            self.obs_layout.pack([obs], out, name=_OBSERVATION, first=index)
        except SpaceError:
            raise
        except Exception as error:
            raise SpaceError(f"{_OBSERVATION} {index} cannot be read: {say(error)}") from error

    def _pack_rows(self, mask: Flags | None) -> None:
        if mask is None:
            self.pack(self.obs)
            return
        for row in self.rows_of(mask):
            self._pack_row(row)

    def _pack_row(self, row: int) -> None:
        out = [leaf[row : row + 1] for leaf in self.obs]
        self._pack_one(self._rows[row], out, self.first_env + row)

    def _copy_of_obs(self) -> list[Array]:
        return [leaf.copy() for leaf in self.obs]
