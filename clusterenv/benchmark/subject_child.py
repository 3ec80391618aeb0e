"""The process of one subject: makes it, then measures on order, over a pipe that its parent holds.

It imports nothing that a peer's own interpreter might lack, but Gymnasium and NumPy.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from clusterenv.benchmark.contenders import Contender, Shape
from clusterenv.benchmark.subjects import SUBJECTS
from clusterenv.benchmark.tasks import TASKS

if TYPE_CHECKING:
    Pipe = Connection[Any, Any]

WARM_UP_S = 0.2


def main(words: list[str]) -> int:
    """Serve the orders that come over a descriptor, until it is closed; the exit status."""
    pipe: Pipe = Connection(int(words[0]))
    try:
        contender, versions = _make(json.loads(pipe.recv_bytes()))
        try:
            contender.measure(WARM_UP_S)
            _tell(pipe, versions=versions)
            while True:
                _tell(pipe, rate=contender.measure(json.loads(pipe.recv_bytes())["seconds"]))
        finally:
            contender.close()
    except _Absent as absent:
        _tell(pipe, missing=absent.args[0])
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is a line of the report
        sys.stderr.write(traceback.format_exc())
        _tell(pipe, failed=f"{type(error).__name__}: {error}")
    return 0


def _make(request: dict[str, Any]) -> tuple[Contender, dict[str, str]]:
    """The contender, and the versions of the packages that it uses."""
    subject, task = SUBJECTS[request["subject"]], TASKS[request["task"]]
    for module, install in ((task.module, task.install), (subject.package, subject.install)):
        if module and find_spec(module) is None:
            raise _Absent(install)
    module, _, function = subject.make.partition(":")
    made: Contender = getattr(import_module(module), function)(task, Shape(**request["shape"]))
    packages = ("gymnasium", "numpy", "torch", subject.package)
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in packages}
    return made, {name: str(version) for name, version in versions.items() if version}


def _tell(pipe: Pipe, **answer: Any) -> None:
    pipe.send_bytes(json.dumps(answer).encode())


class _Absent(Exception):
    """A package is missing; the command that installs it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
