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
        self.rows = 0

    def reset(self, obs: np.ndarray) -> None:
        """All environments were reset."""
        for env, row in enumerate(_rows(obs)):
            self._require(row[0] == env and row[3] == 0, env, "reset", row)
            self.last[env], self.ended[env] = row, False

    def step(self, step: tuple[Any, ...]) -> bool:
        """One step in NEXT_STEP; whether every row is valid."""
        obs, rewards, terminated, truncated, info = step
        everyone = np.ones(len(obs), np.bool_)
        valid, lost = info.get("valid", everyone), info.get("worker_lost", ~everyone)
        for env, row in enumerate(_rows(obs)):
            told = (float(rewards[env]), bool(terminated[env]), bool(truncated[env]))
            if valid[env]:
                self._stepped(env, row, told)
            else:
                stays = row == self.last[env]
                fresh = row[0] == env and row[3] == 0
                expected = (0.0, False, bool(lost[env]))
                self._require(told == expected and (stays or (fresh and not lost[env])), env, told, row)
                self.ended[env] = self.ended[env] and stays
            self.last[env] = row
            self.rows += 1
        return bool(np.all(valid))

    def _stepped(self, env: int, row: Row, told: tuple[float, bool, bool]) -> None:
        last = self.last[env]
        assert last is not None
        if self.ended[env]:
            self._require(told == (0.0, False, False) and row == _next_episode(last), env, told, row)
            self.ended[env] = False
            return
        self._require(row == (*last[:3], last[3] + 1), env, told, row)
        self._require(told == _told(row), env, told, row)
        self.ended[env] = told[1] or told[2]

    def rollout(self, rollout: Any) -> bool:
        """A rollout in SAME_STEP; whether every row is valid."""
        finals = {
            tuple(at): row
            for at, row in zip(rollout.final_index.tolist(), _rows(rollout.final_obs), strict=True)
        }
        for env in range(rollout.valid.shape[1]):
            if rollout.valid[:, env].all():
                self._column(rollout, env, finals)
            else:
                self._require(not rollout.valid[:, env].any(), env, "partly valid", rollout.valid[:, env])
        return bool(rollout.valid.all())

    def _column(self, rollout: Any, env: int, finals: dict[tuple[int, ...], Row]) -> None:
        rows = [*_rows(rollout.obs[:, env]), *_rows(rollout.last_obs[env : env + 1])]
        last = self.last[env]
        assert last is not None
        begins = rows[0][3] == 0 and (rows[0][1] != last[1] or rows[0][2] == last[2] + 1)
        self._require(rows[0][0] == env and (rows[0] == last or begins), env, "goes on from", rows[0])
        for t, row in enumerate(rows[:-1]):
            came = (*row[:3], row[3] + 1)
            told = (
                float(rollout.rewards[t, env]),
                bool(rollout.terminations[t, env]),
                bool(rollout.truncations[t, env]),
            )
            self._require(told == _told(came), env, told, came)
            over = told[1] or told[2]
            self._require(((t, env) in finals) == over, env, "final observation", came)
            if over:
                self._require(finals[t, env] == came, env, "final observation", finals[t, env])
            self._require(rows[t + 1] == (_next_episode(row) if over else came), env, told, rows[t + 1])
            self.rows += 1
        self.last[env], self.ended[env] = rows[-1], False

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
