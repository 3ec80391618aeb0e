from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.errors import EnvError, SetupTimeout
from clusterenv.probe import ProbeResult, probe, probe_inline
from tests.envs import Count, Fails, Hangs, Nested
from tests.processes import alive, wait_until

pytestmark = pytest.mark.process

ROOT = str(Path(__file__).parent.parent)
TIMEOUT_S = 60.0


def probed(env_fn: Callable[[], gym.Env], timeout_s: float = TIMEOUT_S) -> ProbeResult:
    return probe(cloudpickle.dumps(env_fn), sys_path=[ROOT], timeout_s=timeout_s)


def test_probe_tells_spaces_spec_metadata_and_render_mode() -> None:
    result = probed(lambda: gym.make("CartPole-v1", render_mode="rgb_array"))
    twin = gym.make("CartPole-v1")
    assert result.single_observation_space == twin.observation_space
    assert result.single_action_space == twin.action_space
    assert result.spec.id == "CartPole-v1"
    assert result.render_mode == "rgb_array"
    assert result.metadata == twin.metadata


def test_probe_keeps_the_order_of_nested_spaces() -> None:
    result = probed(Nested)
    assert result.single_observation_space == Nested.observation_space
    assert list(result.single_observation_space.spaces) == list(Nested.observation_space.spaces)
    assert result.spec is None


def test_probe_runs_in_another_process_without_torch() -> None:
    class Tells(Count):
        def __init__(self) -> None:
            super().__init__()
            self.metadata = {"pid": os.getpid(), "torch": "torch" in sys.modules}

    metadata = probed(Tells).metadata
    assert metadata["pid"] != os.getpid()
    assert metadata["torch"] is False


def test_probe_is_not_disturbed_by_an_env_that_prints_or_closes_stdout() -> None:
    def noisy() -> gym.Env:
        sys.stdout.write("x" * 200_000)
        os.write(1, b"y" * 200_000)
        sys.stdout.close()
        os.close(1)
        return Count()

    assert probed(noisy).single_action_space == spaces.Discrete(2)


def test_probe_carries_the_traceback_of_a_constructor_that_raises() -> None:
    with pytest.raises(EnvError, match="building an environment failed: RuntimeError: on purpose") as caught:
        probed(functools.partial(Fails, "init"))
    assert "in _fail" in caught.value.remote_traceback
    assert "probe.py" not in caught.value.remote_traceback


def test_probe_says_which_module_is_missing() -> None:
    blob = cloudpickle.dumps(functools.partial(Count, 3)).replace(b"tests.envs", b"tests.nope")
    with pytest.raises(EnvError, match=r"No module named 'tests.nope'"):
        probe(blob, sys_path=[ROOT], timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: os._exit(3), "ended its process.*exit code 3"),
        (lambda: os.kill(os.getpid(), 11), "ended its process.*killed by SIGSEGV"),
        (lambda: "no environment", "returned 'no environment'; expected a gymnasium.Env"),
    ],
    ids=["sys.exit", "_exit", "crash", "not an env"],
)
def test_probe_says_how_building_ended(end: Callable[[], Any], how: str) -> None:
    with pytest.raises(EnvError, match=how):
        probed(end)


def test_probe_kills_what_hangs_and_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    def hang() -> gym.Env:
        helper = subprocess.Popen(["sleep", "1000"])
        note.write_text(f"{os.getpid()} {helper.pid}")
        return Hangs("init")

    begin = time.monotonic()
    with pytest.raises(SetupTimeout, match="setup_timeout_s = 3 s"):
        probed(hang, timeout_s=3.0)
    assert time.monotonic() - begin < 10
    pids = [int(pid) for pid in note.read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not alive(pids), within_s=5)


def test_probe_does_not_wait_for_an_env_that_hangs_in_close(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Count):
        def close(self) -> None:
            time.sleep(1000)

    monkeypatch.setattr("clusterenv.probe.CLOSE_TIMEOUT_S", 0.5)
    begin = time.monotonic()
    assert probed(Slow).single_action_space == spaces.Discrete(2)
    assert time.monotonic() - begin < 30


def test_probe_gives_up_metadata_that_cannot_travel() -> None:
    class Odd(Count):
        def __init__(self) -> None:
            super().__init__()
            self.metadata = {"render_fps": 30, "lock": threading.Lock()}

    assert probed(Odd).metadata == {"render_fps": 30}


def test_probe_takes_the_script_folder_first(tmp_path: Path) -> None:
    (tmp_path / "my_own_env.py").write_text("from tests.envs import Count\nclass Mine(Count): pass\n")
    blob = cloudpickle.dumps(functools.partial(Count, 3)).replace(b"tests.envs", b"my_own_env")
    result = probe(blob, sys_path=[str(tmp_path), ROOT], timeout_s=TIMEOUT_S)
    assert result.single_action_space == spaces.Discrete(2)


def test_probe_works_without_a_main_guard_for_a_class_of_the_script() -> None:
    script = """
        import sys
        sys.path.insert(0, {root!r})
        print("script runs")
        import cloudpickle, gymnasium as gym
        from clusterenv.probe import probe
        class Mine(gym.Env):
            observation_space = gym.spaces.Discrete(7)
            action_space = gym.spaces.Discrete(3)
        result = probe(cloudpickle.dumps(Mine), sys_path=[], timeout_s=60)
        print(result.single_observation_space)
    """
    code = textwrap.dedent(script).format(root=ROOT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd="/")
    assert done.stdout.split("\n")[:2] == ["script runs", "Discrete(7)"], done.stderr


def test_probe_ends_with_its_parent(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import cloudpickle, os, pathlib, time
from clusterenv.probe import probe
def hang():
    pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
    time.sleep(1000)
probe(cloudpickle.dumps(hang), sys_path=[{ROOT!r}], timeout_s=1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_until(lambda: note.exists() and note.read_text())
    child = int(note.read_text())
    assert alive([child])
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive([child]), within_s=5)


def test_probe_inline_describes_and_closes_in_this_process() -> None:
    closed = []

    class Closes(Count):
        def close(self) -> None:
            closed.append(os.getpid())

    assert probe_inline(Closes).single_action_space == spaces.Discrete(2)
    assert closed == [os.getpid()]


def test_probe_inline_raises_the_error_of_the_constructor() -> None:
    with pytest.raises(EnvError, match="on purpose"):
        probe_inline(functools.partial(Fails, "init"))


def test_probe_result_pickles() -> None:
    result = probe_inline(Count)
    twin = pickle.loads(pickle.dumps(result))
    assert twin.single_observation_space == result.single_observation_space
    assert np.array_equal(twin.single_observation_space.high, result.single_observation_space.high)
