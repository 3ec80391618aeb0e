"""EnvPool as the backend `envpool` of ClusterEnv."""

from __future__ import annotations

from clusterenv_registry import hookimpl


@hookimpl
def clusterenv_register_backends() -> dict[str, str]:
    """The backend of this plugin; EnvPool is imported where a pool is built."""
    return {"envpool": "clusterenv_envpool.factory:make"}
