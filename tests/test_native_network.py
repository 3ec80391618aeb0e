"""Small networks in C++, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from clusterenv.native import Drawing, Network


def mlp() -> tuple[Network, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 33), (33, 2))]
    network = Network(4)
    network.add_linear(weights[0], np.ones(33, np.float32))
    network.add_pointwise("tanh")
    network.add_linear(weights[1])
    return network, weights


@pytest.mark.parametrize("rows", [0, 1, 5, 100])
def test_network_computes_what_numpy_does(rows: int) -> None:
    network, (first, second) = mlp()
    obs = np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32)
    out = np.full((rows, 2), np.nan, np.float32)
    network.run(obs, out)
    assert (network.inputs, network.outputs) == (4, 2)
    np.testing.assert_allclose(out, np.tanh(obs @ first + 1) @ second, rtol=1e-5, atol=1e-5)


def test_network_refuses_what_does_not_fit() -> None:
    network, _ = mlp()
    with pytest.raises(ValueError, match=r"weight has shape \(3, 3\); expected \(2, any\)"):
        network.add_linear(np.zeros((3, 3), np.float32))
    with pytest.raises(ValueError, match="function is cosine; expected one of tanh, relu,"):
        network.add_pointwise("cosine")
    with pytest.raises(ValueError, match="another number of constants"):
        network.add_pointwise("add")
    with pytest.raises(TypeError, match="rows has dtype float64; expected float32"):
        network.run(np.zeros((1, 4)), np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(2, 2\); expected \(1, 2\)"):
        network.run(np.zeros((1, 4), np.float32), np.zeros((2, 2), np.float32))


def test_drawing_refuses_a_kind_that_it_does_not_know() -> None:
    network, _ = mlp()
    with pytest.raises(ValueError, match="kind is tanh_gaussian; expected categorical, bernoulli or"):
        Drawing(network, "tanh_gaussian")
    with pytest.raises(ValueError, match="log_std is for diag_gaussian, and only for that"):
        Drawing(network, "diag_gaussian")
    drawing = Drawing(network, "diag_gaussian", np.zeros(2, np.float32))
    assert (drawing.inputs, drawing.num_params, drawing.action_size) == (4, 4, 2)
    assert drawing.action_dtype == np.float32
