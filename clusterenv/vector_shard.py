"""A vector that a backend made, stepped as a whole: what `shard` is for environments that are made apart."""

from __future__ import annotations

import itertools
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray

from clusterenv.batches import ResetBatch, StepBatch, unmoved_step
from clusterenv.env_calls import ENV_ERRORS
from clusterenv.errors import EnvError, MissingAttribute, SpaceError, StateError, say
from clusterenv.infos import encode_infos, plain_info, unbatch_infos
from clusterenv.layout import Nested, SpaceLayout
from clusterenv.sources import autoreset_modes
from clusterenv.vector_answers import RESET, STEP, wrong_leaf, wrong_numbers, wrong_parts

Array = NDArray[Any]
Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]
Vector = VectorEnv[Any, Any, Any]
R = TypeVar("R")

FINAL = ("final_obs", "final_info")
"""Infos of a SAME_STEP vector that are no infos of its rows."""

logger = logging.getLogger(__name__)


class VectorShard:
    """Steps and resets n environments of a backend, with global indices from `first_env` on; see `Shard`."""

    def __init__(
        self,
        make: Callable[[], Vector],
        *,
        backend: str,
        first_env: int,
        num_envs: int,
        autoreset_mode: AutoresetMode,
        same_bounds: bool = True,
    ) -> None:
        """Build the vector.

        Raises:
            EnvError: if `make` raises.
            SpaceError: if a space cannot be batched.
        """
        self.name = f"backend {backend!r} (environments {first_env} to {first_env + num_envs - 1})"
        self.first_env = first_env
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_mode
        self.progress = 0
        """Goes up before every call into the vector, so that a hang can be seen from outside."""
        self.unready: Flags = np.ones(num_envs, np.bool_)
        """[n] rows that need a `reset` first: never reset, or the vector raised."""
        self.vector = self._call("its factory", make)
        self._mode: AutoresetMode = self.vector.metadata["autoreset_mode"]
        assert autoreset_mode in autoreset_modes(self.vector.metadata), "the head has asked the vector"
        self._masks = bool(self.vector.metadata.get("reset_mask"))
        self.single_observation_space = self.vector.single_observation_space
        self.single_action_space = self.vector.single_action_space
        self.obs_layout = SpaceLayout.of(self.single_observation_space, bounds=same_bounds)
        self.action_layout = SpaceLayout.of(self.single_action_space)
        self.obs: list[Array] = self.obs_layout.zeros(num_envs)
        """Leaves [n, ...] of what the policy acts on next; overwritten by the next step."""
        self.ended: Flags = np.zeros(num_envs, np.bool_)
        """[n] rows whose episode ended in `step` and that were not reset since."""

    @property
    def env_id(self) -> str | None:
        """Id of the vector's spec."""
        return None if self.vector.spec is None else self.vector.spec.id

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
        mask: Flags | None = None,
    ) -> ResetBatch:
        """Rows of `mask` [n] (all without one) are at the start of an episode; others keep their observation.

        Raises:
            StateError: if the vector cannot reset some rows alone; none has moved.
            EnvError: if the vector raises; all rows need another reset.
        """
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        infos: Mapping[str, Any] = {}
        if len(rows):
            asked = None if options is None else dict(options)
            if len(rows) < self.num_envs:
                if not self._masks:
                    raise StateError(f"{self.name} cannot reset some of them alone; reset them all")
                asked = {**(asked or {}), "reset_mask": mask}
            own_seeds = None if seeds is None or all(seed is None for seed in seeds) else list(seeds)
            infos = self._reset_rows(rows, own_seeds, asked, self.obs)
        per_row = unbatch_infos(infos, self.num_envs)
        obs = [leaf.copy() for leaf in self.obs]
        return ResetBatch(obs=obs, infos=self._blocks(rows, [per_row[row] for row in rows]))

    def reset_ended(self) -> None:
        """A rollout may begin: rows at the end of an episode are reset by its first step, which is not valid.

        Raises:
            StateError: if any row needs a `reset` first.
        """
        self._refuse(self.unready, "need a reset before they can act")

    def step(self, actions: Sequence[Array], mask: Flags | None = None) -> StepBatch:
        """One step of the k rows of `mask` [n] (all without one) with action leaves [k, ...], in the mode.

        Raises:
            StateError: if a row must be reset first, or the vector cannot step some rows alone; none has
                moved.
            EnvError: if the vector raises; all rows need a reset.
        """
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        asked: Flags | bool = True if mask is None else mask
        self._refuse(self.unready & asked, "need a reset before they can step")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse(
                self.ended & asked, 'have ended an episode: reset them with options={"reset_mask": mask}'
            )
        if not len(rows):
            batch = unmoved_step(0)
            batch.obs = batch.final_obs = self.obs_layout.empty(0)
            return batch
        nested = self.action_layout.nest([leaf.copy() for leaf in actions], tuples=True)
        obs, rewards, terminations, truncations, infos = self._stepped(nested, rows)
        batch = StepBatch(
            obs=[],
            rewards=self._flat(rewards, np.float64, len(rows)),
            terminations=self._flat(terminations, np.bool_, len(rows)),
            truncations=self._flat(truncations, np.bool_, len(rows)),
            final_index=np.zeros(0, np.int64),
            final_obs=self.obs_layout.empty(0),
        )
        ended = batch.terminations | batch.truncations
        self._copy(obs, self.obs, rows)
        self.ended[rows] = ended
        per_row = unbatch_infos(infos, len(rows), without=FINAL)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            self._begin_anew(batch, rows, np.flatnonzero(ended), infos, per_row)
        batch.infos = self._blocks(rows, per_row)
        batch.obs = [leaf[rows] for leaf in self.obs]
        return batch

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
        """One step of all rows in the mode, written in place and without infos.

        As in `Shard`, but in NEXT_STEP rows that are `ended` are only reset: they have made no transition.

        Raises:
            EnvError: if the vector raises; all rows need a reset.
        """
        nested = self.action_layout.nest(actions, tuples=True)
        seen, reward, terminated, truncated, infos = self._told("step", STEP, self.vector.step, nested)
        for values, place in ((reward, rewards), (terminated, terminations), (truncated, truncations)):
            self._fill(values, place)
        self._copy(seen, obs)
        ended = np.logical_or(terminations, truncations, out=self.ended)
        if not ended.any():
            return
        rows = np.flatnonzero(ended)
        final_rows += rows.tolist()
        if self._mode is AutoresetMode.SAME_STEP:
            final_obs += self._told_obs(infos, rows)
            self.ended[:] = False
            return
        final_obs += self.obs_layout.singles([leaf[rows] for leaf in obs], len(rows))
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._reset_rows(rows, None, {"reset_mask": ended.copy()}, obs)

    def counting_steps(self) -> AbstractContextManager[None]:
        """See `Shard`."""
        return nullcontext()

    def rows_of(self, mask: Flags | None) -> Sequence[int]:
        """The rows that a mask [n] selects; all without one."""
        rows: Sequence[int] = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        return rows

    def call(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, Any], mask: Flags | None
    ) -> list[object]:
        """What the vector's own `call` (or `render`) gives for each environment.

        Raises:
            MissingAttribute: if the vector has no such method, or its environments nothing of that name.
            EnvError: if it raises, or is asked of some environments alone.
        """
        self._refuse_some(name, mask)
        if hasattr(self.vector, "call"):
            results = self._asked(f"call of {name!r}", self.vector.call, name, *args, **kwargs)
        elif name == "render":
            results = self._asked(name, self.vector.render)
        else:
            raise MissingAttribute(
                f"{self.name} has no method to call its environments with, so {name!r} cannot be reached",
                env_index=self.first_env,
            )
        if not isinstance(results, list | tuple) or len(results) != self.num_envs:
            raise EnvError(
                f"{self.name} gave {type(results).__name__} for {name!r}; expected a tuple of {self.num_envs}"
            )
        return list(results)

    def set_attr(self, name: str, values: Sequence[object], mask: Flags | None) -> None:
        """The attribute is set by the vector's own `set_attr`, with one value or one for each environment.

        Raises:
            MissingAttribute: if the vector has no such method.
            EnvError: if it raises, or is asked of some environments alone.
        """
        self._refuse_some(name, mask)
        if not hasattr(self.vector, "set_attr"):
            raise MissingAttribute(
                f"{self.name} has no method to set attributes of its environments with, such as {name!r}",
                env_index=self.first_env,
            )
        each = list(values) * self.num_envs if len(values) == 1 else list(values)
        self._asked(f"setting {name!r}", self.vector.set_attr, name, each)

    def close(self) -> None:
        """The vector is closed; if it raises, that is logged. May be called again."""
        vector: Vector | None = getattr(self, "vector", None)
        try:
            if vector is not None and not vector.closed:
                vector.close()
        except ENV_ERRORS:
            logger.exception("%s raised in close", self.name)

    # --- helpers ----------------------------------------------------------------------------------------

    def _stepped(self, actions: Nested, rows: Ids) -> tuple[Any, ...]:
        if len(rows) == self.num_envs:
            return self._told("step", STEP, self.vector.step, actions)
        step_rows = getattr(self.vector, "step_rows", None)
        if step_rows is None:
            raise StateError(
                f"{self.name} can only step all of them together; send their actions in one call, and let "
                "batch_size be a multiple of the environments of a worker"
            )
        return self._told("step_rows", STEP, step_rows, actions, rows)

    def _reset_rows(
        self,
        rows: Ids,
        seeds: list[int | None] | None,
        options: dict[str, Any] | None,
        out: Sequence[Array],
    ) -> Mapping[str, Any]:
        """The infos of the reset; the observations of `rows` are in the leaves `out` [n, ...]."""
        self.unready[rows] = True
        infos: Mapping[str, Any]
        obs, infos = self._told("reset", RESET, self.vector.reset, seed=seeds, options=options)
        leaves = self._leaves(obs, self.num_envs)
        for leaf, place in zip(leaves, out, strict=True):
            place[rows] = leaf[rows]
        self.unready[rows] = False
        self.ended[rows] = False
        return infos

    def _begin_anew(
        self,
        batch: StepBatch,
        rows: Ids,
        places: Ids,
        infos: Mapping[str, Any],
        per_row: list[dict[str, Any]],
    ) -> None:
        """The rows at `places` among `rows` are reset, and `batch` tells how their episodes ended."""
        ended = rows[places]
        batch.final_index = places.astype(np.int64)
        batch.final_obs = self.obs_layout.empty(len(places))
        if self._mode is AutoresetMode.SAME_STEP:
            name = "final observation of environment"
            final_infos = unbatch_infos(infos.get("final_info", {}), len(rows))
            self.obs_layout.pack(self._told_obs(infos, places), batch.final_obs, name=name)
            batch.final_infos = self._blocks(ended, [final_infos[place] for place in places])
            self.ended[ended] = False
            return
        batch.final_obs = [leaf[ended] for leaf in self.obs]
        batch.final_infos = self._blocks(ended, [per_row[place] for place in places])
        mask = np.zeros(self.num_envs, np.bool_)
        mask[ended] = True
        reset_infos = unbatch_infos(
            self._reset_rows(ended, None, {"reset_mask": mask}, self.obs), self.num_envs
        )
        for place in places:
            per_row[place] = reset_infos[rows[place]]

    def _told_obs(self, infos: Mapping[str, Any], places: Ids) -> list[Any]:
        """The final observations that a SAME_STEP vector must tell of."""
        told = infos.get("final_obs")
        final_obs = [None] * len(places) if told is None else [told[place] for place in places]
        if any(obs is None for obs in final_obs):
            self.unready[:] = True
            raise EnvError(
                f'{self.name} has ended episodes and told no final observation; expected infos["final_obs"]'
            )
        return final_obs

    def _leaves(self, obs: Nested, count: int) -> list[Array]:
        """The arrays of a batch of observations, none of them a copy."""
        try:
            leaves = [np.asarray(leaf) for leaf in self.obs_layout.flatten(obs)]
        except SpaceError as error:
            wrong = str(error).removeprefix("value")
        else:
            misfits = map(wrong_leaf, leaves, self.obs_layout.leaves, itertools.repeat(count))
            wrong = next(filter(None, misfits), "")
        if wrong:
            self.unready[:] = True
            raise SpaceError(f"observation of {self.name}{wrong}")
        return leaves

    def _copy(self, obs: Nested, out: Sequence[Array], rows: Ids | None = None) -> None:
        """The rows of `out` (all without `rows`) are the batch `obs`."""
        for leaf, place in zip(
            self._leaves(obs, self.num_envs if rows is None else len(rows)), out, strict=True
        ):
            place[... if rows is None else rows] = leaf

    def _flat(self, values: ArrayLike, dtype: type[np.generic], count: int) -> Array:
        """Rewards or flags [count] as an array of our own."""
        array = np.empty(count, dtype)
        self._fill(values, array)
        return array

    def _fill(self, values: ArrayLike, place: Array) -> None:
        """`place` [k] holds rewards or flags."""
        wrong = wrong_numbers(values, place)
        if wrong:
            self.unready[:] = True
            raise EnvError(f"{self.name} gave {wrong}")
        place[:] = values

    def _blocks(self, rows: Ids, infos: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Infos of `rows` as at most one block."""
        if not any(infos):
            return []
        return [
            encode_infos(
                [(self.first_env + int(row), plain_info(info)) for row, info in zip(rows, infos, strict=True)]
            )
        ]

    def _refuse(self, rows: Flags, what: str) -> None:
        if rows.any():
            raise StateError(f"environments {(np.flatnonzero(rows) + self.first_env).tolist()} {what}")

    def _refuse_some(self, name: str, mask: Flags | None) -> None:
        if mask is not None and not mask.all():
            raise EnvError(f"{self.name} is reached as a whole; ask for {name!r} of all environments")

    def _call(self, call: str, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """What the vector gives; if it raises, all its rows need a reset."""
        try:
            return self._asked(call, function, *args, **kwargs)
        except EnvError:
            self.unready[:] = True
            raise

    def _told(
        self, call: str, parts: tuple[str, ...], function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The tuple that the vector gives; if it is another, all rows need a reset."""
        answer: Any = self._call(call, function, *args, **kwargs)
        wrong = wrong_parts(answer, parts)
        if wrong:
            self.unready[:] = True
            raise EnvError(f"{self.name} returned from {call} {wrong}")
        return tuple(answer)

    def _asked(self, call: str, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        self.progress += 1
        try:
            return function(*args, **kwargs)
        except ENV_ERRORS as error:
            kind = MissingAttribute if isinstance(error, AttributeError) and "call" in call else EnvError
            raise kind(
                f"{self.name} failed in {call}: {say(error)}",
                remote_traceback="".join(traceback.format_exception(error)),
            ) from error
