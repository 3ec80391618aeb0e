from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.config import EnvConfig, SyncConfig
from clusterenv.errors import ConfigError
from clusterenv.launcher_config import LocalConfig, ManualConfig, SlurmConfig

WHOLE_FROM_1 = [0, -1, 2.0, math.nan, "8", True, None]
SECONDS = [0, -1.0, math.nan, "10", True]
PORT_RANGES = [5555, (1,), (0, 10), (20, 10), (1, 65536), (1.0, 2.0), "12", (1, 2, 3)]
MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")
SLURM_TEXTS = (
    *("job_name", "partition", "account", "qos", "constraint", "reservation", "time_limit"),
    *MEMORY,
)
FOLDERS = [(SlurmConfig, "shared_folder"), (SlurmConfig, "log_folder"), (ManualConfig, "shared_folder")]
INTERFACES = ["", "a\nb", 3]

REFUSED: list[tuple[type[Any], str, list[Any], str]] = [
    (EnvConfig, "type", ["", None, 3], "the name of a backend or environment"),
    (EnvConfig, "env_name", [3, b"CartPole-v1"], 'an id such as "LunarLander-v3"'),
    (EnvConfig, "seed", [-1, 1.5, True, "1"], "a whole number from 0, or None"),
    (EnvConfig, "api", ["gym3", None, []], '"gymnasium" or "gym"'),
    (EnvConfig, "envs_per_node", WHOLE_FROM_1, "a whole number from 1"),
    (EnvConfig, "autoreset_mode", ["same_step", 3, []], '"NextStep" or "SameStep" or "Disabled"'),
    (EnvConfig, "observation_mode", ["sane", None, [], (1, 2)], '"same", "different", or the batched and'),
    (EnvConfig, "batch_size", [0, -1, 1.5, True, "2"], "a whole number from 1"),
    (EnvConfig, "kl_threshold", [-0.01, math.nan, "0.05", "Auto", None, True], "a number of nats from 0"),
    (EnvConfig, "n_ref", WHOLE_FROM_1, "a whole number from 1"),
    (EnvConfig, "max_lag", WHOLE_FROM_1[:-1], "a whole number from 1"),
    (EnvConfig, "max_age_s", [*SECONDS, None], "a number of seconds above 0"),
    (EnvConfig, "min_interval", WHOLE_FROM_1, "a whole number from 1"),
    (EnvConfig, "sync", ["interval", "interval:0", "interval:-1", "Every", None], '"adaptive", "every"'),
    (EnvConfig, "on_worker_loss", ["ignore", None], '"restart" or "drop" or "raise"'),
    (EnvConfig, "on_env_error", ["restart", None], '"raise" or "rebuild"'),
    (EnvConfig, "max_restarts", [-1, 1.5, None], "a whole number from 0"),
    (EnvConfig, "lease_s", [*SECONDS, None], "a number of seconds above 0"),
    (EnvConfig, "head_grace_s", SECONDS, "a number of seconds above 0"),
    (EnvConfig, "connect_timeout_s", [*SECONDS, None], "a number of seconds above 0"),
    (EnvConfig, "setup_timeout_s", [*SECONDS, None], "a number of seconds above 0"),
    (EnvConfig, "step_timeout_s", [*SECONDS, None], "a number of seconds above 0"),
    (EnvConfig, "max_message_bytes", [0, 1000, 1e9, None], "a whole number from 65536"),
    (LocalConfig, "nodes", WHOLE_FROM_1, "a whole number from 1"),
    (LocalConfig, "cpus_per_node", [0, -1, 1.0, "2"], "a whole number from 1"),
    (LocalConfig, "port_range", PORT_RANGES, "1 <= first <= last <= 65535"),
    (SlurmConfig, "nodes", WHOLE_FROM_1, "a whole number from 1"),
    (SlurmConfig, "cpus_per_node", [0, -1, 1.0, "2"], "a whole number from 1"),
    (SlurmConfig, "gpus_per_node", [-1], "a whole number from 0"),
    (SlurmConfig, "gpus_per_node", [1.0, True, ["a100"]], 'a number from 0 or a gres such as "a100:2"'),
    *((SlurmConfig, name, ["", "a\nb", "a\r", 3], "text of one line") for name in SLURM_TEXTS),
    (SlurmConfig, "min_nodes", [0, 2, 1.0, True], "a whole number from 1 to nodes = 1"),
    (SlurmConfig, "mode", ["ssh", None, "Auto"], '"auto" or "sbatch" or "array" or "srun"'),
    (SlurmConfig, "gpus_per_node", [""], "text of one line"),
    *((SlurmConfig, name, ["16 G", "lots", "-1"], "a size for Slurm") for name in MEMORY),
    (EnvConfig, "shared_memory", [1, "no", None], "True or False"),
    (SlurmConfig, "exclusive", [1, "user", None], "True or False"),
    (SlurmConfig, "use_srun", [0, None], "True or False"),
    (SlurmConfig, "warn_s", [-1, 65536, 1.5, None], "a whole number of seconds from 0 to 65535"),
    (SlurmConfig, "directives", [["exclusive"], "exclusive", None], "a mapping from options of sbatch"),
    (SlurmConfig, "setup", [3, None, [1], {"a": 1}], "a list of texts"),
    (SlurmConfig, "setup", ["a\0b", ["a", "\0"]], "text without zero bytes"),
    (SlurmConfig, "srun_args", [3, None, [1]], "a list of texts"),
    (SlurmConfig, "srun_args", ["--cpu-bind=cores"], "a list, with one text for each argument"),
    (SlurmConfig, "python", ["python3", "bin/python", "~/env/bin/python"], "an absolute path"),
    *((config, name, [3, "a\nb", "/a\\b"], "the path of a folder") for config, name in FOLDERS),
    *((config, name, ["runs", ""], "an absolute path") for config, name in FOLDERS),
    *(
        (config, name, ["~no-such-user/runs"], 'the home folder of "~" is not known')
        for config, name in FOLDERS
    ),
    (SlurmConfig, "interface", INTERFACES, 'an interface such as "ib0"'),
    (SlurmConfig, "worker_interface", INTERFACES, 'an interface such as "ib0"'),
    (ManualConfig, "interface", INTERFACES, 'an interface such as "ib0"'),
    (ManualConfig, "worker_interface", INTERFACES, 'an interface such as "ib0"'),
    (ManualConfig, "nodes", WHOLE_FROM_1, "a whole number from 1"),
    (ManualConfig, "cpus_per_node", [0, -1, 1.0, "2"], "a whole number from 1"),
    (ManualConfig, "queue_timeout_s", SECONDS, "a number of seconds above 0"),
    (ManualConfig, "port_range", PORT_RANGES, "1 <= first <= last <= 65535"),
    (
        SlurmConfig,
        "time_limit",
        ["2h", "1:2:3:4", "-1", "1:5", "1-", "90 ", "\u0663", "9" * 10],
        "a Slurm time such as",
    ),
    (SlurmConfig, "queue_timeout_s", SECONDS, "a number of seconds above 0"),
    (SlurmConfig, "port_range", PORT_RANGES, "1 <= first <= last <= 65535"),
]

