from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clusterenv.errors import LaunchError
from clusterenv.launcher_config import LocalConfig
from clusterenv.launchers import Launcher, WorkerCommand, WorkerState
from clusterenv.launchers.base import THREAD_VARIABLES
from clusterenv.launchers.local import LocalLauncher, LocalRequest, share_cpus

from .contract import IGNORE_TERM, SAY_AND_STAY, LauncherContract, MakeLauncher, python_worker, wait_until

CPUS = sorted(os.sched_getaffinity(0))


def request(
    *commands: WorkerCommand, run_dir: Path, cpus: list[int] = CPUS, environ: dict[str, str] | None = None
) -> LocalRequest:
    return LocalRequest.make(
        LocalConfig(nodes=len(commands)),
        commands.__getitem__,
        run_dir=run_dir,
        granted_cpus=cpus,
        environ=os.environ if environ is None else environ,
    )


@pytest.fixture
def make() -> Iterator[MakeLauncher]:
    made: list[Launcher] = []

    def make(*scripts: str, run_dir: Path, **environment: dict[str, str]) -> Launcher:
        commands = [python_worker(script, **environment) for script in scripts]
        made.append(LocalLauncher(request(*commands, run_dir=run_dir)))
        return made[-1]

    yield make
    for launcher in made:
        launcher.cancel(timeout_s=0.0)


@pytest.mark.process
class TestLocalLauncher(LauncherContract):
    @pytest.fixture
    def make(self, make: MakeLauncher) -> MakeLauncher:
        return make


@pytest.mark.parametrize(
    ("granted", "nodes", "cpus_per_node", "shares"),
    [
        ([0, 1], 1, None, [(0, 1)]),
        ([0, 1], 2, None, [(0,), (1,)]),
        ([3, 5, 6, 9, 11], 2, None, [(3, 5, 6), (9, 11)]),
        ([0, 1], 3, None, [(0,), (1,), (0,)]),
        ([0, 1, 2, 3], 2, 1, [(0,), (1,)]),
        ([0, 1, 2, 3], 2, 2, [(0, 1), (2, 3)]),
        ([0, 1, 2], 2, 2, [(0, 1), (2, 0)]),
        ([4, 7], 2, 64, [(4, 7), (4, 7)]),
    ],
)
def test_share_cpus_keeps_workers_apart_where_there_are_enough_cores(
    granted: list[int], nodes: int, cpus_per_node: int | None, shares: list[tuple[int, ...]]
) -> None:
    assert share_cpus(granted, nodes, cpus_per_node) == shares


def test_request_is_printed_as_shell_lines(tmp_path: Path) -> None:
    environ = {"MKL_NUM_THREADS": "4", "CLUSTERENV_PRELOAD": "jax"}  # which workers inherit
    command = WorkerCommand(("/opt/my python", "-m", "clusterenv.worker"), {"A": "b c"}, {"KEY": "hidden"})
    made = request(command, command, run_dir=Path("/run dir"), cpus=[0, 1, 2], environ=environ)
    threads = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1"
    defaults = f"{threads} PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1"
    assert made.script() == (
        f"{defaults} A='b c' KEY='<secret>' taskset --cpu-list 0,1 '/opt/my python' -m clusterenv.worker"
        " >> '/run dir/worker-0.log' 2>&1 &\n"
        f"{defaults} A='b c' KEY='<secret>' taskset --cpu-list 2 '/opt/my python' -m clusterenv.worker"
        " >> '/run dir/worker-1.log' 2>&1 &\n"
    )


def test_users_omp_threads_speak_for_the_other_libraries_too(tmp_path: Path) -> None:
    made = request(WorkerCommand(("a",)), run_dir=tmp_path, cpus=[0], environ={"OMP_NUM_THREADS": "4"})
    assert "NUM_THREADS" not in made.script()


@pytest.mark.process
def test_printed_request_can_be_run_by_a_shell(tmp_path: Path) -> None:
    run_dir = tmp_path / "it's; $HOME"
    run_dir.mkdir()
    made = request(
        python_worker("import os; print(os.sched_getaffinity(0))"), run_dir=run_dir, cpus=CPUS[-1:]
    )
    subprocess.run(["sh", "-c", made.script() + "wait"], check=True, timeout=20)
    assert (run_dir / "worker-0.log").read_text() == f"{{{CPUS[-1]}}}\n"


