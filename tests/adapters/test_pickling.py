"""Agents on their way to a worker: another process, with other modules at hand."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical

from clusterenv.adapters import adapt, loads
from clusterenv.errors import AgentError
from clusterenv.policy import encode_state
from tests.agents import MLPAgent, Spaces

BOX, TWO = spaces.Box(-1, 1, (5,)), spaces.Discrete(2)
ROOT = Path(__file__).parents[2]

AGENT = """
import torch
from torch.distributions import Categorical

SCALE = 2.0

def scaled(x):
    return x * SCALE

class Base(torch.nn.Module):
    def distribution(self, obs):
        return Categorical(logits=scaled(self.actor(obs)))

class Agent(Base):
    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Linear(5, 2)
"""
SEND = """
import sys
from pathlib import Path
from gymnasium import spaces
from clusterenv.adapters import adapt
from clusterenv.policy import encode_state
learner = adapt(Agent(), spaces.Box(-1, 1, (5,)), spaces.Discrete(2))
Path(sys.argv[1]).write_bytes(learner.dumps())
Path(sys.argv[2]).write_bytes(encode_state(learner.transfer_state()))
"""
RECEIVE = """
import sys
import numpy as np
from pathlib import Path
from gymnasium import spaces
from clusterenv.adapters import loads, prepare_runner
from clusterenv.policy import decode_state
prepare_runner()
worker = loads(Path(sys.argv[1]).read_bytes(), spaces.Box(-1, 1, (5,)), spaces.Discrete(2))
worker.load_state(decode_state(Path(sys.argv[2]).read_bytes()))
obs = np.ones((3, 5), np.float32)
acted = worker.act(obs, seed=1, env_ids=np.arange(3), steps=np.zeros(3, np.int64))
assert acted.actions.shape == (3,)
assert acted.params.std() > 0
print("acted")
"""


def run(code: str, *arguments: Path) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'registry'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_agent_defined_in_main_acts_in_another_process(tmp_path: Path) -> None:
    blob, state = tmp_path / "blob", tmp_path / "state"
    run(AGENT + SEND, blob, state)

    assert run(RECEIVE, blob, state) == "acted\n"


@pytest.mark.process
def test_agent_of_a_module_that_workers_cannot_import_acts_there(tmp_path: Path) -> None:
    (tmp_path / "hidden_agent.py").write_text(AGENT)
    spec = importlib.util.spec_from_file_location("hidden_agent", tmp_path / "hidden_agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_agent"] = module
    try:
        spec.loader.exec_module(module)
        learner = adapt(module.Agent(), BOX, TWO)
        blob, state = tmp_path / "blob", tmp_path / "state"
        blob.write_bytes(learner.dumps())
        state.write_bytes(encode_state(learner.transfer_state()))
    finally:
        del sys.modules["hidden_agent"]

    assert "hidden_agent" not in cloudpickle.list_registry_pickle_by_value()
    assert run(RECEIVE, blob, state) == "acted\n"


def test_agent_of_an_importable_module_is_sent_by_name() -> None:
    blob = adapt(MLPAgent(Spaces(BOX, TWO)), BOX, TWO).dumps()

    assert b"torch.nn.modules.linear" in blob
    assert b"tests.agents" in blob
    assert b"_make_skeleton_class" not in blob or importlib.util.find_spec("tests") is None


def test_weights_are_left_out_but_other_tensors_travel() -> None:
    agent = MLPAgent(Spaces(BOX, TWO), hidden=256)
    agent.constant = torch.arange(3.0)
    agent.twin = agent.actor[0].weight
    learner = adapt(agent, BOX, TWO)
    blob = learner.dumps()
    copy: Any = loads(blob, BOX, TWO).agent

    assert len(blob) < 20_000 < sum(array.nbytes for array in learner.state().values())
    assert copy.constant.tolist() == [0.0, 1.0, 2.0]
    assert copy.twin is copy.actor[0].weight
    assert isinstance(copy.twin, nn.Parameter)
    assert not copy.twin.any()
    assert agent.actor[0].weight.any()


def test_device_of_an_agent_becomes_the_cpu() -> None:
    agent = MLPAgent(Spaces(BOX, TWO))
    agent.device = torch.device("cuda", 1)
    copy: Any = loads(adapt(agent, BOX, TWO).dumps(), BOX, TWO).agent

    assert copy.device == torch.device("cpu")
    assert agent.device == torch.device("cuda", 1)


class Holder:
    def __init__(self, held: object) -> None:
        self.inner = {"handles": [1, held]}


LOCK = threading.Lock()


class UsesGlobal(nn.Module):
    def distribution(self, obs: Any) -> Categorical:
        with LOCK:
            return Categorical(logits=obs[:, :2])


def test_part_that_cannot_be_pickled_is_named() -> None:
    agent = MLPAgent(Spaces(BOX, TWO))
    agent.actor.helper = Holder(threading.Lock())

    with pytest.raises(AgentError, match=r"agent\.actor\.helper\.inner\['handles'\]\[1\] \(lock\) cannot be"):
        adapt(agent, BOX, TWO).dumps()


def test_global_that_cannot_be_pickled_is_named() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(
            AgentError, match=r"agent\.__class__\.distribution \(global LOCK\) \(lock\) cannot be"
        ):
            adapt(UsesGlobal(), BOX, TWO).dumps()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_agent_of_another_python_is_refused() -> None:
    blob = adapt(MLPAgent(Spaces(BOX, TWO)), BOX, TWO).dumps()

    with pytest.raises(AgentError, match=r"pickled by Python 2\.7, but this worker runs 3\.\d+ .*same minor"):
        loads(b"2.7\n" + blob.partition(b"\n")[2], BOX, TWO)


def test_agent_that_needs_a_missing_module_is_refused() -> None:
    blob = adapt(MLPAgent(Spaces(BOX, TWO)), BOX, TWO).dumps()
    python, _, _ = blob.partition(b"\n")

    with pytest.raises(AgentError, match=r"No module named 'nowhere'.*install nowhere there"):
        loads(python + b"\ncnowhere\nAgent\n.", BOX, TWO)


def test_garbage_is_refused() -> None:
    with pytest.raises(AgentError, match="pickled by Python"):
        loads(np.random.default_rng(0).bytes(100), BOX, TWO)
