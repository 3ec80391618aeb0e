from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.adapters import AgentAdapter, adapt
from clusterenv.errors import AgentError, ProtocolError
from clusterenv.policy import Publisher, decode_state, encode_state, policy_lag
from tests.agents import CleanRLAgent, MLPAgent, NumpyAgent, ScoringNumpyAgent, Spaces

OBS, ACTIONS = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3)
SPACES = Spaces(OBS, ACTIONS)


def adapted(agent: object) -> AgentAdapter:
    return adapt(agent, OBS, ACTIONS)


def test_publish_gives_versions_from_one_only_when_something_changed() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    adapter = adapted(agent)
    first = publisher.publish(adapter)

    assert (first.version, first.agent, len(first.digest)) == (1, 1, 8)
    assert publisher.publish(adapter) is first
    assert publisher.publish(adapted(agent)) is first
    assert publisher.current is first
    agent.actor[0].weight.data[0, 0] += 1  # through .data, which no version counter sees
    second = publisher.publish(adapter)
    assert (second.version, second.agent) == (2, 1)
    assert second.digest != first.digest


def test_publish_sees_a_write_through_numpy() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    adapter = adapted(agent)
    publisher.publish(adapter)
    agent.critic[0].bias.detach().numpy()[0] = 3.0

    assert publisher.publish(adapter).version == 2


def test_publish_may_trust_the_counters_of_torch() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    adapter = adapted(agent)
    publisher.publish(adapter, trust_counters=True)
    agent.actor[0].weight.data += 1
    assert publisher.publish(adapter, trust_counters=True).version == 1
    with torch.no_grad():
        agent.critic[0].weight += 1
    assert publisher.publish(adapter, trust_counters=True).version == 2
    agent.actor[0].bias.data = torch.ones(16)
    assert publisher.publish(adapter, trust_counters=True).version == 3
    assert publisher.publish(adapter).version == 3
    plain = NumpyAgent(SPACES)
    publisher.publish(adapted(plain), trust_counters=True)
    plain.weights += 1
    assert publisher.publish(adapted(plain), trust_counters=True).version == 5


def test_publish_names_an_agent_whose_state_is_not_there_yet() -> None:
    agent = MLPAgent(SPACES)
    agent.actor = torch.nn.LazyLinear(3)
    with pytest.raises(AgentError, match="uninitialized parameter"):
        Publisher().publish(adapted(agent))


def test_publish_sees_buffers() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    agent.register_buffer("obs_mean", torch.zeros(4))
    agent.register_buffer("passing", torch.zeros(4), persistent=False)
    adapter = adapted(agent)
    publisher.publish(adapter)
    agent.obs_mean += 1
    assert publisher.publish(adapter).version == 2
    agent.passing += 1
    assert publisher.publish(adapter).version == 3


def test_snapshot_does_not_change_with_the_agent() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    snapshot = publisher.publish(adapted(agent))
    before = decode_state(snapshot.payload)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.zero_()

    assert before["actor.0.weight"].any()
    assert decode_state(snapshot.payload)["actor.0.weight"].any()
    assert snapshot.nbytes == len(snapshot.payload)


def test_another_agent_object_is_another_agent() -> None:
    publisher = Publisher()
    publisher.publish(adapted(MLPAgent(SPACES)))
    other = publisher.publish(adapted(MLPAgent(SPACES)))

    assert (other.version, other.agent) == (2, 2)
    assert publisher.publish(adapted(CleanRLAgent(SPACES))).agent == 3


def test_another_structure_is_another_agent() -> None:
    publisher, agent = Publisher(), MLPAgent(SPACES)
    publisher.publish(adapted(agent))
    agent.critic[0] = torch.nn.Linear(4, 32)

    assert publisher.publish(adapted(agent)).agent == 2


@pytest.mark.parametrize("agent_type", [NumpyAgent, ScoringNumpyAgent])
def test_publish_takes_agents_without_torch(agent_type: Any) -> None:
    publisher, agent = Publisher(), agent_type(SPACES)
    adapter = adapted(agent)
    first = publisher.publish(adapter)
    assert publisher.publish(adapter) is first
    agent.weights[0, 0] = 1.0
    second = publisher.publish(adapter)

    assert (second.version, second.agent) == (2, 1)


def test_state_of_tied_tensors_is_sent_once() -> None:
    agent = MLPAgent(SPACES)
    before = Publisher().publish(adapted(agent)).nbytes
    agent.critic[2].weight = agent.actor[2].weight
    snapshot = Publisher().publish(adapted(agent))

    assert "critic.2.weight" not in decode_state(snapshot.payload)
    assert snapshot.nbytes < before - 16 * 16 * 4


DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


@given(
    arrays=st.dictionaries(
        st.text("abc.", min_size=1, max_size=4),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_state_survives_encoding(arrays: dict[str, tuple[str, list[int]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = {
        name: np.asarray(rng.normal(0, 9, shape)).astype(dtype) for name, (dtype, shape) in arrays.items()
    }
    decoded = decode_state(encode_state(state))

    assert decoded.keys() == state.keys()
    for name, array in state.items():
        assert (decoded[name].dtype, decoded[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(decoded[name], array)


def test_encode_state_makes_arrays_contiguous() -> None:
    array = np.arange(12.0).reshape(3, 4)[:, ::2].T

    np.testing.assert_array_equal(decode_state(encode_state({"a": array}))["a"], array)


def test_encode_state_refuses_what_cannot_be_sent() -> None:
    with pytest.raises(AgentError, match=r"cannot be sent.*names: <U1"):
        encode_state({"names": np.array(["x"])})


@pytest.mark.parametrize("payload", [b"", b"garbage", encode_state({"a": np.zeros(3)})[:-1]])
def test_decode_state_refuses_malformed_bytes(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="weights cannot be read"):
        decode_state(payload)


def test_policy_lag_counts_versions() -> None:
    assert policy_lag(13, 10) == 3
