"""The errors a caller of ClusterEnv can meet, one class for each thing that can be done about them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError


def shortened(value: object, most: int = 200) -> str:
    """`repr(value)` for a message, in at most `most` characters."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a value of the user's, which may do anything
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def say(error: BaseException) -> str:
    """Type and text of an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own text may fail too
        return f"{type(error).__name__}, whose text cannot be made"


class ClusterEnvError(Exception):
    """Root of every error that ClusterEnv raises on purpose."""


class ConfigError(ClusterEnvError, ValueError):
    """A setting has a value that cannot work: names the setting, what was seen and what is expected."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        """Say that setting `name` is `value` where `expected` is needed."""
        super().__init__(f"{name} is {shortened(value, 1000)}; expected {expected}")
        self.name = name
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        """Pickle by the three facts, not by the message."""
        return (type(self), (self.name, self.value, self.expected))


class SpaceError(ClusterEnvError, TypeError):
    """A space, or a value that should lie in one, has a shape, dtype or kind that cannot be batched."""


class ActionError(ClusterEnvError, ValueError):
    """The actions given to `step` do not fit the batched action space; no environment has moved."""


class AgentError(ClusterEnvError, TypeError):
    """The object given as an agent has none of the methods that ClusterEnv can act with, or one failed."""


class LaunchError(ClusterEnvError, RuntimeError):
    """Workers could not be started: the message says what the launcher saw."""


class DeadlineError(ClusterEnvError, TimeoutError):
    """A wait reached its limit: the message names the setting that holds the limit."""


class SetupTimeout(DeadlineError):
    """Environments or workers were not ready within `setup_timeout_s` or `connect_timeout_s`."""


class StepTimeout(DeadlineError):
    """One environment did not return from `step` or `reset` within `step_timeout_s`; its runner is gone."""


class ConnectError(ClusterEnvError, ConnectionError):
    """A worker could not reach the head: each address tried is listed with what failed."""


class ProtocolError(ClusterEnvError):
    """Bytes from a peer do not follow the protocol; they were refused."""


class StateError(ClusterEnvError, RuntimeError):
    """The call does not fit the present state, such as a second `launch` or a `step` before `reset`."""


class UseAfterClose(ClosedEnvironmentError, StateError):
    """The environments were closed; make a new ClusterEnv."""


class CallPending(AlreadyPendingCallError, StateError):
    """A call that was begun has to be finished first; `name` says which."""


class NoCallPending(NoAsyncCallError, StateError):
    """There is no call to wait for, since none was begun."""


class CallTimeout(multiprocessing.TimeoutError, DeadlineError):
    """A call is not finished within the seconds given; it goes on, and can be waited for again."""


class EnvError(ClusterEnvError, RuntimeError):
    """An environment raised: names it and carries the traceback text of the place where it ran."""

    def __init__(
        self,
        message: str,
        *,
        env_index: int | None = None,
        action: str | None = None,
        remote_traceback: str = "",
        worker: int | None = None,
        host: str | None = None,
    ) -> None:
        """Say `message`, then the remote traceback if there is one."""
        super().__init__(f"{message}\n\n{remote_traceback.rstrip()}" if remote_traceback else message)
        self.env_index = env_index
        self.action = action
        self.remote_traceback = remote_traceback
        self.worker = worker
        self.host = host


class MissingAttribute(EnvError, AttributeError):
    """An environment has no attribute of the name that `call`, `get_attr` or `set_attr` was given."""


class RunnerLost(ClusterEnvError, RuntimeError):
    """A runner process ended or broke while its worker lives on."""

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        """Say `message`; `exit_code` is negative for a signal, as in `subprocess`."""
        super().__init__(message)
        self.exit_code = exit_code


class WorkerLost(ClusterEnvError, ConnectionError):
    """A worker is gone: who, where, which environments, how it ended, and the end of its log."""

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str | None,
        env_indices: Sequence[int],
        reason: str,
        exit_code: int | None = None,
        signal: int | None = None,
        job_id: str | None = None,
        log_path: Path | None = None,
        log_tail: str = "",
    ) -> None:
        """Say `message`, then the end of the worker's log if there is one."""
        tail = f"\nThe end of {log_path}:\n{log_tail.rstrip()}" if log_tail.strip() else ""
        super().__init__(message + tail)
        self.rank = rank
        self.host = host
        self.env_indices = tuple(env_indices)
        self.reason = reason
        self.exit_code = exit_code
        self.signal = signal
        self.job_id = job_id
        self.log_path = log_path
        self.log_tail = log_tail
