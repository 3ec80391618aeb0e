"""Ending runs: heads that follow, heads that do not, and what dead ones have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from clusterenv.monitor.finding import RunState, find_runs
from clusterenv.monitor.stopping import Stopping
from clusterenv.run_records import read_index
from tests.monitor.runs import DEAD, ELSEWHERE, made_run, worker
from tests.processes import alive, wait_until

HEAD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.{handler})
from clusterenv import ClusterEnv, LocalConfig
from tests.envs import Count
env = ClusterEnv([Count] * 2, LocalConfig(nodes=2, cpus_per_node=1), lease_s=60.0)
env.reset(seed=1)
def go_on():  # a signal that comes between two rounds of this loop is raised inside the call as well
    while True:
        {body}
print("up", flush=True)
while True:
    try:
        go_on()
    except KeyboardInterrupt:
        {interrupted}
"""
STEP = "env.step(env.action_space.sample())"


class Heads:
    """Heads in processes of their own."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, handler: str = "default_int_handler", body: str = STEP, interrupted: str = "raise"
    ) -> list[int]:
        """A head whose run is up, and its worker processes."""
        code = HEAD.format(handler=handler, body=body, interrupted=interrupted)
        head = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.processes.append(head)
        assert head.stdout is not None
        assert head.stdout.readline() == "up\n"
        return [child.pid for child in psutil.Process(head.pid).children(recursive=True)]


@pytest.fixture
def heads(place: Path) -> Iterator[Heads]:
    heads = Heads()
    yield heads
    for head in heads.processes:
        for child in psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []:
            child.kill()
        head.kill()
        head.communicate()


def stop(timeout_s: float = 30.0, *, force: bool = False) -> tuple[bool, str]:
    """Whether all runs have ended, and what was said."""
    said: list[str] = []
    ended = Stopping(timeout_s, said.append, force=force).stop(find_runs())
    return ended, "".join(said)


@pytest.mark.process
def test_head_ends_its_run_in_good_order(heads: Heads, place: Path) -> None:
    started = heads.start()

    ended, said = stop()

    assert ended, said
    assert "to end, by SIGINT" in said
    assert said.endswith("has ended\n")
    assert heads.processes[0].wait(30) != 0
    wait_until(lambda: not alive(started))
    assert list(place.iterdir()) == []
    assert find_runs() == []


@pytest.mark.process
def test_two_runs_are_ended_at_once(heads: Heads, place: Path) -> None:
    started = heads.start() + heads.start()
    assert len(find_runs()) == 2

    ended, said = stop()

    assert ended, said
    assert said.count("has ended") == 2
    wait_until(lambda: not alive(started))
    assert find_runs() == []


@pytest.mark.process
def test_head_that_ignores_ctrl_c_and_dies_of_sigterm_leaves_nothing(heads: Heads, place: Path) -> None:
    started = heads.start(handler="SIG_IGN")

    ended, said = stop()

    assert ended, said
    assert "to end, by SIGTERM" in said
    assert heads.processes[0].wait(30) == -signal.SIGTERM
    wait_until(lambda: not alive(started))
    assert list(place.iterdir()) == []


@pytest.mark.process
def test_run_may_end_while_its_head_goes_on(heads: Heads, place: Path) -> None:
    heads.start(interrupted="env.close(); print('closed', flush=True); time.sleep(600)")

    ended, said = stop()

    assert ended, said
    assert heads.processes[0].poll() is None
    assert find_runs() == []


@pytest.mark.process
def test_head_that_does_not_end_its_run_is_killed_by_force_alone(heads: Heads, place: Path) -> None:
    started = heads.start(body="time.sleep(600)", interrupted="pass")

    ended, said = stop(0.0)
    assert not ended
    assert "has not ended within 0 s; --timeout-s waits longer, --force kills its head" in said
    assert heads.processes[0].poll() is None

    ended, said = stop(0.0, force=True)
    assert ended, said
    assert "killed its head" in said
    assert heads.processes[0].wait(30) == -signal.SIGKILL
    wait_until(lambda: not alive(started))
    assert list(place.iterdir()) == []


@pytest.mark.process
def test_what_a_killed_head_has_left_is_cleared_away(heads: Heads, place: Path) -> None:
    started = heads.start()
    heads.processes[0].kill()
    heads.processes[0].wait(30)
    (run,) = find_runs()
    assert run.state is RunState.DEAD

    ended, said = stop()

    assert ended, said
    assert f"removed {run.folder}" in said
    wait_until(lambda: not alive(started))
    assert list(place.iterdir()) == []
    assert list(read_index()) == []


@pytest.mark.process
def test_workers_of_a_dead_head_that_do_not_leave_are_killed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterenv.monitor.stopping.WORKERS_LEAVE_S", 0.0)
    status = made_run(place / "clusterenv-a", head=DEAD)
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"import signal; {ignoring}; print('up', flush=True); signal.pause()"
    argv = [sys.executable, "-c", code, str(status.connection_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()

        ended, said = stop()

        assert ended, said
        assert "ended 1 worker(s)" in said
        assert alive([stubborn.pid]) == []


def test_head_that_has_died_since_it_was_found_is_cleared_away(place: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)
    found = replace(find_runs()[0], state=RunState.RUNNING)

    assert Stopping(0.0, lambda _: None, force=False).stop([found])

    assert list(place.iterdir()) == []


def test_idle_notebook_is_not_ended_without_force(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def handles_sigterm_alone(_: object, *numbers: signal.Signals) -> signal.Signals | None:
        return signal.SIGTERM if signal.SIGTERM in numbers else None

    monkeypatch.setattr("clusterenv.identity.ProcessIdentity.first_handled", handles_sigterm_alone)
    made_run(place / "clusterenv-a", notebook=True)

    ended, said = stop()

    assert not ended
    assert "is a notebook" in said
    assert "call env.close() in it, or end its kernel by --force" in said


def test_process_of_another_user_is_told_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(place / "clusterenv-a")
    runs = find_runs()
    monkeypatch.setattr("clusterenv.identity.ProcessIdentity.send", lambda *_: False)
    said: list[str] = []

    assert not Stopping(0.0, said.append, force=False).stop(runs)

    assert said[0].endswith("is not a process of this user\n")


@pytest.mark.parametrize("force", [False, True])
def test_head_on_another_host_that_reports_is_left_to_that_host(place: Path, force: bool) -> None:
    made_run(place / "clusterenv-a", head=ELSEWHERE)

    ended, said = stop(force=force)

    assert not ended
    assert "cannot be reached from here; on far use: clusterenv stop 00000000" in said
    assert (place / "clusterenv-a").exists()


def test_silent_run_of_another_host_is_cleared_away_by_force_alone(place: Path) -> None:
    made_run(place / "clusterenv-a", head=ELSEWHERE, updated=0.0)

    ended, said = stop()
    assert not ended
    assert "if far is gone, --force clears away what can be reached" in said
    assert (place / "clusterenv-a").exists()

    ended, said = stop(force=True)
    assert ended
    assert list(place.iterdir()) == []
    assert find_runs() == []


def test_kept_logs_are_removed(place: Path) -> None:
    made_run(place / "clusterenv-a", ended=True)

    ended, said = stop()

    assert ended
    assert said == f"run 00000000: removed {place}/clusterenv-a\n"


def test_folder_that_is_no_longer_private_is_not_removed(place: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)
    runs = find_runs()
    (place / "clusterenv-a").chmod(0o755)

    said: list[str] = []
    Stopping(0.0, said.append, force=True).stop(runs)

    assert (place / "clusterenv-a").exists()
    assert f"{place}/clusterenv-a stays, since it is not a folder of this run" in "".join(said)


def test_folder_that_somebody_else_is_removing_is_not_said_to_stay(place: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)
    runs = find_runs()
    (place / "clusterenv-a" / "status.json").unlink()
    threading.Timer(0.2, (place / "clusterenv-a").rmdir).start()

    said: list[str] = []
    assert Stopping(0.0, said.append, force=False).stop(runs)

    assert said == []


def test_folder_that_was_replaced_by_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    made_run(place / "clusterenv-a", head=DEAD)
    runs = find_runs()
    (place / "clusterenv-a").rename(tmp_path / "moved")
    (place / "clusterenv-a").symlink_to(tmp_path / "moved")

    Stopping(0.0, lambda _: None, force=True).stop(runs)

    assert (tmp_path / "moved" / "status.json").exists()


# --- Slurm, by programs that answer as it does ----------------------------------------------------------


def slurm_program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin"


def test_jobs_whose_script_lies_in_the_folder_are_cancelled_by_their_numbers(
    place: Path, programs: Path, tmp_path: Path
) -> None:
    folder = place / "clusterenv-a"
    jobs = (f"7|{folder}/job.sh", f"9|{folder}/job-1.1.sh", f"9|{folder}/job-1.1.sh", f"8|{folder}b/job.sh")
    slurm_program(programs, "squeue", "printf '%s\\n' " + " ".join(f"'{job}'" for job in jobs))
    slurm_program(programs, "scancel", f"echo \"$@\" >> '{tmp_path}/cancelled'")
    made_run(folder, head=DEAD, launcher="slurm", clusters="c2")

    ended, said = stop()

    assert ended
    assert "cancelled Slurm job 7, 9\n" in said
    assert (tmp_path / "cancelled").read_text() == "--clusters=c2 7 9\n"
    assert not folder.exists()


def test_folder_stays_where_slurm_cannot_be_asked(place: Path, programs: Path) -> None:
    slurm_program(programs, "squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    made_run(
        place / "clusterenv-a",
        head=DEAD,
        launcher="slurm",
        workers=[worker(0, job_id="7"), worker(1, job_id="7")],
    )

    ended, said = stop()

    assert not ended
    assert "its folder stays, since Slurm cannot be asked for its jobs (7)" in said
    assert "Unable to contact slurm controller" in said
    assert [run.state for run in find_runs()] == [RunState.DEAD]
