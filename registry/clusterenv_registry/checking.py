"""Try an environment before it is registered: in a child process, since its code may do anything."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterenv_registry.entry import FileSource, ImportSource, as_item, from_item
from clusterenv_registry.errors import CheckError, RegistryError

if TYPE_CHECKING:
    import gymnasium as gym

CHECK_S = 60.0
"""What a check may take, the environment's imports included."""

STEPS = 20

_CHILD = (
    "import sys; sys.path.insert(1, sys.argv[1]); from clusterenv_registry.checking import child; child()"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found: the spaces as text, and what Gymnasium's checker warns of."""

    observation_space: str
    action_space: str
    warnings: tuple[str, ...] = ()


def check(
    source: FileSource | ImportSource, env_kwargs: Mapping[str, Any], timeout_s: float = CHECK_S
) -> Checked:
    """The environment imports, builds, resets, steps and passes Gymnasium's checker.

    Raises:
        CheckError: if not: says in which of these, with the traceback of its own code.
    """
    asked = {"source": as_item(source), "env_kwargs": dict(env_kwargs)}
    home = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(home)],  # the current folder is not where workers look
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that what the environment starts can be ended with it
    ) as process:
        try:
            output, complaints = process.communicate(json.dumps(asked), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise CheckError(f"{source} was not checked within {timeout_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        report = json.loads(output)
    except ValueError:
        tail = complaints.strip().splitlines()[-1:] or ["it said nothing"]
        raise CheckError(f"{source} ended its process, with status {process.returncode}: {tail[0]}") from None
    if "refused" in report:
        raise CheckError(report["refused"], report["traceback"])
    if "error" in report:
        raise CheckError(f"{source} fails in {report['stage']}: {report['error']}", report["traceback"])
    return Checked(report["observation_space"], report["action_space"], tuple(report["warnings"]))


def child() -> None:
    """What the child process runs: the question is on stdin, the report goes to stdout."""
    report_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints is no report
    asked = json.loads(sys.stdin.read())
    with report_to:
        json.dump(_report(from_item(asked["source"]), asked["env_kwargs"]), report_to)
    os._exit(0)  # threads of the environment's may be running


def _report(source: FileSource | ImportSource, env_kwargs: dict[str, Any]) -> dict[str, Any]:
    stage = "its import"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from gymnasium.utils.env_checker import check_env

            from clusterenv_registry import code
            from clusterenv_registry.loading import EnvFactory, load

            shipped = code.read(source) if isinstance(source, FileSource) else source
            load(shipped)
            stage = "its constructor"
            env = EnvFactory(str(source), shipped, env_kwargs)()
            stage = "reset and step"
            _walk(env)
            stage = "Gymnasium's checker"
            check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
            spaces = Checked(str(env.observation_space), str(env.action_space), _texts(caught))
            stage = "close"
            env.close()
    except RegistryError as error:
        return {"refused": f"{error}{_hint(error, source)}", "traceback": _own_part(error.__cause__)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is the environment's, and may be anything
        told = f"{_said(error)}{_hint(error, source)}"
        return {"stage": stage, "error": told, "traceback": _own_part(error)}
    return asdict(spaces)


def _walk(env: gym.Env[Any, Any]) -> None:
    """Some steps and resets, with a word on what they return that Gymnasium's own errors do not say."""
    first = env.reset(seed=0)
    _require_tuple(first, "reset", ("obs", "info"))
    env.action_space.seed(0)
    for _ in range(STEPS):
        answer = env.step(env.action_space.sample())
        _require_tuple(answer, "step", ("obs", "reward", "terminated", "truncated", "info"))
        if answer[2] or answer[3]:
            env.reset()


def _require_tuple(answer: object, call: str, parts: tuple[str, ...]) -> None:
    if isinstance(answer, tuple) and len(answer) == len(parts):
        return
    seen = f"{len(answer)} values" if isinstance(answer, tuple) else f"one {type(answer).__name__}"
    raise TypeError(f"{call} returned {seen}; expected Gymnasium's {len(parts)}: {', '.join(parts)}")


def _hint(error: BaseException, source: FileSource | ImportSource) -> str:
    """What to do about two things that go wrong often: arguments and modules that are not there."""
    cause = error.__cause__ if isinstance(error, RegistryError) else error
    if isinstance(cause, TypeError) and "required" in str(cause) and "argument" in str(cause):
        return """; give it with --env-kwargs '{"NAME": VALUE}'"""
    if not isinstance(cause, ModuleNotFoundError) or not cause.name:
        return ""
    first = cause.name.partition(".")[0]
    here = Path.cwd() if isinstance(source, ImportSource) else Path(source.path)
    here = here if here.is_dir() else here.parent
    there = next((path for path in (here / f"{first}.py", here / first) if path.exists()), None)
    if there is None:
        return ""
    if isinstance(source, ImportSource):
        return f"; {there} is not installed: install it, or register it as --path {there}:CLASS"
    if here == Path(source.path):
        return f"; {there} is a part of the package: import it as {here.name}.{first}"
    return (
        f"; {there} is not sent along with {Path(source.path).name}: make a package of the two, "
        "a folder with __init__.py, and register that"
    )


def _texts(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    texts = (str(each.message).replace("\x1b[33m", "").replace("\x1b[0m", "") for each in caught)
    return tuple(dict.fromkeys(text.removeprefix("WARN: ") for text in texts))


def _said(error: BaseException) -> str:
    """The type of an error, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _own_part(error: BaseException | None) -> str:
    """The traceback without the frames of this package; empty if there are no others."""
    import traceback

    if error is None:
        return ""
    told = traceback.TracebackException.from_exception(error)
    others = (str(Path(__file__).parent), importlib.__path__[0], "<frozen importlib")
    told.stack = traceback.StackSummary.from_list(
        [f for f in told.stack if not f.filename.startswith(others)]
    )
    return "".join(told.format()) if told.stack or isinstance(error, SyntaxError) else ""
