"""Batched infos are taken apart into what the environments told."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterenv.infos import batch_infos
from clusterenv.integrations.rows import info_rows
from tests.spaces import assert_same

ARRAY = np.arange(3, dtype=np.int32)


def test_rows_are_those_that_were_batched() -> None:
    infos: list[dict[str, Any]] = [
        {"lives": 3, "name": "a", "inner": {"x": 1.5, "deep": {"flag": True}}, "array": ARRAY},
        {},
        {"lives": 2, "inner": {}, "_private": 1, "array": ARRAY + 1, "small": np.float32(0.1)},
        {"list": [1, "two"], "none": None, "mixed": np.zeros((2, 2)), "big": 1 << 80},
        {"mixed": "text", "name": "b", "big": 1},
    ]
    rows = info_rows(batch_infos(enumerate(infos), 5), 5)
    assert_same([dict(sorted(row.items())) for row in rows], [dict(sorted(info.items())) for info in infos])


def test_rows_do_not_share_memory_with_the_batch() -> None:
    batched = batch_infos([(0, {"array": ARRAY}), (1, {"array": ARRAY})], 2)
    rows = info_rows(batched, 2)
    batched["array"][:] = 7
    assert rows[0]["array"].tolist() == ARRAY.tolist()


def test_masks_are_no_keys() -> None:
    assert info_rows({"x": np.array([1, 2]), "_x": np.array([False, True])}, 2) == [{}, {"x": 2}]
