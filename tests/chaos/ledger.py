"""Environments that count, so that every delivered transition can be told right, and a checker that does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Row = tuple[int, int, int, int]
"""Environment, life (a number drawn when it was built), episode of that life, step of that episode."""


def length_of(env: int, episode: int) -> int:
    """Steps of an episode."""
    return 3 + (7 * env + 5 * episode) % 11


def reward_of(row: Row) -> float:
    """What the step to `row` paid: a number that float32 holds."""
    env, life, episode, step = row
    return float((life * 31 + env * 17 + episode * 7 + step) % 4096)


class Ledger(gym.Env):
    """Observes its `Row`; does what the file `fault-<env>` of `folder` says, once: raise, hang, exit, hog."""

    observation_space = spaces.Box(-1, 2**31, (4,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, env: int, folder: Path) -> None:
        self.row: Row = (env, int.from_bytes(os.urandom(3), "little"), -1, 0)
        self.order = folder / f"fault-{env}"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        env, life, episode, _ = self.row
        self.row = (env, life, episode + 1, 0)
        return np.array(self.row, np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.order.exists():
            self._obey()
        env, life, episode, step = self.row
        self.row = (env, life, episode, step + 1)
        ended = step + 1 == length_of(env, episode)
        truncated = ended and episode % 2 == 1
        return np.array(self.row, np.float64), reward_of(self.row), ended and not truncated, truncated, {}

    def _obey(self) -> None:
        order = self.order.read_text()
        self.order.unlink(missing_ok=True)
        if order == "raise":
            raise RuntimeError("told to fail")
        if order == "hang":
            time.sleep(3600)
        if order == "exit":
            os._exit(3)
        if order == "hog":  # what the kernel does to the one that has used up the memory
            self.hoard = np.ones(1 << 24)
            os.kill(os.getpid(), signal.SIGKILL)


class WrongRow(AssertionError):
    """A row that no order of faults explains."""


class Checker:
    """Follows every environment and refuses a row that cannot come next."""

    def __init__(self, num_envs: int) -> None:
        self.last: list[Row | None] = [None] * num_envs
        self.ended = [False] * num_envs
        self.skipped = [False] * num_envs
        self.rebuilt = [False] * num_envs
        self.rows = 0

    def reset(self, obs: np.ndarray) -> None:
        """All environments were reset."""
        for env, row in enumerate(_rows(obs)):
            self._require(row[0] == env and row[3] == 0, env, "reset", row)
            self._stands_at(env, row)

    def skips(self) -> None:
        """Every environment may have moved on by rows that nobody was given, as at the end of a stream."""
        self.skipped = [True] * len(self.last)

    def _stands_at(self, env: int, row: Row) -> None:
        self.last[env], self.ended[env], self.skipped[env], self.rebuilt[env] = row, False, False, False

    def step(self, step: tuple[Any, ...]) -> bool:
        """One step in NEXT_STEP; whether every row is valid."""
        obs, rewards, terminated, truncated, info = step
        everyone = np.ones(len(obs), np.bool_)
        valid, lost = info.get("valid", everyone), info.get("worker_lost", ~everyone)
        rebuilt = info.get("_env_error", ~everyone)
        for env, row in enumerate(_rows(obs)):
            told = (float(rewards[env]), bool(terminated[env]), bool(truncated[env]))
            if valid[env]:
                self._stepped(env, row, told)
            elif rebuilt[env]:
                stays = row == self.last[env] or self._is_later(env, row)
                self._require(told == (0.0, False, True) and stays, env, told, row)
                self.ended[env] = self.rebuilt[env] = True
            else:
                stays = row == self.last[env] or self._is_later(env, row)
                fresh = row[0] == env and row[3] == 0
                expected = (0.0, False, bool(lost[env]))
                self._require(told == expected and (stays or (fresh and not lost[env])), env, told, row)
                self.ended[env] = self.ended[env] and stays
            self.last[env], self.skipped[env] = row, False
            self.rows += 1
        return bool(np.all(valid))

    def _stepped(self, env: int, row: Row, told: tuple[float, bool, bool]) -> None:
        last = self.last[env]
        assert last is not None
        if self.skipped[env]:
            self._require(self._is_later(env, row) and row != last and row[3] > 0, env, told, row)
        elif self.ended[env]:
            begins = row == _next_episode(last) if not self.rebuilt[env] else self._is_anew(row, last)
            self._require(told == (0.0, False, False) and begins, env, told, row)
            self.ended[env] = self.rebuilt[env] = False
            return
        else:
            self._require(row == (*last[:3], last[3] + 1), env, told, row)
        self._require(told == _told(row), env, told, row)
        self.ended[env] = told[1] or told[2]

    def rollout(self, rollout: Any) -> bool:
        """A rollout in SAME_STEP; whether every row is valid."""
        finals = {
            tuple(at): row
            for at, row in zip(rollout.final_index.tolist(), _rows(rollout.final_obs), strict=True)
        }
        for column, env in enumerate(rollout.env_ids.tolist()):
            if rollout.valid[:, column].any():
                self._column(rollout, column, env, finals)
        return bool(rollout.valid.all())

    def _column(self, rollout: Any, column: int, env: int, finals: dict[tuple[int, ...], Row]) -> None:
        rows = [*_rows(rollout.obs[:, column]), *_rows(rollout.last_obs[column : column + 1])]
        self._begins(env, rows[0])
        for t, row in enumerate(rows[:-1]):
            valid = rollout.valid[t, column]
            came = (*row[:3], row[3] + 1) if valid else row
            told = (
                float(rollout.rewards[t, column]),
                bool(rollout.terminations[t, column]),
                bool(rollout.truncations[t, column]),
            )
            self._require(told == (_told(came) if valid else (0.0, False, True)), env, told, came)
            over = told[1] or told[2]
            self._require(((t, column) in finals) == over, env, "final observation", came)
            if over:
                self._require(finals[t, column] == came, env, "final observation", finals[t, column])
            follows = rows[t + 1] == (_next_episode(row) if over else came)
            self._require(follows if valid else self._is_anew(rows[t + 1], row), env, told, rows[t + 1])
            self.rows += 1
        self._stands_at(env, rows[-1])

    def _begins(self, env: int, row: Row) -> None:
        """A rollout or a fragment may go on from `row`."""
        last = self.last[env]
        assert last is not None
        anew = row[3] == 0 and (row[1] != last[1] or row[2] == last[2] + 1)
        right = row == last or anew or self._is_later(env, row)
        self._require(row[0] == env and right, env, "goes on from", row)

    @staticmethod
    def _is_anew(row: Row, last: Row) -> bool:
        """Whether `row` is the first of the environment that was built in place of that of `last`."""
        return row[0] == last[0] and row[1] != last[1] and row[2:] == (0, 0)

    def _is_later(self, env: int, row: Row) -> bool:
        """Whether `row` may come after rows that nobody was given: of another life, or after the last."""
        last = self.last[env]
        assert last is not None
        return self.skipped[env] and row[0] == env and (row[1] != last[1] or row[2:] >= last[2:])

    def _require(self, right: object, env: int, told: object, row: object) -> None:
        if not right:
            raise WrongRow(
                f"environment {env}: {row} ({told}) after {self.last[env]}, ended {self.ended[env]}"
            )


def _rows(obs: np.ndarray) -> list[Row]:
    return [tuple(map(int, row)) for row in obs]  # type: ignore[misc]  # four numbers


def _next_episode(row: Row) -> Row:
    return (row[0], row[1], row[2] + 1, 0)


def _told(row: Row) -> tuple[float, bool, bool]:
    """Reward and flags of the step to `row`."""
    ended = row[3] == length_of(row[0], row[2])
    truncated = ended and row[2] % 2 == 1
    return reward_of(row), ended and not truncated, truncated
