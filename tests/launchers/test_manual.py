from __future__ import annotations

from pathlib import Path

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import ManualConfig
from clusterenv.launchers import WorkerCommand, WorkerState, make_launcher
from clusterenv.launchers.manual import ManualLauncher, ManualRequest


def command(rank: int) -> WorkerCommand:
    return WorkerCommand(("/my py", "-m", "clusterenv", "worker", "--rank", str(rank)), {"A": "b c"})


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def launcher(said: list[str], tmp_path: Path) -> ManualLauncher:
    return ManualLauncher(ManualRequest((command(0), command(1)), tmp_path), said.append)


def test_submit_shows_a_line_for_each_worker(launcher: ManualLauncher, said: list[str]) -> None:
    launcher.submit()
    lines = "".join(said).splitlines()
    assert "waits for 2 worker(s)" in lines[0]
    assert lines[1:] == [f"A='b c' '/my py' -m clusterenv worker --rank {rank}" for rank in range(2)]
    assert launcher.request().script() == "".join(f"{line}\n" for line in lines[1:])


def test_lines_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_launcher(ManualConfig(nodes=1), command, run_dir=tmp_path).submit()
    shown = capsys.readouterr()
    assert "clusterenv worker --rank 0" in shown.err
    assert shown.out == ""


def test_workers_are_pending_until_cancel(launcher: ManualLauncher) -> None:
    launcher.submit()
    assert {status.state for status in launcher.poll()} == {WorkerState.PENDING}
    assert launcher.poll()[1].detail == "to be started by hand"
    launcher.cancel(timeout_s=1.0)
    launcher.cancel(timeout_s=1.0)
    assert {status.state for status in launcher.poll()} == {WorkerState.EXITED}


def test_lost_worker_is_asked_for_again(launcher: ManualLauncher, said: list[str]) -> None:
    launcher.submit()
    said.clear()
    launcher.respawn(1, 2)
    assert "Worker 1 is lost; start it again" in said[0]
    assert "--rank 1 --incarnation 2" in said[0]


def test_used_launcher_is_refused(launcher: ManualLauncher) -> None:
    launcher.submit()
    with pytest.raises(LaunchError, match="make a new one"):
        launcher.submit()
    launcher.cancel(timeout_s=1.0)
    with pytest.raises(LaunchError, match="cancelled"):
        launcher.respawn(0, 1)


def test_log_is_read_if_somebody_writes_one(launcher: ManualLauncher, tmp_path: Path) -> None:
    assert launcher.log_tail(0) == ""
    (tmp_path / "worker-0.log").write_text("one\ntwo\n")
    assert launcher.log_tail(0, lines=1) == "two"