ACCEPTED: list[tuple[type[Any], str, list[Any]]] = [
    (EnvConfig, "type", ["envpool", "MujocoAnt"]),
    (EnvConfig, "env_name", ["CartPole-v1", "module:Id-v0", None]),
    (EnvConfig, "seed", [None, 0, 2**40, np.int64(7)]),
    (EnvConfig, "api", ["gym", "gymnasium"]),
    (EnvConfig, "envs_per_node", [1, 4096, np.int32(8)]),
    (EnvConfig, "kl_threshold", [0, 0.0, 0.05, math.inf, np.float32(0.1), "auto"]),
    (EnvConfig, "n_ref", [1, 4096]),
    (EnvConfig, "max_lag", [1, 256, None]),
    (EnvConfig, "max_age_s", [0.1, 60, math.inf]),
    (EnvConfig, "min_interval", [1, 10]),
    (EnvConfig, "sync", ["adaptive", "every", "interval:1", "interval:16", "broadcast", "never"]),
    (EnvConfig, "on_worker_loss", ["restart", "drop", "raise"]),
    (EnvConfig, "on_env_error", ["raise", "rebuild"]),
    (EnvConfig, "max_restarts", [0, 3]),
    (EnvConfig, "lease_s", [0.5, 10]),
    (EnvConfig, "head_grace_s", [None, 0.5]),
    (EnvConfig, "max_message_bytes", [65536]),
    (EnvConfig, "shared_memory", [True, False]),
    (LocalConfig, "nodes", [1, 64]),
    (LocalConfig, "cpus_per_node", [None, 1, 64]),
    (LocalConfig, "serial", [True, False]),
    (LocalConfig, "port_range", [None, (1, 65535), (5555, 5555), [5000, 5010]]),
    (SlurmConfig, "job_name", ["ppo lander", 'it\'s "odd"; $HOME']),
    (SlurmConfig, "gpus_per_node", [None, 0, 2, "a100:2"]),
    (SlurmConfig, "mem", [None, "16G"]),
    (
        SlurmConfig,
        "time_limit",
        [None, "90", "90:30", "02:00:00", "1-12", "1-12:30", "1-12:30:15", "UNLIMITED"],
    ),
    (SlurmConfig, "queue_timeout_s", [None, 1, math.inf]),
]


