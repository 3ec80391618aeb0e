"""Workers that lose sight of a head that lives on."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest

from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count
from tests.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]


def test_replacement_finds_the_keys_that_a_cut_off_worker_has_removed() -> None:
    """A worker that hears nothing of the head takes it for gone, and leaves no key behind."""
    with ClusterEnv([partial(Count, 5)], LocalConfig(cpus_per_node=1), lease_s=4.0) as env:
        env.reset(seed=0)
        worker = env.stats()["workers"][0]["pid"]
        assert env._run is not None
        path = env._run.session._connection_path  # type: ignore[union-attr]
        path.unlink()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: env.stats()["workers"][0]["restarts"] == 1)

        def stepped() -> bool:
            return bool(env.step(np.zeros(1, np.int64))[4].get("valid", np.ones(1))[0])

        wait_until(stepped, 60)
        assert path.exists()
