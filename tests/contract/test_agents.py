"""Agents in environments whose observations have no fixed size: arrays of samples, on the same calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import AgentError
from tests.agents import MLPAgent
from tests.contract.vectors import SERIAL, WORKERS_WITH_RUNNERS
from tests.contract.walking import Walker, assert_same

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]

SHOWN = spaces.Dict(text=spaces.Text(4), many=spaces.Sequence(spaces.Box(-1, 1, (2,))))
N = 4


@pytest.fixture(params=[SERIAL, WORKERS_WITH_RUNNERS], ids=["serial", "workers with runners"])
def launcher(request: pytest.FixtureRequest) -> LocalConfig:
    launcher: LocalConfig = request.param
    return launcher


class Reads:
    """Acts by the length of the text it sees."""

    def get_parameters(self) -> dict[str, np.ndarray]:
        return {"w": np.zeros(1)}

    def act(self, obs: Any) -> np.ndarray:
        texts, many = obs["shown"]["text"], obs["shown"]["many"]
        assert texts.dtype == object
        return np.array([(len(text) + len(parts)) % 3 for text, parts in zip(texts, many, strict=True)])


def expected(text: str, many: Any) -> int:
    return (len(text) + len(many)) % 3


def test_step_with_an_agent_gives_tuples_of_samples(launcher: LocalConfig) -> None:
    env_fns = [partial(Walker, SHOWN, spaces.Discrete(3), i, [[3]]) for i in range(N)]
    with ClusterEnv(env_fns, launcher) as env:
        obs, _ = env.reset(seed=0)
        for _ in range(6):
            shown = obs["shown"]
            obs, *_, info = env.step(Reads())
            assert isinstance(obs["shown"]["text"], tuple)
            assert info["action"].tolist() == [
                expected(text, many) for text, many in zip(shown["text"], shown["many"], strict=True)
            ]


def test_rollout_holds_arrays_of_samples_and_step_goes_on_from_the_last(launcher: LocalConfig) -> None:
    env_fns = [partial(Walker, SHOWN, spaces.Discrete(3), i, [[2, 3]]) for i in range(N)]
    with ClusterEnv(env_fns, launcher, seed=3) as env:
        batch = env.rollout(Reads(), 5)
        texts, many = batch.obs["shown"]["text"], batch.obs["shown"]["many"]
        assert (texts.shape, texts.dtype, many.shape) == ((5, N), object, (5, N))
        for t, n in np.ndindex(5, N):
            assert batch.actions[t, n] == expected(texts[t, n], many[t, n])
        assert len(batch.final_obs["shown"]["text"]) == len(batch.final_index) > 0
        last = batch.last_obs["shown"]
        info = env.step(Reads())[4]
        assert info["action"].tolist() == [
            expected(text, parts) for text, parts in zip(last["text"], last["many"], strict=True)
        ]
        tensors = batch.torch()
        assert tensors.obs["shown"]["text"] is texts
        assert tuple(tensors.obs["numbers"].shape) == (5, N, 4)


def test_rollouts_do_not_depend_on_the_layout() -> None:
    env_fns = [partial(Walker, SHOWN, spaces.Discrete(3), i, [[2, 3]]) for i in range(N)]
    batches = []
    for launcher in (SERIAL, WORKERS_WITH_RUNNERS):
        with ClusterEnv(env_fns, launcher, seed=3) as env:
            batches.append(env.rollout(Reads(), 6))
    for name in ("obs", "actions", "rewards", "final_obs", "last_obs"):
        assert_same(getattr(batches[0], name), getattr(batches[1], name), name)


def test_agent_of_tensors_is_told_that_it_cannot_read_samples() -> None:
    env_fns = [partial(Walker, spaces.Text(3), spaces.Discrete(3), i) for i in range(2)]
    with ClusterEnv(env_fns, SERIAL) as env:
        env.reset(seed=0)
        flat = ClusterEnv("CartPole-v1", SERIAL)
        with pytest.raises(AgentError, match="object"):
            env.step(MLPAgent(flat))
