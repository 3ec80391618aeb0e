"""Launched runs that the tests of one file share, one for each layout of processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from clusterenv import ClusterEnv
from tests.contract.gadgets import wrapped
from tests.contract.vectors import NUM_ENVS, TRANSPORTS


@pytest.fixture(scope="module", params=TRANSPORTS)
def gadgets(request: pytest.FixtureRequest) -> Iterator[ClusterEnv]:
    """Five gadgets, each in a wrapper."""
    with ClusterEnv([partial(wrapped, i) for i in range(NUM_ENVS)], TRANSPORTS[request.param]) as env:
        yield env
