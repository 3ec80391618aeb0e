"""Try an environment before it is registered: in a child process, since its code may do anything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterenv_registry.entry import FileSource, ImportSource, as_item, from_item
from clusterenv_registry.errors import CheckError

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
        [sys.executable, "-c", _CHILD, str(home)],
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
            env = EnvFactory("it", shipped, env_kwargs)()
            stage = "reset and step"
            env.reset(seed=0)
            env.action_space.seed(0)
            for _ in range(STEPS):
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    env.reset()
            stage = "Gymnasium's checker"
            check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
            spaces = Checked(str(env.observation_space), str(env.action_space), _texts(caught))
            stage = "close"
            env.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is the environment's, and may be anything
        return {"stage": stage, "error": _said(error), "traceback": _own_part(error)}
    return asdict(spaces)


def _texts(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    texts = (str(each.message).replace("\x1b[33m", "").replace("\x1b[0m", "") for each in caught)
    return tuple(dict.fromkeys(text.removeprefix("WARN: ") for text in texts))


def _said(error: BaseException) -> str:
    """The type of an error, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _own_part(error: BaseException) -> str:
    """The traceback without the frames of this package."""
    import traceback

    told = traceback.TracebackException.from_exception(error)
    here = str(Path(__file__).parent)
    told.stack = traceback.StackSummary.from_list([f for f in told.stack if not f.filename.startswith(here)])
    return "".join(told.format())