@pytest.mark.process
def test_worker_runs_on_its_cores_with_one_thread_and_without_input(
    make: MakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    script = (
        "import os, sys; print(sorted(os.sched_getaffinity(0)), os.environ['MKL_NUM_THREADS'], "
        "repr(sys.stdin.read()), os.getsid(0) == os.getpid())"
    )
    launcher = make(script, script, run_dir=tmp_path)
    launcher.submit()
    wait_until(lambda: all(s.state is WorkerState.EXITED for s in launcher.poll()), 20, "both end")
    for rank, cpus in enumerate(share_cpus(CPUS, 2, None)):
        assert launcher.log_tail(rank, lines=1) == f"{list(cpus)} 1 '' True"
    assert sorted(os.sched_getaffinity(0)) == CPUS  # ours is as before


@pytest.mark.process
def test_log_begins_with_the_command_and_is_for_the_user_alone(make: MakeLauncher, tmp_path: Path) -> None:
    launcher = make("print('hi')", run_dir=tmp_path)
    launcher.submit()
    wait_until(lambda: launcher.poll()[0].state is WorkerState.EXITED, 20, "worker ends")
    log = launcher.poll()[0].log_path
    assert log.read_text().splitlines() == ["$ " + launcher.request().processes[0].script(), "hi"]
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.process
@pytest.mark.parametrize("ending", ["cancel", "death"])
def test_children_of_a_worker_end_with_it(make: MakeLauncher, tmp_path: Path, ending: str) -> None:
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], "
        "stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    launcher = make(script, run_dir=tmp_path)
    launcher.submit()
    wait_until(lambda: launcher.log_tail(0, lines=1).isdigit(), 20, "the worker has a child")
    child = psutil.Process(int(launcher.log_tail(0, lines=1)))
    if ending == "cancel":
        launcher.cancel(timeout_s=20)
        assert (
            launcher.poll()[0].state is WorkerState.EXITED
        )  # SIGTERM went to the worker alone, which ended well
    else:
        os.kill(launcher.poll()[0].pid, signal.SIGKILL)
        wait_until(lambda: launcher.poll()[0].state is WorkerState.FAILED, 20, "death is noticed")
    wait_until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 5, "the child is gone"
    )


@pytest.mark.process
def test_stopped_worker_is_killed(make: MakeLauncher, tmp_path: Path) -> None:
    launcher = make(SAY_AND_STAY, run_dir=tmp_path)
    launcher.submit()
    os.kill(launcher.poll()[0].pid, signal.SIGSTOP)
    launcher.cancel(timeout_s=0.1)
    assert launcher.poll()[0].state is WorkerState.FAILED


@pytest.mark.process
def test_program_that_does_not_exist_is_a_launch_error_and_stops_those_started(tmp_path: Path) -> None:
    launcher = LocalLauncher(
        request(python_worker(SAY_AND_STAY), WorkerCommand(("/no/such/python",)), run_dir=tmp_path)
    )
    with pytest.raises(LaunchError, match=r"worker 1 could not be started: .*No such file.*/no/such/python"):
        launcher.submit()
    states = [status.state for status in launcher.poll()]
    assert states == [WorkerState.FAILED, WorkerState.PENDING]


def test_missing_run_dir_is_a_launch_error(tmp_path: Path) -> None:
    launcher = LocalLauncher(request(python_worker("pass"), run_dir=tmp_path / "none"))
    with pytest.raises(LaunchError, match=r"worker 0 could not be started: .*worker-0\.log"):
        launcher.submit()


@pytest.mark.process
def test_interpreter_that_exits_without_cancel_leaves_no_worker(tmp_path: Path) -> None:
    head = (
        "import sys; from pathlib import Path; from clusterenv.launcher_config import LocalConfig\n"
        "from clusterenv.launchers import WorkerCommand, make_launcher\n"
        "worker = WorkerCommand((sys.executable, '-c', 'import time; time.sleep(600)'))\n"
        f"run_dir = Path({str(tmp_path)!r})\n"
        "launcher = make_launcher(LocalConfig(nodes=2), lambda rank: worker, run_dir=run_dir)\n"
        "launcher.submit(); print(*(status.pid for status in launcher.poll()))\n"
        "import os\n"
        "if os.fork() == 0: sys.exit()  # a fork runs the exit handlers too, and must not end our workers\n"
        "os.wait(); print({status.state.value for status in launcher.poll()})\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", head], capture_output=True, text=True, timeout=60, check=True
    )
    pids, states = done.stdout.splitlines()
    assert states == "{'running'}"
    assert len(pids.split()) == 2
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.split())


@pytest.mark.process
def test_interrupted_cancel_still_ends_the_workers(
    make: MakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = make(IGNORE_TERM, run_dir=tmp_path)
    launcher.submit()
    wait_until(lambda: "worker" in launcher.log_tail(0, lines=1).split(), 20, "the worker ignores SIGTERM")
    sleep, interrupted = time.sleep, []

    def interrupt_once(seconds: float) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        launcher.cancel(timeout_s=60)
    assert launcher.poll()[0].signal == signal.SIGKILL
