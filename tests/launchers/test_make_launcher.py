from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig
from clusterenv.launchers import WorkerCommand, WorkerState, make_launcher


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


def test_other_configs_give_launchers_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for config in (SlurmConfig(nodes=2), ManualConfig(nodes=2)):
        launcher = make_launcher(config, command_for, run_dir=tmp_path)
        assert [status.state for status in launcher.poll()] == [WorkerState.PENDING] * 2
    assert list(tmp_path.iterdir()) == []
