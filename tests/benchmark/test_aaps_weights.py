from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterenv.benchmark.aaps_weights import NatureCNN, Trainer, Way, WeightsBenchmark, measure, ways
from clusterenv.errors import ConfigError

EVEN = np.uint32(0xFFFFFFFE)
RNG = np.random.default_rng(3)
OLDER = RNG.normal(0, 0.05, 5000).astype(np.float32)
NEWEST = (OLDER + RNG.normal(0, 1e-4, 5000)).astype(np.float32)
NEWEST[:4] = [np.inf, -0.0, np.nan, 1e-42]


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_every_way_gives_the_weights_back_bit_for_bit(way: Way) -> None:
    older, newest = OLDER.view(np.uint32), NEWEST.view(np.uint32)

    measured = measure(way, older, newest, plain=20_000, repeats=1, after=(1e-3, 1))

    assert measured.packed_bytes == len(way.pack(older, newest))
    if way.name != "plain":
        assert measured.packed_bytes < 20_000  # small steps leave sign and exponent as they were


def test_way_that_loses_a_bit_is_found_out() -> None:
    words = OLDER.view(np.uint32)
    lossy = Way(
        "lossy", lambda _, newest: newest.tobytes(), lambda _, data: np.frombuffer(data, np.uint32) & EVEN
    )

    with pytest.raises(RuntimeError, match="lossy does not give the weights back"):
        measure(lossy, words, words | 1, 20_000, 1, (1e-3, 1))


def test_update_moves_the_weights_by_steps_of_adam() -> None:
    torch.manual_seed(0)
    agent = NatureCNN()
    before = agent.actor.weight.detach().clone()
    Trainer(agent, 1e-4, WeightsBenchmark(batch=4, epochs=2, minibatches=2)).update()

    moved = (agent.actor.weight.detach() - before).abs()
    assert 0 < float(moved.max()) <= 4 * 1e-4 * 1.5


@pytest.mark.parametrize("options", [{"batch": 0}, {"updates": ()}, {"updates": (0,)}])
def test_option_that_cannot_work_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"whole numbers? from 1"):
        WeightsBenchmark(**options)
