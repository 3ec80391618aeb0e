"""The environment `Corridor`, offered to ClusterEnv by name."""

from __future__ import annotations

from clusterenv_registry import hookimpl


@hookimpl
def clusterenv_register_envs() -> dict[str, str]:
    """The environments of this plugin; they are imported where they are built."""
    return {"Corridor": "clusterenv_minimal.corridor:Corridor"}
