"""What a worker's forkserver imports once, so that each runner starts with it.

Imported there only, since it changes the garbage collector of its process. Torch starts no thread when it is
imported, so that forking stays safe; how many it uses later is in the environment that the pool sets.
"""

from __future__ import annotations

import gc
import signal

import torch  # noqa: F401

import clusterenv.runner_process  # noqa: F401

# Slurm signals every process of a step, but it is the worker that says goodbye and then ends us. Handlers and
# not SIG_IGN, which the programs that environments start would inherit.
for _number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(_number, lambda *_: None)

# Runners share these pages for as long as no collection touches them.
gc.collect()
gc.freeze()
