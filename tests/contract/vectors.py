"""What steps environments, each behind the interface of Gymnasium's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv import LocalConfig, reset_args
from clusterenv.infos import batch_infos
from clusterenv.rows import Rows, decoded, gymnasium_step, joined_obs
from clusterenv.shard import Shard
from tests.contract.walking import EnvFn

SERIAL = LocalConfig(serial=True)
ONE_WORKER = LocalConfig(nodes=1, cpus_per_node=1)
TWO_WORKERS = LocalConfig(nodes=2, cpus_per_node=1)
FOUR_WORKERS = LocalConfig(nodes=4, cpus_per_node=1)
RUNNERS = LocalConfig(nodes=1, cpus_per_node=3)
WORKERS_WITH_RUNNERS = LocalConfig(nodes=2, cpus_per_node=2)

WORKERS = {
    "one worker": ONE_WORKER,
    "two workers": TWO_WORKERS,
    "four workers": FOUR_WORKERS,
    "runners": RUNNERS,
    "workers with runners": WORKERS_WITH_RUNNERS,
}
"""All ways in which processes are laid out."""

TRANSPORTS = {"serial": SERIAL, **WORKERS}

NUM_ENVS = 5
"""So that no layout divides them evenly."""


class ShardVector:
    """A shard in this process."""

    def __init__(self, env_fns: Sequence[EnvFn], mode: AutoresetMode) -> None:
        self.shard = Shard(env_fns, first_env=0, autoreset_mode=mode)
        self.ids = np.arange(len(env_fns), dtype=np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask, remaining = reset_args.mask_and_options(options, len(self.ids))
        batch = self.shard.reset(reset_args.seeds(seed, len(self.ids)), remaining, mask)
        layout = self.shard.obs_layout
        return joined_obs([batch.obs], layout), batch_infos(decoded(batch.infos), len(self.ids))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        leaves = self.shard.action_layout.batched_actions(actions, len(self.ids))
        rows = Rows.of(self.shard.step(leaves), self.ids, self.shard.obs_layout)
        return gymnasium_step([rows], self.shard.obs_layout)
