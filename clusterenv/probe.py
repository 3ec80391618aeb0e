"""What an environment looks like, found out by building one in a process of its own."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import cloudpickle
import gymnasium as gym

from clusterenv.errors import EnvError, SetupTimeout
from clusterenv.lifetime import describe_exit, end_with_parent, kill_tree
from clusterenv.pickling import can_pickle
from clusterenv.sources import require_env

EnvFn = Callable[[], gym.Env[Any, Any]]

_LONGEST_WAIT_S: Final = 1e6  # what the system calls behind a wait can take

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds an environment may need to close after it has been described."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Facts about one environment, known before any worker runs."""

    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    render_mode: str | None
    spec: Any | None
    """Gymnasium's EnvSpec; none where the environment has none or it cannot be pickled."""


def probe(env_blob: bytes, *, sys_path: Sequence[str], timeout_s: float) -> ProbeResult:
    """Facts about the environment that the cloudpickled callable builds, from a fresh child process.

    Needs no main guard, and works from notebooks and `python -c`, since the caller's main module is not
    imported.

    Raises:
        EnvError: if building it raises or ends the process; carries the traceback of the child.
        SetupTimeout: if it has not been built after `timeout_s`; the child and all it started are gone.
    """
    deadline = time.monotonic() + min(timeout_s, _LONGEST_WAIT_S)
    results, answers = Pipe(duplex=False)
    with results:
        with answers:
            child = _start(env_blob, sys_path, answers.fileno())
        try:
            result = _receive(results, child, deadline, timeout_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(CLOSE_TIMEOUT_S)
        finally:
            if child.poll() is None:
                kill_tree(child.pid)
                child.wait()
    if isinstance(result, EnvError):
        raise result
    return result


def probe_inline(env_fn: EnvFn) -> ProbeResult:
    """Facts about the environment that `env_fn` builds, in this process; it is closed again.

    Raises:
        EnvError: if building it raises.
    """
    env = _build(lambda: env_fn)
    try:
        return _describe(env)
    finally:
        env.close()


def main(answers_fd: int) -> None:
    """In the child: build the environment named on standard input, answer on `answers_fd`, close it."""
    end_with_parent()
    sys_path, env_blob = pickle.load(sys.stdin.buffer)
    sys.path[:] = dict.fromkeys([*sys_path, *sys.path])
    env = None
    result: ProbeResult | EnvError
    try:
        env = _build(lambda: cast("EnvFn", pickle.loads(env_blob)))
        result = _describe(env)
    except EnvError as error:
        result = error
    with Connection(answers_fd, readable=False) as answers:
        answers.send_bytes(cloudpickle.dumps(result))
    if env is not None:
        env.close()


def _start(env_blob: bytes, sys_path: Sequence[str], answers_fd: int) -> subprocess.Popen[bytes]:
    """A child that finds its task in a file, so that handing it over cannot block."""
    root = str(Path(__file__).parent.parent)  # the child runs this very package, wherever it was found
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from clusterenv.probe import main; "
        f"del sys.path[0]; main({answers_fd})"
    )
    with tempfile.TemporaryFile() as task:
        pickle.dump((list(sys_path), env_blob), task)
        task.seek(0)
        return subprocess.Popen([sys.executable, "-c", code], stdin=task, pass_fds=[answers_fd])


def _receive(
    results: Connection, child: subprocess.Popen[bytes], deadline: float, timeout_s: float
) -> ProbeResult | EnvError:
    if not results.poll(max(0.0, deadline - time.monotonic())):
        raise SetupTimeout(
            f"an environment was not built within setup_timeout_s = {timeout_s:g} s; "
            "the process that built it was killed"
        )
    try:
        result: ProbeResult | EnvError = pickle.loads(results.recv_bytes())
    except EOFError:
        code = child.wait(max(1.0, deadline - time.monotonic()))
        raise EnvError(f"building an environment ended its process ({describe_exit(code)})") from None
    return result


def _build(load: Callable[[], EnvFn]) -> gym.Env[Any, Any]:
    env_fn: EnvFn | None = None
    try:
        env_fn = load()
        env = env_fn()
    except (Exception, SystemExit) as error:
        what = "building an environment failed"
        if _names_an_argument(error, getattr(env_fn, "env_kwargs", {})):
            raise EnvError(_sentence(what, error)) from error
        raise _env_error(what, error) from error
    return require_env(env, "a callable")


def _describe(env: gym.Env[Any, Any]) -> ProbeResult:
    try:
        return ProbeResult(
            single_observation_space=env.observation_space,
            single_action_space=env.action_space,
            metadata={key: value for key, value in env.metadata.items() if can_pickle(value)},
            render_mode=env.render_mode,
            spec=env.spec if can_pickle(env.spec) else None,
        )
    except Exception as error:
        raise _env_error("an environment could not be described", error) from error


def _env_error(message: str, error: BaseException) -> EnvError:
    """`error` of user code; its traceback begins where our own frames end."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return EnvError(_sentence(message, error), remote_traceback=text)


def _sentence(message: str, error: BaseException) -> str:
    return f"{message}: {type(error).__name__}: {error}"


def _names_an_argument(error: BaseException, env_kwargs: Mapping[str, object]) -> bool:
    """Whether the constructor refused an argument by name, so that its traceback would say no more."""
    return isinstance(error, TypeError | ValueError) and any(repr(name) in str(error) for name in env_kwargs)
