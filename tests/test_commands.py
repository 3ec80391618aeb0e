from __future__ import annotations

import pytest

from clusterenv.commands import Failed
from clusterenv.errors import ActionError, AgentError, ClusterEnvError, EnvError, SpaceError, StateError


@pytest.mark.parametrize(
    "error",
    [
        EnvError("bad", env_index=3, action="1", remote_traceback="Traceback\n  there\n"),
        AgentError("bad"),
        ActionError("bad"),
        SpaceError("bad"),
        StateError("bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failed_carries_an_error_over(error: ClusterEnvError) -> None:
    twin = Failed.of(error).error()
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_failed_of_an_unknown_error_carries_its_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        {}["who"]
    failed = Failed.of(caught.value)
    assert failed.kind == "internal"
    assert failed.message == "KeyError: 'who'"
    assert "test_commands.py" in failed.traceback
    assert type(failed.error()) is ClusterEnvError
