"""Sample Factory: its sampler alone, whose policy is inferred in one process."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env

from clusterenv.benchmark.contenders import Advancing, Contender, Shape
from clusterenv.benchmark.tasks import Task


def sampler(task: Task, shape: Shape) -> Contender:
    """One rollout worker for each of ours."""
    register_env("task", partial(_make, task.env_id))
    words = {
        "env": "task",
        "device": "cpu",
        "num_workers": shape.workers,
        "num_envs_per_worker": shape.envs_per_worker,
        "worker_num_splits": 2 if shape.envs_per_worker % 2 == 0 else 1,
        "rollout": shape.num_steps,
        "batch_size": shape.num_envs * shape.num_steps,
        "nonlinearity": "tanh",
        **dict.fromkeys(("use_rnn", "normalize_input", "actor_critic_share_weights"), False),
    }
    argv = [f"--{name}={value}" for name, value in words.items()]
    config = parse_full_cfg(parse_sf_args(argv)[0], [*argv, "--encoder_mlp_layers", "64", "64"])
    sampling = SyncSamplingAPI(config, obtain_env_info_in_a_separate_process(config))
    sampling.start()
    return Advancing(lambda: int(sampling.get_trajectories_sync()["rewards"].numel()), sampling.stop, ahead=2)


def _make(env_id: str, *_: object, **__: object) -> object:
    return gym.make(env_id)
