"""As many open files as a process with thousands of connections needs."""

from __future__ import annotations

import resource

from clusterenv.errors import LaunchError


def allow_descriptors(count: int, what: str) -> None:
    """This process may have `count` files open; `what` is for the error.

    Raises:
        LaunchError: if the system's hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise LaunchError(
            f"{what} needs about {count} open files, and this process may have {hard}; raise the hard limit "
            "(`ulimit -Hn`, LimitNOFILE of a service, /etc/security/limits.conf), or ask for fewer"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
