"""Where a training run's workers run, from the words of its command line."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from clusterenv import LocalConfig, SlurmConfig, cli
from clusterenv.errors import ConfigError
from clusterenv.learners.launching import SlurmOptions, launcher_config
from clusterenv.learners.ppo import parse

ENV = ("--env-id", "CartPole-v1")


def launcher(*words: str) -> LocalConfig | SlurmConfig:
    """What the command line asks for."""
    return parse([*ENV, *words])[1]


def test_workers_are_processes_of_this_machine_unless_told_otherwise() -> None:
    assert launcher() == LocalConfig(nodes=2)
    assert launcher("--launcher", "local", "--workers", "3") == LocalConfig(nodes=3)
    assert launcher("--workers", "1", "--serial") == LocalConfig(serial=True)


def test_workers_are_the_nodes_of_a_slurm_job() -> None:
    assert launcher("--launcher", "slurm") == SlurmConfig(nodes=2)
    assert launcher("--launcher", "slurm", "--workers", "5", "--slurm.min-nodes", "4") == SlurmConfig(
        nodes=5, min_nodes=4
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            ["--slurm.partition", "gpu", "--slurm.time-limit", "4:00:00"],
            {"partition": "gpu", "time_limit": "4:00:00"},
        ),
        (["--slurm.time_limit=90"], {"time_limit": "90"}),
        (["--slurm.gpus-per-node", "2"], {"gpus_per_node": 2}),
        (["--slurm.gpus-per-node", "a100:2"], {"gpus_per_node": "a100:2"}),
        (
            ["--slurm.exclusive", "--slurm.no-use-srun", "--slurm.mode", "array"],
            {"exclusive": True, "use_srun": False, "mode": "array"},
        ),
        (
            ["--slurm.setup", "module load cuda", "export A='b c'"],
            {"setup": ("module load cuda", "export A='b c'")},
        ),
        (["--slurm.srun-args=--mpi=none"], {"srun_args": ("--mpi=none",)}),
        (["--slurm.shared-folder", "None"], {"shared_folder": None}),
        (["--slurm.shared-folder", "/a b"], {"shared_folder": "/a b"}),
        (["--slurm.port-range", "5000", "5010"], {"port_range": (5000, 5010)}),
        (
            ["--slurm.directives", "mail-type", "END", "requeue", "True", "gres", "None", "nice", "10"],
            {"directives": {"mail-type": "END", "requeue": True, "gres": None, "nice": "10"}},
        ),
    ],
)
def test_options_of_slurm_are_those_of_its_config(words: list[str], options: dict[str, Any]) -> None:
    assert launcher("--launcher", "slurm", *words) == SlurmConfig(nodes=2, **options)


def test_every_option_of_slurm_is_there_and_is_told_by_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])

    text = capsys.readouterr().out
    assert "--launcher {local,slurm}" in text
    for field in fields(SlurmConfig):
        told = re.search(rf"--slurm\.{field.name.replace('_', '-')}[ ,]", text) is not None
        assert told == (field.name != "nodes"), field.name
    assert launcher_config("slurm", SlurmOptions(), 1, serial=False) == SlurmConfig()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--slurm.partition", "gpu"], "slurm.partition is 'gpu'; expected nothing without --launcher slurm"),
        (
            ["--launcher", "slurm", "--serial"],
            "serial is True; expected False with --launcher slurm, whose .*",
        ),
        (
            ["--launcher", "slurm", "--slurm.nodes", "4"],
            "slurm.nodes is '4'; expected nothing, since --workers .*",
        ),
        (["--slurm.nodes=4"], "slurm.nodes is '4'; expected nothing, since --workers says how many nodes"),
        (["--launcher", "slurm", "--slurm.time-limit", "4h"], "time_limit is '4h'; expected a Slurm time .*"),
        (
            ["--launcher", "slurm", "--slurm.min-nodes", "3"],
            "min_nodes is 3; expected .* from 1 to nodes = 2",
        ),
        (
            ["--launcher", "slurm", "--slurm.mode", "srun", "--slurm.qos", "x"],
            "qos is 'x'; expected nothing with .*",
        ),
        (
            ["--workers", "2", "--serial"],
            "nodes is 2; expected 1 when serial is set, since all runs in one process",
        ),
    ],
)
def test_contradiction_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError):
        launcher(*words)
    assert cli.main(["train", "ppo", *ENV, *words]) == 2

    assert re.fullmatch(f"clusterenv: {sentence}\n", capsys.readouterr().err)
