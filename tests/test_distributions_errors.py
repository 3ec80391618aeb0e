"""Arguments that do not fit a family of distributions: named, and nothing written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clusterenv import distributions as d
from clusterenv.distributions import Family, Kind

CATEGORICAL = Family(Kind.CATEGORICAL, (3,))
MULTI = Family(Kind.MULTI_CATEGORICAL, (2, 1))
BERNOULLI = Family(Kind.BERNOULLI, (3,))
GAUSSIAN = Family(Kind.DIAG_GAUSSIAN, (2,))
FAMILIES = [CATEGORICAL, MULTI, BERNOULLI, GAUSSIAN]


def arguments(family: Family) -> dict[str, Any]:
    """What `sample` takes for two rows, all of it right."""
    return {
        "params": np.zeros((2, family.num_params), np.float32),
        "seed": 1,
        "env_ids": np.arange(2),
        "steps": np.zeros(2, np.int64),
        "actions_out": np.full((2, *family.action_shape), 7, family.action_dtype),
        "log_probs_out": np.full(2, 7, np.float32),
    }


def refused(family: Family, changed: dict[str, Any], error: type[Exception], message: str) -> None:
    """`sample` raises, and its outputs are as they were."""
    given = arguments(family) | changed
    params = given.pop("params")
    before = [np.array(given[name]) for name in ("actions_out", "log_probs_out")]
    with pytest.raises(error, match=message):
        d.sample(family, params, **given)
    for name, array in zip(("actions_out", "log_probs_out"), before, strict=True):
        np.testing.assert_array_equal(given[name], array)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed is -1; expected a whole number from 0"),
        ({"seed": 1.0}, TypeError, "seed is of type float; expected a whole number"),
        ({"env_ids": np.arange(2, dtype=np.int32)}, TypeError, "env_ids has dtype int32; expected int64"),
        ({"env_ids": np.arange(3)}, ValueError, r"env_ids has shape \(3,\); expected \(2,\)"),
        ({"env_ids": np.array([0, 2**32])}, ValueError, r"env_ids\[1\] is not from 0 to below 2\*\*32"),
        ({"env_ids": np.array([-1, 0])}, ValueError, r"env_ids\[0\] is not from 0"),
        ({"env_ids": np.arange(4)[::2]}, ValueError, "env_ids is a strided or unaligned view"),
        ({"steps": np.array([0, -1])}, ValueError, r"steps\[1\] is negative"),
        ({"steps": [0, 0]}, TypeError, "steps is of type list; expected a NumPy array"),
        ({"log_probs_out": np.zeros(2)}, TypeError, "log_probs_out has dtype float64; expected float32"),
        (
            {"log_probs_out": np.zeros(3, "f4")},
            ValueError,
            r"log_probs_out has shape \(3,\); expected \(2,\)",
        ),
        ({"log_probs_out": np.zeros(4, "f4")[::2]}, ValueError, "log_probs_out is a strided"),
        ({"log_probs_out": read_only(np.zeros(2, "f4"))}, ValueError, "log_probs_out is read-only"),
        ({"params": np.zeros((2, 9), "f4")}, ValueError, r"params has shape \(2, 9\); expected \(n, "),
        ({"params": np.zeros(2, "f4")}, ValueError, r"params has shape \(2,\); expected \(n, "),
    ],
)
def test_sample_names_the_argument(
    family: Family, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    refused(family, changed, error, message)


@pytest.mark.parametrize("family", FAMILIES)
def test_sample_checks_its_actions_and_params_against_the_family(family: Family) -> None:
    good = arguments(family)
    actions, params = good["actions_out"], good["params"]
    refused(
        family, {"params": params.astype(np.float64)}, TypeError, "params has dtype float64; expected float32"
    )
    refused(family, {"actions_out": actions.astype(np.uint16)}, TypeError, "actions_out has dtype uint16")
    refused(family, {"actions_out": np.concatenate([actions, actions])}, ValueError, "actions_out has shape")
    refused(family, {"actions_out": actions[..., None]}, ValueError, "actions_out has shape")
    refused(
        family, {"actions_out": np.repeat(actions, 2, axis=0)[::2]}, ValueError, "actions_out is a strided"
    )
    refused(family, {"actions_out": read_only(actions.copy())}, ValueError, "actions_out is read-only")


@pytest.mark.parametrize(
    ("family", "row", "message"),
    [
        (CATEGORICAL, [0, math.nan, 0], r"params\[1\] has a logit that is NaN or \+inf"),
        (CATEGORICAL, [0, math.inf, 0], r"params\[1\] has a logit that is NaN or \+inf"),
        (CATEGORICAL, [-math.inf] * 3, r"params\[1\] has only logits of -inf"),
        (MULTI, [0, 0, -math.inf], r"params\[1\] has only logits of -inf"),
        (BERNOULLI, [0, 0, math.nan], r"params\[1\] has a logit that is NaN"),
        (GAUSSIAN, [0, 0, math.nan, 0], r"params\[1\] has a mean or log standard deviation"),
        (GAUSSIAN, [-math.inf, 0, 0, 0], r"params\[1\] has a mean or log standard deviation"),
    ],
)
def test_sample_and_log_prob_name_a_row_that_is_no_distribution(
    family: Family, row: list[float], message: str
) -> None:
    params = np.array([[0] * len(row), row], np.float32)
    refused(family, {"params": params}, ValueError, message)
    with pytest.raises(ValueError, match=message):
        d.log_prob(family, params, np.zeros((2, *family.action_shape), family.action_dtype))


@pytest.mark.parametrize(
    ("family", "actions", "error", "message"),
    [
        (CATEGORICAL, np.array([0, 3]), ValueError, r"actions\[1\] has an index outside its categorical"),
        (CATEGORICAL, np.array([-1, 0]), ValueError, r"actions\[0\] has an index outside its categorical"),
        (CATEGORICAL, np.zeros((2, 1), np.int64), ValueError, r"actions has shape \(2, 1\); expected \(2,\)"),
        (CATEGORICAL, np.zeros(2, np.int32), TypeError, "actions has dtype int32; expected int64"),
        (MULTI, np.array([[0, 0], [1, 1]]), ValueError, r"actions\[1\] has an index outside its categorical"),
        (BERNOULLI, np.full((2, 3), 2, np.int8), ValueError, r"actions\[0\] has a value other than 0 and 1"),
        (BERNOULLI, np.zeros((2, 3), np.bool_), TypeError, "actions has dtype bool; expected int8"),
        (
            GAUSSIAN,
            np.zeros((2, 3), np.float32),
            ValueError,
            r"actions has shape \(2, 3\); expected \(2, 2\)",
        ),
        (GAUSSIAN, np.zeros((2, 2)), TypeError, "actions has dtype float64; expected float32"),
    ],
)
def test_log_prob_names_the_action(
    family: Family, actions: NDArray[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        d.log_prob(family, np.zeros((2, family.num_params), np.float32), actions)


@pytest.mark.parametrize("family", FAMILIES)
def test_kl_names_the_argument(family: Family) -> None:
    good = np.zeros((2, family.num_params), np.float32)
    for p, q, error, message in (
        (good.astype(int), good, TypeError, "p has dtype int64; expected float32 or float64"),
        (good.astype(np.float16), good, TypeError, "p has dtype float16; expected float32 or float64"),
        (good, good.astype(np.float64), TypeError, "q has dtype float64; expected float32"),
        (good[:, 1:], good, ValueError, r"p has shape .*; expected \(n, "),
        (good, good[:1], ValueError, r"q has shape \(1, .*; expected \(2, "),
        (good, good[:, 1:], ValueError, r"q has shape \(2, .*; expected \(2, "),
    ):
        with pytest.raises(error, match=message):
            d.kl(family, p, q)


def test_k3_names_the_argument() -> None:
    good = np.zeros(2, np.float32)
    with pytest.raises(TypeError, match="behaviour_log_probs has dtype int64; expected float32 or float64"):
        d.k3(good.astype(int), good)
    with pytest.raises(TypeError, match="target_log_probs has dtype float64; expected float32"):
        d.k3(good, good.astype(np.float64))
    with pytest.raises(ValueError, match=r"target_log_probs has shape \(3,\); expected \(2,\)"):
        d.k3(good, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"behaviour_log_probs has shape \(2, 1\); expected \(any,\)"):
        d.k3(good[:, None], good)


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_may_be_strided_unaligned_read_only_and_empty(family: Family) -> None:
    rng = np.random.default_rng(0)
    params = rng.standard_normal((4, family.num_params)).astype(np.float32)
    buffer = bytearray(params.nbytes + 1)
    unaligned = np.frombuffer(buffer, np.float32, offset=1, count=params.size).reshape(params.shape)
    unaligned[:] = params
    expected = d.kl(family, params, params + 1)
    for same in (read_only(params.copy()), np.asfortranarray(params), unaligned):
        assert d.kl(family, same, params + 1).tolist() == expected.tolist()
    assert d.kl(family, params[:0], params[:0]).shape == (0,)
