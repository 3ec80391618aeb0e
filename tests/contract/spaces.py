"""Strategies for spaces of every kind: fixed in size or not, nested in each other."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from tests.spaces import boxes, discretes, multi_binaries, multi_discretes, nested


class Card(gym.Space[str]):
    """A kind of space that nobody knows, with a suit and a rank as text."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"{'CDHS'[self.np_random.integers(4)]}{self.np_random.integers(1, 14)}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x[:1] in set("CDHS") and x[1:].isdigit() and 1 <= int(x[1:]) <= 13

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Card)

    __hash__ = None  # type: ignore[assignment]


def own_samples() -> st.SearchStrategy[spaces.Box]:
    """A Box that contains its samples: those of a Box of whole numbers without axes are no arrays."""
    return boxes().filter(lambda space: space.shape or space.dtype.kind == "f")


def leaves() -> st.SearchStrategy[gym.Space]:
    return own_samples() | discretes() | multi_discretes() | multi_binaries()


def texts() -> st.SearchStrategy[spaces.Text]:
    return st.builds(
        spaces.Text,
        st.integers(1, 6),
        min_length=st.integers(0, 1),
        charset=st.sampled_from(["ab", "xyz0", "äß€"]),
    )


def sequences(parts: st.SearchStrategy[gym.Space]) -> st.SearchStrategy[spaces.Sequence]:
    plain = st.builds(spaces.Sequence, parts)
    stacked = st.builds(
        spaces.Sequence, boxes().filter(lambda space: space.shape) | discretes(), stack=st.just(True)
    )
    return plain | stacked


def graphs() -> st.SearchStrategy[spaces.Graph]:
    nodes = st.sampled_from([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)])
    edges = st.sampled_from([None, spaces.Box(0, 9, (1,), np.int64), spaces.Discrete(3)])
    return st.builds(spaces.Graph, nodes, edges)


def choices(parts: st.SearchStrategy[gym.Space]) -> st.SearchStrategy[spaces.OneOf]:
    return st.lists(parts, min_size=1, max_size=3).map(spaces.OneOf)


def variable_size() -> st.SearchStrategy[gym.Space]:
    """A space without a fixed size, maybe with others inside it."""
    parts = st.recursive(leaves() | texts(), nested, max_leaves=2)
    return texts() | sequences(parts) | graphs() | choices(parts) | st.builds(Card)


def any_space() -> st.SearchStrategy[gym.Space]:
    """Any space that Gymnasium batches."""
    return st.recursive(leaves() | variable_size(), nested, max_leaves=4)


def any_action_space() -> st.SearchStrategy[gym.Space]:
    """Any space over whose batches Gymnasium iterates: it cannot where there is an empty Dict."""
    return any_space().filter(lambda space: not _has_empty_dict(space))


def _has_empty_dict(space: gym.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return not space.spaces or any(map(_has_empty_dict, space.spaces.values()))
    return isinstance(space, spaces.Tuple) and any(map(_has_empty_dict, space.spaces))


EVERYTHING: list[dict[str, gym.Space]] = [
    {
        "empty": spaces.Box(0, 1, (0,), np.float32),
        "scalar": spaces.Box(-1, 1, (), np.float64),
        "half": spaces.Box(-1, 1, (3,), np.float16),
        "start": spaces.Discrete(4, start=-2),
        "text": spaces.Text(5),
        "nested": spaces.Tuple([spaces.Dict(x=spaces.MultiBinary(3)), spaces.Tuple([spaces.Discrete(2)])]),
        "empty dict": spaces.Dict(),
    },
    {
        "unbounded": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        "sequence": spaces.Sequence(spaces.Dict(a=spaces.Discrete(3), b=spaces.Text(2))),
        "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
        "ordered": spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Discrete(2)}, sort_keys=False),
        "bits": spaces.MultiBinary([2, 2]),
    },
    {
        "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "stacked": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
        "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Text(3)]),
        "table": spaces.MultiDiscrete([[2, 3], [4, 5]]),
        "card": Card(),
    },
]
"""The spaces of scenario S25, in parts that are quick to sample."""


def observations(part: int) -> spaces.Dict:
    """One part of S25."""
    return spaces.Dict(EVERYTHING[part % len(EVERYTHING)], sort_keys=False)


def actions(part: int) -> spaces.Dict:
    """The same for actions: Gymnasium cannot iterate over an empty Dict."""
    parts = EVERYTHING[part % len(EVERYTHING)]
    return spaces.Dict({key: space for key, space in parts.items() if key != "empty dict"})
