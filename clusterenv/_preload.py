"""What a worker's forkserver imports once, so that each runner starts with it.

Imported there only, since it changes the garbage collector of its process. Torch starts no thread when it is
imported, so that forking stays safe; how many it uses later is in the environment that the worker sets.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from clusterenv.lifetime import outlive_signals
from clusterenv.worker_start import PRELOAD_VARIABLE

# Slurm signals every process of a step, but it is the worker that says goodbye and then ends us.
outlive_signals()

gc.disable()  # a tenth of the time of these imports is collections, which find nothing

for module in os.environ.get(PRELOAD_VARIABLE, "torch").split():
    try:
        import_module(module)
    except ImportError as error:
        sys.stderr.write(f"{PRELOAD_VARIABLE} names {module!r}, which cannot be imported: {error}\n")

import clusterenv.runner_process  # noqa: E402, F401

# Runners share these pages for as long as no collection touches them.
gc.collect()
gc.freeze()
gc.enable()
