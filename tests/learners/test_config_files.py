"""Configuration files: what they say, in whose words, and what is said of a wrong one."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterenv import LocalConfig, SlurmConfig
from clusterenv.errors import ConfigError
from clusterenv.learners.config_files import ALIASES, SHIPPED, option_names
from clusterenv.learners.ppo import PPOConfig, parse

ACTOR_CRITICS = ("ppo", "a2c", "a3c", "impala")
SCALES = ("laptop", "16-core", "64-core", "cluster")


def file_of(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def test_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = file_of(tmp_path, "env: CartPole-v1\nlr: 1e-4\nn_steps: 16\nhidden_size: 32\nduration: 1h30m\n")

    config, launcher = parse(["--config", file, "--num-steps", "8"])

    expected = {"env_id": "CartPole-v1", "learning_rate": 1e-4, "num_steps": 8, "hidden": (32,)}
    assert vars(config) | expected | {"duration": 5400.0, "total_steps": 200_000} == vars(config)
    assert launcher == LocalConfig(nodes=2)


def test_words_of_other_libraries_work_on_the_command_line() -> None:
    words = "--env CartPole-v1 --total_timesteps=99 --n-epochs 3 --no-normalize-advantage --ent-coef 0.5"

    config, _ = parse(words.split())

    expected = {"total_steps": 99, "epochs": 3, "normalize_advantages": False, "entropy_coef": 0.5}
    assert vars(config) | expected == vars(config)


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
def test_no_word_means_two_options(algorithm: str) -> None:
    module = import_module(f"clusterenv.learners.{algorithm}")
    kind = module.parse(["--env-id", "CartPole-v1"])[0].__class__
    words = [alias for name in vars(kind(env_id="x")) for alias in ALIASES.get(name, ())]

    assert len(words) == len(set(words))
    assert option_names(kind)["total_timesteps"] == "total_steps"


def test_environments_of_all_workers_are_dealt_out_whatever_the_number_of_workers(tmp_path: Path) -> None:
    file = file_of(tmp_path, "env: CartPole-v1\nnum_envs: 12\nworkers: 4\nbatch_size: 6\n")

    assert parse(["--config", file])[0].envs_per_worker == 3
    assert parse(["--config", file, "--workers", "3"])[0].envs_per_worker == 4
    own = parse(["--config", file, "--envs-per-worker", "5", "--num-minibatches", "7"])[0]
    assert (own.envs_per_worker, own.num_envs, own.batch_size, own.num_minibatches) == (5, None, None, 7)
    with pytest.raises(
        ConfigError, match=r"num_envs \(.*run.yaml, line 2\) is 12; expected a multiple of wor"
    ):
        parse(["--config", file, "--workers", "5"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "learning_rat: 1",
            r"config key is 'learning_rat'; expected 'learning_rate', perhaps \(.*, line 2\)",
        ),
        ("slurm: {partitoin: gpu}", r"'slurm.partitoin'; expected 'slurm.partition', perhaps \(.*, line 2\)"),
        ("gamma: high", r"gamma \(.*run.yaml, line 2\) is 'high'; expected a number"),
        ("n_steps: 2.5", r"n_steps \(.*, line 2\) is 2.5; expected a whole number"),
        ("n_epochs: true", r"n_epochs \(.*, line 2\) is True; expected a whole number"),
        ("anneal_lr: 1", r"anneal_lr \(.*, line 2\) is 1; expected true or false"),
        ("network: resnet", r"is 'resnet'; expected \"auto\" or \"mlp\" or \"nature\" or \"impala\""),
        ("env_kwargs: [1]", r"env_kwargs \(.*\) is \[1\]; expected a mapping"),
        ("duration: soon", r"duration \(.*\) is 'soon'; expected a time such as 90s, 30m or 1h30m or null"),
        ("gamma: 2", r"gamma \(.*run.yaml, line 2\) is 2.0; expected a number from 0 to 1"),
        ("gamma: 0.9\ngamma: 0.8", r"config key is 'gamma'; expected one value of it"),
        (
            "lr: 1\nlearning_rate: 2",
            r"learning_rate \(.*, line 3\) is 2; expected one spelling: lr \(.*line 2\)",
        ),
        ("algorithm: a2c", r"algorithm \(.*, line 2\) is 'a2c'; expected ppo"),
        ("gamma: [", r"config is .*run.yaml'; expected a YAML file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(["--config", file_of(tmp_path, f"env: CartPole-v1\n{line}\n")])


def test_configuration_that_is_not_shipped_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"'procgen-laptop', perhaps, or another one of the conf.*ppo: proc"
    ):
        parse(["--config", "procgen-labtop"])


@pytest.mark.parametrize("algorithm", ACTOR_CRITICS)
def test_every_scale_is_shipped_for_every_actor_critic_and_printed_as_a_file(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"clusterenv.learners.{algorithm}")
    assert {file.stem for file in (SHIPPED / algorithm).iterdir()} == {f"procgen-{scale}" for scale in SCALES}
    for scale in SCALES:
        config, launcher = module.parse(["--config", f"procgen/{scale}"])
        with pytest.raises(SystemExit):
            module.parse(["--config", f"{algorithm}-procgen-{scale}", "--print-config"])

        text = capsys.readouterr().out
        assert yaml.safe_load(text)["algorithm"] == algorithm
        assert config.agent_options["network"] == "impala"
        assert isinstance(launcher, SlurmConfig if scale == "cluster" else LocalConfig)
        assert module.parse(["--config", file_of(tmp_path, text)]) == (config, launcher)


def test_file_is_not_mixed_with_the_options_of_a_run_that_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config is 'x'; expected nothing with --resume"):
        parse(["--config", "x", "--resume", str(tmp_path)])


def test_benchmark_page_lists_every_word_that_stands_for_an_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    rows: dict[str, Any] = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))

    for name, words in ALIASES.items():
        assert re.findall(r"`(\w+)`", rows[name]) == list(words), name
    assert set(option_names(PPOConfig).values()) >= {"num_envs", "batch_size", "clip_value", "network"}