def cases(table: list[Any]) -> list[Any]:
    """One parameter set for each value of the third column."""
    return [
        pytest.param(*row[:2], value, *row[3:], id=f"{row[0].__name__}-{row[1]}-{value!r}")
        for row in table
        for value in row[2]
    ]


@pytest.mark.parametrize(("config", "name", "value", "expected"), cases(REFUSED))
def test_config_refuses_a_value_that_cannot_work(
    config: type[Any], name: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; expected ")
    assert expected in caught.value.expected
    assert caught.value.name == name
    assert caught.value.value is value


@pytest.mark.parametrize(("config", "name", "value"), cases(ACCEPTED))
def test_config_accepts_a_value_that_works(config: type[Any], name: str, value: object) -> None:
    assert getattr(config(**{name: value}), name) == value


def test_every_option_of_the_configs_has_a_test_of_its_check() -> None:
    unchecked = {"env_kwargs", "wrappers", "serial"}
    for config in (EnvConfig, LocalConfig, ManualConfig, SlurmConfig):
        refused = {name for cls, name, *_ in REFUSED if cls is config}
        assert {item.name for item in dataclasses.fields(config)} - refused <= unchecked


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_mode_is_a_member_however_it_is_given(mode: AutoresetMode) -> None:
    assert EnvConfig(autoreset_mode=mode).autoreset_mode is mode
    assert EnvConfig(autoreset_mode=mode.value).autoreset_mode is mode


def test_defaults_are_those_of_the_documentation() -> None:
    config = EnvConfig()
    assert (config.type, config.env_name, config.seed, config.api) == ("gymnasium", None, None, "gymnasium")
    assert (config.env_kwargs, config.wrappers, config.envs_per_node) == ({}, (), 8)
    assert config.autoreset_mode is None
    assert (config.lease_s, config.head_grace_s, config.connect_timeout_s) == (10, None, 60)
    assert (config.setup_timeout_s, config.step_timeout_s, config.on_worker_loss) == (300, 600, "restart")
    assert config.sync_config == SyncConfig(
        kl_threshold=0.05, max_lag=8, max_age_s=math.inf, min_interval=1, sync="adaptive", n_ref=64
    )
    assert LocalConfig() == LocalConfig(nodes=1, cpus_per_node=None, serial=False, port_range=None)


def test_sync_config_holds_the_options_that_were_given() -> None:
    options = {
        "kl_threshold": 0.2,
        "max_lag": 3,
        "max_age_s": 5.0,
        "min_interval": 2,
        "sync": "every",
        "n_ref": 16,
    }
    assert EnvConfig(**options).sync_config == SyncConfig(**options)


def test_auto_threshold_starts_at_the_default() -> None:
    config = EnvConfig(kl_threshold="auto").sync_config

    assert (config.kl_threshold, config.auto_threshold) == (EnvConfig().kl_threshold, True)


def test_worker_grace_is_the_lease_unless_given() -> None:
    assert EnvConfig(lease_s=3).worker_grace_s == 3
    assert EnvConfig(lease_s=3, head_grace_s=20).worker_grace_s == 20


def test_from_mapping_takes_every_option() -> None:
    options = {"env_name": "CartPole-v1", "envs_per_node": 64, "env_kwargs": {"gravity": 1.0}}
    assert EnvConfig.from_mapping(options) == EnvConfig(**options)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("kl_treshold", "'kl_threshold', perhaps, or another of api, "),
        ("envs_per_nodes", "'envs_per_node', perhaps, or another of "),
        ("zzz", "expected one of api, "),
        (3, "expected one of api, "),
    ],
)
def test_from_mapping_refuses_an_unknown_key_and_suggests_the_nearest(key: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EnvConfig.from_mapping({key: 1})
    assert str(caught.value).startswith(f"env_config key is {key!r}; ")
    assert hint in str(caught.value)


def test_serial_runs_in_one_process_only() -> None:
    assert LocalConfig(serial=True).nodes == 1
    with pytest.raises(ConfigError, match="nodes is 2; expected 1 when serial is set"):
        LocalConfig(serial=True, nodes=2)


def test_config_error_is_a_value_error_and_survives_pickling() -> None:
    with pytest.raises(ValueError, match="envs_per_node is 0; expected a whole number from 1") as caught:
        EnvConfig(envs_per_node=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert (copy.name, copy.value, copy.expected) == ("envs_per_node", 0, "a whole number from 1")


@pytest.mark.parametrize("config", [EnvConfig(), LocalConfig(), ManualConfig(), SlurmConfig()])
def test_config_is_frozen_and_takes_keywords_only(config: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.nodes = 2
    with pytest.raises(TypeError, match="positional"):
        type(config)("CartPole-v1")
