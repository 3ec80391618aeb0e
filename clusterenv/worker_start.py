"""What a worker process does first: its forkserver begins to import while the worker itself still does.

Needs the standard library alone, since each import that comes before it makes the start of a worker longer.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.forkserver
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CONNECTION_VARIABLE: Final = "CLUSTERENV_CONNECTION"
"""Where a worker finds its connection, keys included, if no file holds it; nothing that it starts sees it."""

PRELOAD_VARIABLE: Final = "CLUSTERENV_PRELOAD"
"""Modules, apart from our own, that the forkserver imports before it forks runners; unset: torch."""

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_PRELOAD: Final = "clusterenv._preload"
_END_WITH_WORKER: Final = "clusterenv._end_with_worker"


def start_early(connection: Path | None) -> None:
    """The forkserver of this worker is on its way, its sockets in the folder of the connection file.

    Not where there is no connection: such a worker ends at once, and says why.
    """
    if connection.is_file() if connection is not None else CONNECTION_VARIABLE in os.environ:
        keep_sockets_in(None if connection is None else connection.parent)
        atexit.register(_remove_socket)
        start_forkserver()


def start_forkserver() -> None:
    """A forkserver is there, or will be once it has imported what runners need; started at most once.

    It ends with this process; started from the main thread, it does so even while it still imports.
    """
    is_main = threading.current_thread() is threading.main_thread()
    multiprocessing.set_forkserver_preload([_END_WITH_WORKER, _PRELOAD] if is_main else [_PRELOAD])
    with _environment_of_runners():
        multiprocessing.forkserver.ensure_running()


def keep_sockets_in(run_folder: Path | None) -> None:
    """This process's multiprocessing keeps its sockets in the folder of the run, if that can hold any.

    The head removes it, even after this process was killed. Else they are in a folder in TMPDIR, or in /tmp.
    """
    folder = run_folder
    if folder is None or not _holds_sockets(folder):
        parent = tempfile.gettempdir() if _holds_sockets(Path(tempfile.gettempdir())) else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix="worker-sockets-", dir=parent))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # As multiprocessing.util.get_temp_dir does with a folder that it makes.
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]


def _holds_sockets(folder: Path) -> bool:
    """Whether a socket can be in `folder`: paths have at most 107 bytes, and some file systems no sockets."""
    probe = folder / f"{'probe':->32}{os.getpid():08}"  # as long as the longest name there will be
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(probe))
        probe.unlink()
    except OSError:
        return False
    return True


def _remove_socket() -> None:
    """That of the forkserver, which nobody can reach any more."""
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_address is not None:
        Path(server._forkserver_address).unlink(missing_ok=True)


@contextlib.contextmanager
def _environment_of_runners() -> Iterator[None]:
    """Processes started here use one thread, unless the user set a number, and know of no connection."""
    before = {name: os.environ.get(name) for name in (*THREAD_VARIABLES, CONNECTION_VARIABLE)}
    if "OMP_NUM_THREADS" not in os.environ:  # the others follow it
        os.environ.update({name: "1" for name in THREAD_VARIABLES if before[name] is None})
    os.environ.pop(CONNECTION_VARIABLE, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
