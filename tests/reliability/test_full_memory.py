"""A full /dev/shm: what needs none goes on, and what does ends in an error with words, never in a SIGBUS."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import numpy as np
from clusterenv import ClusterEnv, LocalConfig
from clusterenv.errors import ClusterEnvError
from tests.agents import MLPAgent
from tests.envs import Busy
from tests.test_in_place import Looks, Numbered
with open("/dev/shm/full", "wb") as file:
    try:
        file.write(bytes(1 << 20))
    except OSError:
        pass
assert os.statvfs("/dev/shm").f_bavail == 0
try:
    with ClusterEnv([Busy] * 4, LocalConfig(nodes=1, cpus_per_node=2), seed=0) as env:
        env.reset()
        env.step(np.zeros(4, np.int64))
        assert env.rollout(MLPAgent(env), 256).valid.all()
    with ClusterEnv([Numbered] * 4, LocalConfig(nodes=1, cpus_per_node=2), seed=0) as env:
        assert env.rollout(Looks(), 64).obs.any(axis=(2, 3, 4))[1:].all()
        print("works")
except ClusterEnvError as error:
    print("error:", error)
"""
MOUNTED = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


def test_full_dev_shm_is_survived_or_an_error_in_words() -> None:
    own_mounts = ["unshare", "-m", "sh", "-c", MOUNTED, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, "true"], check=False).returncode:
        pytest.skip("no mount namespace of our own can be had here")
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "works\n" or "/dev/shm" in done.stdout
