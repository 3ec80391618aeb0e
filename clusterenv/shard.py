"""A vector of environments in this process: the one home of autoreset and of final observations."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from clusterenv.batches import ResetBatch, StepBatch
from clusterenv.errors import EnvError, SpaceError, StateError
from clusterenv.infos import encode_infos
from clusterenv.layout import Nested, SpaceLayout

Array = NDArray[Any]
Env = gym.Env[Any, Any]
Flags = NDArray[np.bool_]
Info = Mapping[str, Any]

logger = logging.getLogger(__name__)

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32})
_OBSERVATION = "observation of environment"
_ENV_ERRORS = (Exception, SystemExit)  # environments with a window exit when it is closed


class Shard:
    """Steps and resets n environments, which hold the global indices from `first_env` on.

    Not thread-safe, but for `progress`, which any thread may read.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Env]], *, first_env: int, autoreset_mode: AutoresetMode
    ) -> None:
        """Build all environments.

        Raises:
            EnvError: if a callable raises; those built before are closed.
            SpaceError: if a space cannot be batched, or the environments differ in theirs.
        """
        self.first_env = first_env
        self.autoreset_mode = autoreset_mode
        self.progress = 0
        """Goes up before every call into an environment, so that a hang can be seen from outside."""
        self.envs: list[Env] = []
        try:
            for index, env_fn in enumerate(env_fns, first_env):
                self.progress += 1
                self.envs.append(_build(env_fn, index))
            self.single_observation_space, self.single_action_space = self._common_spaces()
            self.obs_layout = SpaceLayout.of(self.single_observation_space)
            self.action_layout = SpaceLayout.of(self.single_action_space)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(self.envs)
        self.obs: list[Array] = [np.zeros_like(leaf) for leaf in self.obs_layout.empty(self.num_envs)]
        """Leaves [n, ...] of what the policy acts on next; overwritten by the next step."""
        self.ended: Flags = np.zeros(self.num_envs, np.bool_)
        """[n] rows whose episode ended in `step` and that were not reset since."""
        self.unready: Flags = np.ones(self.num_envs, np.bool_)
        """[n] rows that need a `reset` first: never reset, or their environment raised."""
        self._steps = [env.step for env in self.envs]
        self._rows: list[Any] = [None] * self.num_envs  # single observations, as the environments gave them
        self._rewards: list[Any] = [0.0] * self.num_envs

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
        infos: list[tuple[int, Info]] = []
        for row in range(self.num_envs):
            if mask is None or mask[row]:
                seed = None if seeds is None else seeds[row]
                infos.append((self.first_env + row, self._reset_row(row, seed=seed, options=options)))
                self._pack_row(row)
        return ResetBatch(obs=self._copy_of_obs(), infos=_blocks(infos))

    def reset_ended(self) -> None:
        """Rows that `step` left at the end of an episode are at the start of the next.

        Raises:
            StateError: if any row needs a `reset` first.
        """
        self._refuse(self.unready, "need a reset before they can act")
        for row in np.flatnonzero(self.ended).tolist():
            self._reset_row(row)
            self._pack_row(row)

    def step(self, actions: Sequence[Array]) -> StepBatch:
        """One step of all rows with action leaves [n, ...], in the autoreset mode.

        Raises:
            StateError: if a row must be reset first; no environment has moved.
            EnvError: if an environment raises; it alone needs a reset, rows before it have moved.
        """
        self._refuse(self.unready, "need a reset before they can step")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse(self.ended, 'have ended an episode: reset them with options={"reset_mask": mask}')
        batch = StepBatch(
            obs=[],
            rewards=np.zeros(self.num_envs, np.float64),
            terminations=np.zeros(self.num_envs, np.bool_),
            truncations=np.zeros(self.num_envs, np.bool_),
            final_index=np.zeros(0, np.int64),
            final_obs=[],
        )
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final_rows: list[int] = []
        final_obs: list[Any] = []
        infos: list[tuple[int, Info]] = []
        try:
            for row, action in enumerate(self.action_layout.unpack(actions, self.num_envs)):
                if self.ended[row]:  # in NEXT_STEP only; the action is ignored
                    info = self._reset_row(row)
                else:
                    info = self._step_row(row, action, batch)
                    if same_step and self.ended[row]:
                        # The environment may use its arrays and dicts again: keep what they say now.
                        final_rows.append(row)
                        final_obs.append(_snapshot(self._rows[row]))
                        batch.final_infos += _blocks([(self.first_env + row, info)])
                        info = self._reset_row(row)
                infos.append((self.first_env + row, info))
        finally:
            self._pack(self._rows, self.obs)
        batch.obs = self._copy_of_obs()
        batch.infos = _blocks(infos)
        batch.final_index = np.array(final_rows, np.int64)
        batch.final_obs = self.obs_layout.empty(len(final_rows))
        self._pack(final_obs, batch.final_obs)
        return batch

    def step_into(
        self,
        actions: Sequence[Any],
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
            actions: n single actions.
            obs: leaves [n, ...] for the observations that the next actions are for.
            rewards: [n] of any float type.
            terminations: [n].
            truncations: [n].
            final_rows: rows whose episode ended are appended, in order.
            final_obs: their last single observations are appended, as copies.

        Raises:
            EnvError: if an environment raises; it alone needs a reset.
        """
        rows, numbers = self._rows, self._rewards
        terminations.fill(False)
        truncations.fill(False)
        row = 0
        try:
            for row, step in enumerate(self._steps):
                self.progress += 1
                rows[row], reward, terminated, truncated, _ = step(actions[row])
                numbers[row] = reward if type(reward) in _NUMBERS else _number(reward)
                if terminated or truncated:
                    terminations[row] = bool(terminated)
                    truncations[row] = bool(truncated)
                    final_rows.append(row)
                    final_obs.append(_snapshot(rows[row]))
                    self._reset_row(row)
        except _ENV_ERRORS as error:
            self._pack(rows, self.obs)
            if isinstance(error, EnvError):  # of the reset
                raise
            raise self._failure(row, "step", error, actions[row]) from error
        rewards[:] = numbers
        self._pack(rows, obs)

    def close(self) -> None:
        """All environments are closed; those that raise are logged. May be called again."""
        envs, self.envs, self._steps = self.envs, [], []
        for index, env in enumerate(envs, self.first_env):
            try:
                env.close()
            except Exception:
                logger.exception("environment %d raised in close", index)

    def _common_spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        if not self.envs:
            raise SpaceError("a shard has 0 environments; expected at least 1")
        observation_space, action_space = self.envs[0].observation_space, self.envs[0].action_space
        for index, env in enumerate(self.envs, self.first_env):
            for name, seen, expected in (
                ("observation", env.observation_space, observation_space),
                ("action", env.action_space, action_space),
            ):
                if seen != expected:
                    raise SpaceError(
                        f"{name} space of environment {index} is {seen}; expected {expected}, "
                        f"as environment {self.first_env} has"
                    )
        return observation_space, action_space

    def _refuse(self, rows: Flags, what: str) -> None:
        if rows.any():
            indices = (np.flatnonzero(rows) + self.first_env).tolist()
            some = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
            raise StateError(f"environments {some} {what}")

    def _reset_row(
        self, row: int, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Info:
        """The info of the reset; the observation is in `_rows`, not yet in `obs`."""
        self.progress += 1
        self.unready[row] = True
        try:
            self._rows[row], info = self.envs[row].reset(
                seed=seed, options=None if options is None else dict(options)
            )
        except _ENV_ERRORS as error:
            raise self._failure(row, "reset", error) from error
        self.unready[row] = False
        self.ended[row] = False
        return info

    def _step_row(self, row: int, action: object, batch: StepBatch) -> Info:
        """The info of the step; the observation is in `_rows`, reward and flags are in `batch`."""
        self.progress += 1
        try:
            observation, reward, terminated, truncated, info = self._steps[row](action)
            batch.rewards[row] = reward if type(reward) in _NUMBERS else _number(reward)
            batch.terminations[row] = bool(terminated)
            batch.truncations[row] = bool(truncated)
        except _ENV_ERRORS as error:
            raise self._failure(row, "step", error, action) from error
        self._rows[row] = observation
        self.ended[row] = batch.terminations[row] or batch.truncations[row]
        return info

    def _failure(self, row: int, call: str, error: Exception | SystemExit, action: object = None) -> EnvError:
        """What the environment of `row` raised, once the row is marked as in need of a reset."""
        self.unready[row] = True
        index = self.first_env + row
        text = _shortened(action) if call == "step" else None
        doing = f"step with action {text}" if text else call
        return EnvError(
            f"environment {index}{_id_of(self.envs[row])} failed in {doing}: {_say(error)}",
            env_index=index,
            action=text,
            remote_traceback="".join(traceback.format_exception(error)),
        )

    def _pack(self, rows: Sequence[Any], out: Sequence[Array]) -> None:
        self.obs_layout.pack(rows, out, name=_OBSERVATION, first=self.first_env)

    def _pack_row(self, row: int) -> None:
        out = [leaf[row : row + 1] for leaf in self.obs]
        self.obs_layout.pack([self._rows[row]], out, name=_OBSERVATION, first=self.first_env + row)

    def _copy_of_obs(self) -> list[Array]:
        return [leaf.copy() for leaf in self.obs]


def _build(env_fn: Callable[[], Env], index: int) -> Env:
    try:
        env = env_fn()
    except _ENV_ERRORS as error:
        raise EnvError(
            f"environment {index} could not be made: {_say(error)}",
            env_index=index,
            remote_traceback="".join(traceback.format_exception(error)),
        ) from error
    if not isinstance(env, gym.Env):
        seen = _shortened(env)
        raise EnvError(f"callable of environment {index} returned {seen}; expected a gymnasium.Env")
    return env


def _blocks(rows: Sequence[tuple[int, Info]]) -> list[bytes]:
    """The infos of `rows` as at most one block."""
    for index, info in rows:
        if not isinstance(info, dict | Mapping):  # dict first: it is the one that is quick to check
            raise EnvError(
                f"info of environment {index} is {_shortened(info)}; expected a dict", env_index=index
            )
    filled = [(index, info) for index, info in rows if info]
    return [encode_infos(filled)] if filled else []


def _snapshot(obs: Nested) -> Nested:
    return obs.copy() if type(obs) is np.ndarray else deepcopy(obs)


def _number(reward: object) -> float:
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise TypeError(f"reward is {_shortened(reward)}; expected a number or an array of size 1")
    return float(array.item())


def _id_of(env: Env) -> str:
    spec = env.unwrapped.spec
    return f" ({spec.id})" if spec else ""


def _say(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own text may fail too
        return f"{type(error).__name__}, whose text cannot be made"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
