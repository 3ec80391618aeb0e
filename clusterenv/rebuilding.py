"""A shard in which an environment that raises is built anew, alone: only its own episode is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.batches import ActBatch, Fragment, Rebuilt, ResetBatch, StepBatch
from clusterenv.commands import Reply
from clusterenv.env_calls import ENV_ERRORS, build, snapshot
from clusterenv.errors import EnvError, SpaceError
from clusterenv.layout import SpaceLayout
from clusterenv.passed_checks import Checks
from clusterenv.shard import Env, Info, Shard

logger = logging.getLogger(__name__)

WITHIN_S = 3600.0
"""The time in which rebuilds are counted."""
LONGEST_ERROR = 500
"""Characters of an error in one line."""
INFO_KEY = "env_error"
"""Of the info of a row whose environment was built anew: why."""


class RebuildingShard(Shard):
    """A `Shard` whose `step` and `reset` raise only for environments that raise too often.

    The step in which an environment raises gives its last observation again, reward 0 and a truncation, and
    is counted in `take_lost`. Its next episode is one of a new environment, seeded with a number that derives
    from its last seed and is that of no other environment.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        *,
        first_env: int,
        autoreset_mode: AutoresetMode,
        same_bounds: bool,
        most_rebuilds: int,
    ) -> None:
        """As `Shard`; one environment is built anew at most `most_rebuilds` times within an hour."""
        super().__init__(env_fns, first_env=first_env, autoreset_mode=autoreset_mode, same_bounds=same_bounds)
        self._env_fns = list(env_fns)
        self._same_bounds = same_bounds
        self._most_rebuilds = most_rebuilds
        self._lives = [_Life() for _ in env_fns]
        self._lost: list[int] = []
        self._own_steps = list(self._steps)
        self.checks = Checks(self.envs, self._own_steps)
        self._steps[:] = [partial(self._guarded_step, row) for row in range(self.num_envs)]
        self.rebuilt: list[Rebuilt] = []
        """What was built anew, until somebody takes the list."""

    def take_lost(self) -> list[int]:
        """The rows whose environment has raised in a step since the last call of this."""
        lost, self._lost = self._lost, []
        return lost

    def counting_steps(self) -> AbstractContextManager[None]:
        """Nothing is counted here, since an environment may become another on the way."""
        return nullcontext()

    def _guarded_step(self, row: int, action: object) -> tuple[Any, ...]:
        life = self._lives[row]
        try:
            answer: tuple[Any, ...] = self._own_steps[row](action)
            life.obs = snapshot(answer[0])
        except ENV_ERRORS as error:
            told = self._rebuild(row, self._failure(row, "step", error, action))
            self._lost.append(row)
            return life.obs, 0.0, False, True, {INFO_KEY: told}
        return answer

    def _reset_row(
        self, row: int, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Info:
        life, told = self._lives[row], None
        if seed is None:
            seed = life.next_seed
        else:
            life.seed = seed
        while True:
            life.next_seed = None
            try:
                info = super()._reset_row(row, seed=seed, options=options)
                life.obs = snapshot(self._rows[row])
            except EnvError as failure:
                told = self._rebuild(row, failure)
                seed = life.next_seed
            else:
                return {**info, INFO_KEY: told} if told and isinstance(info, Mapping) else info

    def _rebuild(self, row: int, failure: EnvError) -> str:
        """The environment of `row` is another one, ready to be reset; returns the failure in one line.

        Raises:
            EnvError: if it has raised too often, or cannot be built.
            SpaceError: if it has other spaces than before.
        """
        life, index = self._lives[row], self.first_env + row
        told = str(failure).split("\n", 1)[0][:LONGEST_ERROR]
        life.first_error = life.first_error or told
        now = time.monotonic()
        life.failed_at = [at for at in life.failed_at if now - at < WITHIN_S] + [now]
        if len(life.failed_at) > self._most_rebuilds:
            raise EnvError(
                f"{told}; it was built anew max_restarts = {self._most_rebuilds} times within an hour. "
                f"The first error: {life.first_error}",
                env_index=index,
                action=failure.action,
                remote_traceback=failure.remote_traceback,
            ) from failure
        logger.warning("%s\nIt is built anew.", failure)
        self._close_old(row)
        self.count_call()
        env = build(self._env_fns[row], index)
        self._require_spaces(env, index)
        self.envs[row] = env
        self.checks.put_back(row)
        self.unready[row] = False
        life.rebuilds += 1
        life.next_seed = life.derived_seed(index)
        self.rebuilt.append(Rebuilt(env_id=index, error=told))
        return told

    def _close_old(self, row: int) -> None:
        try:
            self.envs[row].close()
        except ENV_ERRORS:
            logger.exception("environment %d raised in close", self.first_env + row)

    def _require_spaces(self, env: Env, index: int) -> None:
        for name, space, layout, bounds in (
            ("observation", env.observation_space, self.obs_layout, self._same_bounds),
            ("action", env.action_space, self.action_layout, True),
        ):
            if SpaceLayout.of(space, bounds=bounds).digest != layout.digest:
                env.close()
                raise SpaceError(
                    f"{name} space of environment {index}, built anew, is {space}; expected that of before"
                )


def telling_of_rebuilt(shard: object, reply: Reply) -> Reply:
    """`reply`, with what was built anew since the last one."""
    batch = reply.step if isinstance(reply, ActBatch) else reply
    if isinstance(shard, RebuildingShard) and isinstance(batch, ResetBatch | StepBatch | Fragment):
        batch.rebuilt, shard.rebuilt = shard.rebuilt, []
    return reply


class _Life:
    """What is kept of one environment beyond itself."""

    def __init__(self) -> None:
        self.obs: Any = None
        """A copy of its last observation."""
        self.seed: int | None = None
        """The last that it was given from outside."""
        self.next_seed: int | None = None
        """Of the next reset, if that says nothing else."""
        self.rebuilds = 0
        self.failed_at: list[float] = []
        self.first_error = ""

    def derived_seed(self, index: int) -> int | None:
        """None for one that was never seeded."""
        if self.seed is None:
            return None
        entropy = np.random.SeedSequence([self.seed, index, self.rebuilds, 1])
        return int(entropy.generate_state(1, np.uint32)[0])
