"""What every launcher promises, on real processes or jobs. A launcher's tests subclass and give `start`."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterenv.errors import LaunchError
from clusterenv.launchers import Launcher, WorkerCommand, WorkerState, WorkerStatus

MakeLauncher = Callable[..., Launcher]
"""`make(*scripts, run_dir=..., env={...}, secret_env={...})`: one worker for each Python script."""

ODD_NAMES = ["with space", 'it\'s; "quoted" $HOME `id`', "übung 工作", "-rf", "line\nbreak"]
SAY_AND_STAY = "import os, time; print('worker', os.getpid(), flush=True); time.sleep(600)"
DIE_AT_BIRTH = "import sys; print('one'); print('no such module: two', file=sys.stderr); sys.exit(3)"
IGNORE_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SAY_AND_STAY


def python_worker(script: str, **environment: dict[str, str]) -> WorkerCommand:
    return WorkerCommand(argv=(sys.executable, "-c", script), **environment)


def wait_until(holds: Callable[[], object], deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)


class LauncherContract:
    """The tests; `make` gives launchers and cancels them afterwards, a start may take `deadline_s`."""

    deadline_s = 20.0

    @pytest.fixture
    def make(self) -> MakeLauncher:
        raise NotImplementedError("the launcher's test class gives this fixture")

    def wait_for(self, launcher: Launcher, state: WorkerState) -> list[WorkerStatus]:
        wait_until(
            lambda: all(status.state is state for status in launcher.poll()), self.deadline_s, f"all {state}"
        )
        return launcher.poll()

    def wait_for_words(self, launcher: Launcher, rank: int, words: str) -> None:
        wait_until(lambda: words in launcher.log_tail(rank), self.deadline_s, f"{words!r} in the log")

    def test_request_is_text_and_starts_nothing(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, run_dir=tmp_path)
        assert shlex.quote(SAY_AND_STAY) in launcher.request().script()
        assert [status.state for status in launcher.poll()] == [WorkerState.PENDING]
        assert list(tmp_path.iterdir()) == []

    def test_submit_starts_every_worker_and_poll_reports_them_by_rank(
        self, make: MakeLauncher, tmp_path: Path
    ) -> None:
        launcher = make(SAY_AND_STAY, SAY_AND_STAY, SAY_AND_STAY, run_dir=tmp_path)
        launcher.submit()
        statuses = self.wait_for(launcher, WorkerState.RUNNING)
        assert [status.rank for status in statuses] == [0, 1, 2]
        assert all(status.exit_code is None and status.signal is None for status in statuses)
        for rank in range(3):
            self.wait_for_words(launcher, rank, "worker")

    def test_worker_that_ends_well_is_exited(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make("print('bye')", run_dir=tmp_path)
        launcher.submit()
        (status,) = self.wait_for(launcher, WorkerState.EXITED)
        assert (status.exit_code, status.signal) == (0, None)

    def test_worker_dead_at_birth_is_reported_with_its_code_and_the_end_of_its_log(
        self, make: MakeLauncher, tmp_path: Path
    ) -> None:
        launcher = make(DIE_AT_BIRTH, run_dir=tmp_path)
        launcher.submit()
        (status,) = self.wait_for(launcher, WorkerState.FAILED)
        assert (status.exit_code, status.signal) == (3, None)
        assert status.ending == "exited with code 3"
        assert {"one", "no such module: two"} <= set(launcher.log_tail(0).splitlines())
        assert launcher.log_tail(0, lines=1) in ("one", "no such module: two")
        assert status.log_path.is_relative_to(tmp_path)

    def test_worker_ended_by_a_signal_is_reported_with_it(self, make: MakeLauncher, tmp_path: Path) -> None:
        script = "import os, signal; print('last words'); os.kill(os.getpid(), signal.SIGKILL)"
        launcher = make(script, run_dir=tmp_path)
        launcher.submit()
        (status,) = self.wait_for(launcher, WorkerState.FAILED)
        assert (status.exit_code, status.signal) == (None, 9)
        assert "signal 9 (SIGKILL" in status.ending
        assert "last words" in launcher.log_tail(0)

    def test_one_dead_worker_leaves_the_others_running(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, DIE_AT_BIRTH, run_dir=tmp_path)
        launcher.submit()
        wait_until(lambda: launcher.poll()[1].state is WorkerState.FAILED, self.deadline_s, "worker 1 fails")
        assert launcher.poll()[0].state is WorkerState.RUNNING

    def test_cancel_twice_ends_every_worker_and_is_no_error(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, SAY_AND_STAY, run_dir=tmp_path)
        launcher.submit()
        self.wait_for_words(launcher, 0, "worker")
        launcher.cancel(timeout_s=self.deadline_s)
        launcher.cancel(timeout_s=self.deadline_s)
        assert {status.state for status in launcher.poll()} <= {WorkerState.FAILED, WorkerState.EXITED}

    def test_cancel_kills_a_worker_that_does_not_end_within_the_time(
        self, make: MakeLauncher, tmp_path: Path
    ) -> None:
        launcher = make(IGNORE_TERM, run_dir=tmp_path)
        launcher.submit()
        self.wait_for_words(launcher, 0, "worker")
        started = time.monotonic()
        launcher.cancel(timeout_s=0.3)
        assert time.monotonic() - started < self.deadline_s
        assert launcher.poll()[0].state is WorkerState.FAILED

    def test_cancel_before_submit_leaves_nothing_to_start(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, run_dir=tmp_path)
        launcher.cancel(timeout_s=1.0)
        with pytest.raises(LaunchError, match="make a new one"):
            launcher.submit()

    def test_second_submit_is_refused(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(SAY_AND_STAY, run_dir=tmp_path)
        launcher.submit()
        with pytest.raises(LaunchError, match="make a new one"):
            launcher.submit()

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_paths_arguments_and_values_arrive_as_they_are(
        self, make: MakeLauncher, tmp_path: Path, name: str
    ) -> None:
        run_dir = tmp_path / name
        run_dir.mkdir()
        script = f"import os; print(os.environ['ODD'] == {name!r}, os.environ['KEY'] == {name!r})"
        launcher = make(script, run_dir=run_dir, env={"ODD": name}, secret_env={"KEY": name})
        launcher.submit()
        (status,) = self.wait_for(launcher, WorkerState.EXITED)
        assert launcher.log_tail(0, lines=1) == "True True"
        assert status.log_path.parent == run_dir

    def test_secrets_reach_the_worker_but_no_text(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make(
            "import os; print(len(os.environ['KEY']))", run_dir=tmp_path, secret_env={"KEY": "s3cr3t"}
        )
        launcher.submit()
        self.wait_for(launcher, WorkerState.EXITED)
        assert launcher.log_tail(0, lines=1) == "6"
        assert "KEY" in launcher.request().script()
        for text in (launcher.request().script(), repr(launcher.request()), launcher.log_tail(0)):
            assert "s3cr3t" not in text

    def test_log_tail_is_the_end_of_a_long_log(self, make: MakeLauncher, tmp_path: Path) -> None:
        launcher = make("for i in range(100_000): print('line', i)", run_dir=tmp_path)
        launcher.submit()
        self.wait_for(launcher, WorkerState.EXITED)
        assert launcher.log_tail(0, lines=2) == "line 99998\nline 99999"
