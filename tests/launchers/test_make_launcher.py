from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterenv.config import LocalConfig, SlurmConfig
from clusterenv.errors import LaunchError
from clusterenv.launchers import WorkerCommand, make_launcher


def command_for(rank: int) -> WorkerCommand:
    return WorkerCommand((sys.executable, "-c", f"print({rank})"))


def test_local_config_gives_a_launcher_of_one_process_for_each_node(tmp_path: Path) -> None:
    launcher = make_launcher(LocalConfig(nodes=3), command_for, run_dir=tmp_path)
    assert [status.log_path for status in launcher.poll()] == [
        tmp_path / f"worker-{rank}.log" for rank in range(3)
    ]
    assert [
        line
        for rank in range(3)
        for line in launcher.request().script().splitlines()
        if f"print({rank})" in line
    ]


def test_slurm_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="SlurmConfig is not available yet; use LocalConfig"):
        make_launcher(SlurmConfig(nodes=2), command_for, run_dir=tmp_path)
