"""The table of defaults, and command lines over it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium as gym
import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners import main
from clusterenv.learners.defaults import DEFAULTS
from clusterenv.learners.ppo import PPOConfig, parse


@pytest.mark.parametrize("env_id", DEFAULTS["ppo"])
def test_every_row_of_the_table_is_for_an_environment_that_exists(env_id: str) -> None:
    assert gym.spec(env_id).id == env_id
    assert PPOConfig(env_id=env_id, **DEFAULTS["ppo"][env_id]) != PPOConfig(env_id=env_id)


@pytest.mark.parametrize(
    "flag", [["--env-id", "CartPole-v1"], ["--env-id=CartPole-v1"], ["--env_id", "CartPole-v1"]]
)
def test_command_line_starts_from_the_environments_row(flag: list[str]) -> None:
    assert parse(flag)[0] == PPOConfig(env_id="CartPole-v1", **DEFAULTS["ppo"]["CartPole-v1"])


def test_flags_win_over_the_row() -> None:
    config, _ = parse(
        ["--seed", "4", "--env-id", "CartPole-v1", "--num-steps", "7", "--hidden", "8", "9", "--run-dir", "x"]
    )

    expected = PPOConfig(env_id="CartPole-v1", **DEFAULTS["ppo"]["CartPole-v1"])
    changes = {"seed": 4, "num_steps": 7, "hidden": (8, 9), "run_dir": Path("x")}
    assert config == dataclasses.replace(expected, **changes)


def test_environment_without_a_row_gets_the_defaults_of_the_algorithm() -> None:
    assert parse(["--env-id", "Acrobot-v1"])[0] == PPOConfig(env_id="Acrobot-v1")


def test_arguments_of_the_environment_are_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--env-id", "CartPole-v1", "--env-kwargs"]

    assert parse([*line, '{"max_episode_steps": 7}'])[0].env_options["env_kwargs"] == {"max_episode_steps": 7}
    with pytest.raises(SystemExit):
        parse([*line, "[7]"])
    assert "[7] is no JSON object" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match=r"env_kwargs.*plain data, as JSON can hold it"):
        PPOConfig(env_id="CartPole-v1", env_kwargs={"limit": object()})


def test_help_tells_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])

    text = capsys.readouterr().out
    assert stop.value.code == 0
    for field in dataclasses.fields(PPOConfig):
        assert f"--{field.name.replace('_', '-')}" in text


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--env-id"),
        (["--env-id", "CartPole-v1", "--sed", "1"], "--sed"),
        (["--env-id", "CartPole-v1", "--launcher", "pbs"], "pbs"),
    ],
)
def test_wrong_command_line_exits_with_a_message(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(flags)

    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_value_that_cannot_work_is_named() -> None:
    with pytest.raises(ConfigError, match=r"gamma is 2.0; expected a number from 0 to 1"):
        parse(["--env-id", "CartPole-v1", "--gamma", "2"])


def test_unknown_algorithm_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("poo", []) == 2
    assert main("dreamer", []) == 2

    assert capsys.readouterr().err.splitlines() == [
        "clusterenv: there is no algorithm 'poo'; did you mean 'ppo'?",
        "clusterenv: there is no algorithm 'dreamer'; there are: ppo, a2c, a3c, impala, dqn, sac",
    ]
