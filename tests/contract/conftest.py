"""Launched runs that the tests of one file share, one for each layout of processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from clusterenv import ClusterEnv
from clusterenv.worker_start import PRELOAD_VARIABLE
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS, TRANSPORTS


@pytest.fixture(scope="package", autouse=True)
def _starts_without_torch() -> Iterator[None]:
    """Hundreds of launches, most of which need no agent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRELOAD_VARIABLE, "")
        yield


@pytest.fixture(scope="module", params=TRANSPORTS)
def gadgets(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    """Five gadgets, each in a wrapper."""
    with ClusterEnv([partial(wrapped, i) for i in range(NUM_ENVS)], TRANSPORTS[request.param]) as env:
        yield env
