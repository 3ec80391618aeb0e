"""What a run does to the process of its head: a handler of SIGTERM, and more descriptors."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from clusterenv import farewell
from clusterenv.lifetime import MOST_DESCRIPTORS, raise_descriptor_limit
from tests.processes import alive, wait_until

SCRIPT = """
import signal, sys, tempfile, numpy as np
from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count
tempfile.tempdir = sys.argv[1]
if sys.argv[2] == "own":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
env = ClusterEnv([Count] * 2, LocalConfig(nodes=1, cpus_per_node=1), lease_s=60.0)
env.reset(seed=0)
print("steps", flush=True)
while True:
    env.step(np.zeros(2, np.int64))
"""


@pytest.mark.process
@pytest.mark.parametrize(("handler", "code"), [("none", -signal.SIGTERM), ("own", 7)])
def test_script_that_is_terminated_leaves_no_worker_and_no_folder(
    handler: str, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), handler]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        assert head.stdout.readline() == "steps\n"
        workers = [each.pid for each in psutil.Process(head.pid).children(recursive=True)]
        head.terminate()
        assert head.wait(60) == code
    wait_until(lambda: not alive(workers), 20)
    assert not list(tmp_path.glob("clusterenv-*"))


def test_head_may_open_what_the_hard_limit_grants() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, MOST_DESCRIPTORS), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_handler_is_there_as_long_as_a_run_and_never_in_place_of_another() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        forget, forget_too = farewell.close_on_sigterm(list), farewell.close_on_sigterm(dict)
        assert callable(signal.getsignal(signal.SIGTERM))
        forget()
        assert callable(signal.getsignal(signal.SIGTERM))
        forget_too()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        farewell.close_on_sigterm(list)()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
