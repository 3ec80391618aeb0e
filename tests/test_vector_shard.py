from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.batches import StepBatch
from clusterenv.infos import decode_infos
from clusterenv.shard import Shard
from clusterenv.vector_shard import VectorShard
from tests import backends, envs
from tests.spaces import assert_same

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
WAYS = [
    pytest.param("NextStep", False, NEXT_STEP, id="next step"),
    pytest.param("SameStep", False, SAME_STEP, id="same step"),
    pytest.param("Disabled", True, DISABLED, id="disabled"),
    pytest.param("NextStep", True, SAME_STEP, id="same step by masked resets"),
    pytest.param("NextStep", True, DISABLED, id="disabled by masked resets"),
]


def vector_shard(name: str, mode: AutoresetMode = NEXT_STEP, num_envs: int = 3, **kwargs: Any) -> VectorShard:
    return VectorShard(
        lambda: backends.make(name, num_envs, num_threads=2, **kwargs),
        backend="tests",
        first_env=4,
        num_envs=num_envs,
        autoreset_mode=mode,
    )


def infos(blocks: list[bytes]) -> list[tuple[int, dict[str, Any]]]:
    return sorted((row for block in blocks for row in decode_infos(block)), key=lambda row: row[0])


def assert_same_step(seen: StepBatch, expected: StepBatch) -> None:
    assert_same(seen.obs, expected.obs)
    for name in ("rewards", "terminations", "truncations", "final_index"):
        np.testing.assert_array_equal(getattr(seen, name), getattr(expected, name), err_msg=name)
    assert_same(seen.final_obs, expected.final_obs)
    assert infos(seen.infos) == infos(expected.infos)
    assert infos(seen.final_infos) == infos(expected.final_infos)


@pytest.mark.parametrize(("own", "masks", "mode"), WAYS)
@pytest.mark.parametrize("name", ["Count", "Nested", "RandomObs"])
def test_it_steps_as_environments_made_apart_do(
    name: str, own: str, masks: bool, mode: AutoresetMode
) -> None:
    vector = vector_shard(name, mode, own=own, masks=masks)
    apart = Shard([getattr(envs, name)] * 3, first_env=4, autoreset_mode=mode)
    first = [shard.reset([1, 2, 3]) for shard in (vector, apart)]
    assert_same(first[0].obs, first[1].obs)
    assert infos(first[0].infos) == infos(first[1].infos)
    for _ in range(12):
        actions = apart.action_layout.zeros(3)
        assert_same_step(vector.step(actions), expected := apart.step(actions))
        ended = expected.terminations | expected.truncations
        np.testing.assert_array_equal(vector.ended, apart.ended)
        if mode is DISABLED and ended.any():
            again = [shard.reset(mask=ended) for shard in (vector, apart)]
            assert_same(again[0].obs, again[1].obs)
            assert infos(again[0].infos) == infos(again[1].infos)
