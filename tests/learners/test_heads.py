"""A run that goes on has one head, and nothing of the one before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from clusterenv.errors import ConfigError
from clusterenv.identity import ProcessIdentity, _started
from clusterenv.learners.heads import HEAD_FILE, heading, succeed
from tests.processes import alive

KILLED = """
import sys, time
from functools import partial
from pathlib import Path
from clusterenv import ClusterEnv, LocalConfig
from clusterenv.learners.heads import heading
from tests.envs import Count
with ClusterEnv([Count] * 2, LocalConfig(nodes=2)) as env, heading(Path(sys.argv[1])):
    env.reset(seed=0)
    print("up", flush=True)
    time.sleep(100)
"""


@pytest.mark.process
@pytest.mark.usefixtures("nothing_left")
def test_workers_of_a_killed_head_are_ended_by_the_next_which_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        assert head.stdout.readline() == "up\n"
        workers = psutil.Process(head.pid).children(recursive=True)
        os.kill(next(each.pid for each in workers if each.ppid() == head.pid), signal.SIGSTOP)
        os.kill(head.pid, signal.SIGKILL)
        head.wait()
    assert alive(each.pid for each in workers)

    succeed(tmp_path)

    assert alive(each.pid for each in workers) == []
    told = capsys.readouterr().err
    assert f"the head before (pid {head.pid} on " in told
    assert re.search(r"ended [12] worker\(s\)", told)


def test_run_whose_head_lives_is_not_gone_on_with(tmp_path: Path) -> None:
    parent = os.getppid()
    other = msgspec.structs.replace(ProcessIdentity.own(), pid=parent, started=_started(parent))
    (tmp_path / HEAD_FILE).write_bytes(msgspec.json.encode(other))

    with pytest.raises(ConfigError, match=rf"resume.*its head \(pid {parent} on .*\) lives"):
        succeed(tmp_path)


def test_head_is_named_while_it_trains(tmp_path: Path) -> None:
    succeed(tmp_path)
    with heading(tmp_path):
        assert (tmp_path / HEAD_FILE).exists()
        succeed(tmp_path)
    assert not (tmp_path / HEAD_FILE).exists()


def test_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run_dir"), heading(tmp_path / "gone"):
        pass
