"""What docs/security.md says that others can see: modes of files, arguments, environments, shared memory."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from clusterenv import ClusterEnv, LocalConfig, SlurmConfig, session
from clusterenv.launchers import WorkerCommand
from clusterenv.transport import Connection
from clusterenv.worker_start import CONNECTION_VARIABLE
from tests.envs import Count

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_left")]


class Peeks(Count):
    """Its attribute `seen` is all that an environment finds in its process's environment."""

    @property
    def seen(self) -> str:
        return repr(sorted(os.environ.items())) + Path("/proc/self/environ").read_text()


def by_file(rank: int, path: Path | None, secret_env: object) -> WorkerCommand:
    return WORKER_COMMAND(rank, path, secret_env)


def by_environment(rank: int, path: Path | None, _: object) -> WorkerCommand:
    """As where no folder is shared."""
    assert path is not None
    return WORKER_COMMAND(rank, None, Connection.read(path).to_env())


WORKER_COMMAND = session._worker_command


@pytest.mark.parametrize("command", [by_file, by_environment])
def test_keys_are_in_no_arguments_logs_or_environments_of_user_code(
    command: Callable[..., WorkerCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_worker_command", command)
    mapped = set(os.listdir("/dev/shm"))  # noqa: PTH208 - names alone
    with ClusterEnv([partial(Peeks, 5)] * 2, LocalConfig(nodes=1, cpus_per_node=2)) as env:
        env.reset(seed=0)
        (folder,) = Path(tempfile.gettempdir()).glob("clusterenv-*")
        key = Connection.read(folder / "connection.json").client_secret_key
        workers = {worker["pid"] for worker in env.stats()["workers"]}
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

        assert len(processes) >= 4
        for process in processes:
            assert key not in " ".join(process.cmdline())
            assert process.pid in workers or key not in Path(f"/proc/{process.pid}/environ").read_text()
        assert not [seen for seen in env.get_attr("seen") if key in seen or CONNECTION_VARIABLE in seen]
        for path in [folder, *folder.rglob("*")]:
            mode = path.lstat().st_mode
            if not stat.S_ISSOCK(mode):
                assert stat.S_IMODE(mode) & 0o077 == 0, path
            if stat.S_ISREG(mode) and path.name != "connection.json":
                assert key not in path.read_text(errors="replace")
        for name in set(os.listdir("/dev/shm")) - mapped:  # noqa: PTH208
            assert stat.S_IMODE((Path("/dev/shm") / name).stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("shared", [None, "~/runs"])
def test_printed_script_holds_no_key(shared: str | None) -> None:
    env = ClusterEnv([partial(Count, 5)], SlurmConfig(shared_folder=shared))
    script = env.script()
    env.close()

    assert "secret_key" not in script
    assert "server_public_key" not in script
